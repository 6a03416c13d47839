-- Statements made for a hand-made lease table run on this one.
CREATE ROLE hand_app NOLOGIN;
GRANT SELECT, INSERT, UPDATE ON leader_lease TO hand_app;
SET ROLE hand_app;

PREPARE upsert(text, text, interval) AS
INSERT INTO leader_lease AS l (role, holder_id, fencing_token, expires_at)
VALUES ($1, $2, 1, clock_timestamp() + $3)
ON CONFLICT (role) DO UPDATE
   SET holder_id = EXCLUDED.holder_id,
       fencing_token = CASE WHEN l.holder_id = EXCLUDED.holder_id AND l.expires_at > clock_timestamp()
                            THEN l.fencing_token ELSE l.fencing_token + 1 END,
       expires_at = EXCLUDED.expires_at
 WHERE l.expires_at <= clock_timestamp() OR l.holder_id = EXCLUDED.holder_id
RETURNING fencing_token;

EXECUTE upsert('hand', 'a', '1 hour');
EXECUTE upsert('hand', 'a', '1 hour');
EXECUTE upsert('hand', 'b', '1 hour');
SELECT role, holder_id, fencing_token, state, live, ttl BETWEEN '59 min' AND '1 hour' AS ttl, owner FROM lease_status WHERE role = 'hand';

-- the functions see its terms, and it sees theirs
SELECT lease_acquire('hand', 'b'), lease_acquire('hand', 'a'), lease_renew('hand', 'a', 1, '30 min'), lease_check_fence('hand', 'a', 1);
EXECUTE upsert('hand', 'a', '1 hour');
SELECT lease_release('hand', 'a', 1);
EXECUTE upsert('hand', 'b', '1 hour');
SELECT lease_check_fence('hand', 'a', 1), lease_check_fence('hand', 'b', 2);

-- release by hand ends the term for good
UPDATE leader_lease SET expires_at = clock_timestamp() WHERE role = 'hand' AND holder_id = 'b' AND fencing_token = 2;
SELECT state, live FROM lease_status WHERE role = 'hand';
SELECT lease_check_fence('hand', 'b', 2), lease_renew('hand', 'b', 2);
-- a time to come, set on a term that is over, starts the next one
UPDATE leader_lease SET expires_at = clock_timestamp() + interval '1 hour' WHERE role = 'hand' RETURNING fencing_token, holder_id;
SELECT lease_check_fence('hand', 'b', 2), lease_check_fence('hand', 'b', 3);

-- a fence holds back a takeover by hand in another's name, and a fence by hand the functions
BEGIN;
SELECT lease_require_fence('hand', 'b', 3);
-- one's own fence does not, but ends with the term
UPDATE leader_lease SET holder_id = 'c', fencing_token = fencing_token + 1, expires_at = clock_timestamp() + interval '1 hour' WHERE role = 'hand';
SELECT lease_check_fence('hand', 'b', 3), lease_check_fence('hand', 'c', 4);
ROLLBACK;
SELECT lease_check_fence('hand', 'b', 3);

-- losing upserts draw no numbers
RESET ROLE;
SELECT last_value AS before FROM leader_lease_number \gset
SET ROLE hand_app;
EXECUTE upsert('hand', 'z', '1 hour');
EXECUTE upsert('hand', 'z', '1 hour');
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at) VALUES ('hand', 'z', 1, now()) ON CONFLICT DO NOTHING;
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at) VALUES ('hand', 'z', 1, now());
RESET ROLE;
SELECT last_value - :before AS drawn FROM leader_lease_number;
SET ROLE hand_app;

-- a table of old moves over with its tokens
CREATE TEMP TABLE old_lease (role text, holder_id text, fencing_token bigint, expires_at timestamptz);
INSERT INTO old_lease VALUES ('moved', 'm', 17, now() + interval '1 hour'), ('over', 'm', 41, now() - interval '1 hour'), ('never', NULL, 0, '-infinity');
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at) SELECT * FROM old_lease;
SELECT lease_check_fence('moved', 'm', 17), lease_acquire('moved', 'n'), lease_acquire('over', 'm'), lease_acquire('never', 'm');

