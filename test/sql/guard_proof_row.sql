-- proof 'row': a write may carry the token itself; the guard then takes the fence.
CREATE ROLE gp_app NOLOGIN;
CREATE SCHEMA AUTHORIZATION gp_app;
SET ROLE gp_app;
CREATE TABLE job (id int PRIMARY KEY, note text, by_token bigint);
SELECT lease_protect('job', 'gp', 'by_token', proof => 'row');

-- no lease, so no current token
INSERT INTO job VALUES (1, 'a', 1);
SELECT lease_acquire('gp', 'a', '1 hour');
\set VERBOSITY sqlstate
INSERT INTO job VALUES (1, 'a', 1);
INSERT INTO job VALUES (2, 'a', 2);
INSERT INTO job VALUES (2, 'a', 0);
INSERT INTO job VALUES (2, 'a', -1);
INSERT INTO job VALUES (2, 'a', NULL);
INSERT INTO job VALUES (2, 'a');
-- one bad row spoils the statement
INSERT INTO job VALUES (2, 'a', 1), (3, 'a', 2);
-- an UPDATE shows a token only where it assigns the column
UPDATE job SET note = 'b';
UPDATE job SET note = 'b', by_token = 1;
UPDATE job SET note = 'c', by_token = 2;
UPDATE job SET note = 'c', by_token = NULL;
-- a DELETE carries nothing, nor does a TRUNCATE
DELETE FROM job;
TRUNCATE job;
SELECT * FROM job;

-- what was shown once is the fence for the rest of the transaction
BEGIN;
INSERT INTO job VALUES (2, 'b', 1);
SELECT mode, granted FROM lease_locks WHERE role = 'gp';
UPDATE job SET note = 'c';
DELETE FROM job WHERE id = 1;
-- which does not make another token good
INSERT INTO job VALUES (3, 'c', 2);
ROLLBACK;
SELECT mode FROM lease_locks WHERE role = 'gp';
-- a refused row leaves no lock
BEGIN;
SAVEPOINT s;
INSERT INTO job VALUES (3, 'c', 2);
ROLLBACK TO s;
SELECT mode FROM lease_locks WHERE role = 'gp';
COMMIT;

-- after a takeover the old token is stale
SELECT lease_release('gp', 'a', 1), lease_acquire('gp', 'b', '1 hour');
INSERT INTO job VALUES (3, 'a', 1);
UPDATE job SET note = 'a', by_token = 1;
UPDATE job SET note = 'a', by_token = by_token;
INSERT INTO job VALUES (3, 'b', 2);
UPDATE job SET note = 'b', by_token = 2 WHERE id = 1;
SELECT * FROM job ORDER BY id;
-- an UPDATE that leaves the current leader's stamp in place is refused ..
UPDATE job SET note = 'stale' WHERE id = 1;
-- .. but one that writes it back lends the writer the proof: why this is not the default
UPDATE job SET note = 'lent', by_token = by_token WHERE id = 1;
SELECT * FROM job ORDER BY id;
-- nobody leads: the last token is not current any more
SELECT lease_release('gp', 'b', 2);
INSERT INTO job VALUES (4, 'b', 2);
UPDATE job SET by_token = by_token;
SELECT lease_acquire('gp', 'b', '1 microsecond');
INSERT INTO job VALUES (4, 'b', 3);
SELECT * FROM job ORDER BY id;

-- proof 'row' is a proof more, not a proof less
SELECT lease_acquire('gp', 'b', '1 hour');
BEGIN;
SELECT lease_require_fence('gp', 'b', 4);
UPDATE job SET note = 'fence' WHERE id = 1 RETURNING *;
INSERT INTO job VALUES (4, 'fence') RETURNING *;
DELETE FROM job WHERE id = 4;
TRUNCATE job;
COMMIT;

DROP TABLE job;
RESET ROLE;
DROP SCHEMA gp_app;
DROP ROLE gp_app;
