-- A takeover by hand and a fenced write in one statement: the write has no
-- fence, neither then nor later in the transaction.
SELECT lease_acquire('one', 'a', '1 hour');
CREATE TABLE one (id int, token bigint);
SELECT lease_protect('one', 'one', 'token');
SET leader_lease.fence = '{"role": "one", "holder": "a", "token": 1}';
BEGIN;
WITH u AS (UPDATE leader_lease SET holder_id = 'b', fencing_token = fencing_token + 1 WHERE role = 'one' RETURNING 1)
INSERT INTO one SELECT 1 FROM u;
ROLLBACK;
BEGIN;
UPDATE leader_lease SET holder_id = 'b', fencing_token = fencing_token + 1 WHERE role = 'one';
SAVEPOINT s;
INSERT INTO one VALUES (2);
ROLLBACK TO s;
SELECT lease_check_fence('one', 'a', 1), lease_check_fence('one', 'b', 2);
ROLLBACK;
INSERT INTO one VALUES (3) RETURNING *;

-- a term that the transaction has ended is stale, not missing
BEGIN;
INSERT INTO one VALUES (4);
SELECT lease_release('one', 'a', 1);
RESET leader_lease.fence;
INSERT INTO one VALUES (5);
ROLLBACK;
DROP TABLE one;