-- what it refuses
DELETE FROM leader_lease;
UPDATE leader_lease SET role = 'x' WHERE role = 'hand';
UPDATE leader_lease SET number = number + 1 WHERE role = 'hand';
UPDATE leader_lease SET fencing_token = fencing_token - 1 WHERE role = 'hand';
UPDATE leader_lease SET holder_id = 'x' WHERE role = 'hand';
UPDATE leader_lease SET holder_id = NULL WHERE role = 'hand';
UPDATE leader_lease SET holder_id = '', fencing_token = fencing_token + 1 WHERE role = 'hand';
UPDATE leader_lease SET holder_id = NULL, fencing_token = fencing_token + 1, expires_at = now() + interval '1 hour' WHERE role = 'hand';
UPDATE leader_lease SET expires_at = 'infinity' WHERE role = 'hand';
UPDATE leader_lease SET expires_at = now() + interval '2 days' WHERE role = 'hand';
UPDATE leader_lease SET fencing_token = NULL WHERE role = 'hand';
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at) VALUES ('', 'x', 1, now());
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at) VALUES ('new', '', 1, now());
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at) VALUES ('new', 'x', -1, now());
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at) VALUES ('new', 'x', 1, 'infinity');
RESET ROLE;
TRUNCATE leader_lease;

-- columns that are the extension's own stay as they were
UPDATE leader_lease SET deadline = 1, boot = 1, origin = 1, granted_xid = '1', granted_cid = 1, ended = 'x', ttl = '1 s',
       session = 1, renewed_at = 'epoch', acquired_at = 'epoch' WHERE role = 'moved';
SELECT lease_check_fence('moved', 'm', 17);
SELECT session, renewed_at > 'epoch' AS renewed, acquired_at > 'epoch' AS acquired, ended FROM leader_lease WHERE role = 'moved';

-- a token burnt by hand ends the term
UPDATE leader_lease SET fencing_token = fencing_token + 10, expires_at = now() WHERE role = 'moved' RETURNING fencing_token;
SELECT lease_check_fence('moved', 'm', 17), lease_check_fence('moved', 'm', 27);
SELECT state FROM lease_status WHERE role = 'moved';
SELECT lease_acquire('moved', 'n');

-- the table's guard is for the table
SELECT lease_table_guard();
REVOKE ALL ON leader_lease FROM hand_app;

-- rows with numbers of their own, ahead of the sequence, are no obstacle
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at, number)
    SELECT 'ahead' || i, 'h', 1, now(), last_value + i FROM leader_lease_number, generate_series(1, 5) i;
SELECT lease_acquire('behind1', 'h'), lease_acquire('behind2', 'h');

-- a NULL is a NULL, and a usual_ttl a ttl
INSERT INTO leader_lease (role, fencing_token) VALUES ('null', NULL);
INSERT INTO leader_lease (role, expires_at) VALUES ('null', NULL);
INSERT INTO leader_lease (holder_id) VALUES ('null');
UPDATE leader_lease SET expires_at = NULL WHERE role = 'hand';
INSERT INTO leader_lease (role, usual_ttl) VALUES ('usual', '-1 s');
INSERT INTO leader_lease (role, usual_ttl) VALUES ('usual', '100000000 years');
UPDATE leader_lease SET usual_ttl = '2 days' WHERE role = 'hand';

-- numbers are the restorer's to give: others draw theirs
GRANT SELECT, INSERT ON leader_lease TO hand_app;
SET ROLE hand_app;
INSERT INTO leader_lease (role, number) VALUES ('mine', 4000000000);
SELECT number < 4000000000 AS drawn FROM leader_lease WHERE role = 'mine';
RESET ROLE;
REVOKE ALL ON leader_lease FROM hand_app;
