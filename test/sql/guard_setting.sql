-- leader_lease.fence: a claim by which the first unfenced write takes its fence.
CREATE ROLE gset_app NOLOGIN;
CREATE SCHEMA AUTHORIZATION gset_app;
SET ROLE gset_app;
CREATE TABLE job (id int PRIMARY KEY, by_token bigint);
SELECT lease_protect('job', 'gset', 'by_token');
SELECT lease_acquire('gset', 'a', '1 hour');

-- for a connection of one's own
SET leader_lease.fence = '{"role": "gset", "holder": "a", "token": 1}';
INSERT INTO job VALUES (1) RETURNING *;
UPDATE job SET id = 2 RETURNING *;
DELETE FROM job RETURNING *;
TRUNCATE job;
-- for a transaction; nothing is held before the first write, the fence from then on
RESET leader_lease.fence;
BEGIN;
SET LOCAL leader_lease.fence = '{"token": "1", "holder": "a", "role": "gset"}';
SELECT mode FROM lease_locks WHERE role = 'gset';
INSERT INTO job VALUES (1);
SELECT mode FROM lease_locks WHERE role = 'gset';
-- the fence stands, whatever becomes of the setting
RESET leader_lease.fence;
INSERT INTO job VALUES (2);
SET LOCAL leader_lease.fence = '{"role": "gset", "holder": "a", "token": 99}';
COMMIT;
INSERT INTO job VALUES (3);
BEGIN;
SELECT lease_require_fence('gset', 'a', 1);
SET LOCAL leader_lease.fence = '{"role": "gset", "holder": "a", "token": 99}';
INSERT INTO job VALUES (2);
COMMIT;
SELECT * FROM job ORDER BY id;

-- a claim that is not current is stale: another token, another holder, another term, no lease
SET leader_lease.fence = '{"role": "gset", "holder": "a", "token": 2}';
INSERT INTO job VALUES (3);
SET leader_lease.fence = '{"role": "gset", "holder": "b", "token": 1}';
INSERT INTO job VALUES (3);
SELECT lease_acquire('gset over', 'a', '1 microsecond');
CREATE TABLE over (id int);
SELECT lease_protect('over', 'gset over');
SET leader_lease.fence = '{"role": "gset over", "holder": "a", "token": 1}';
INSERT INTO over VALUES (3);
SELECT lease_acquire('gset over', 'a', '1 hour'), lease_release('gset over', 'a', 2);
SET leader_lease.fence = '{"role": "gset over", "holder": "a", "token": 2}';
INSERT INTO over VALUES (3);
SELECT lease_unprotect('over'), lease_protect('over', 'gset unknown');
SET leader_lease.fence = '{"role": "gset unknown", "holder": "a", "token": 1}';
INSERT INTO over VALUES (3);

-- a claim on other leases is none on this one
SET leader_lease.fence = '{"role": "gset over", "holder": "a", "token": 1}';
INSERT INTO job VALUES (3);
SET leader_lease.fence = '[]';
INSERT INTO job VALUES (3);
-- several claims; only the one that is needed is taken
SELECT lease_acquire('gset over', 'a', '1 hour');
SET leader_lease.fence = '[{"role": "gset over", "holder": "a", "token": 3},
                           {"role": "gset", "holder": "a", "token": 1}]';
BEGIN;
INSERT INTO job VALUES (3);
SELECT role, mode FROM lease_locks WHERE role LIKE 'gset%';
COMMIT;
-- the claim wins over the token in the row, which then has to agree
SELECT lease_protect('job', 'gset', 'by_token', proof => 'row');
\set VERBOSITY sqlstate
INSERT INTO job VALUES (4, 2);
INSERT INTO job VALUES (4, 1);
SET leader_lease.fence = '{"role": "gset", "holder": "a", "token": 2}';
INSERT INTO job VALUES (5, 1);
-- so does a bad one: half a claim is none
SET leader_lease.fence = '{"role": "gset"}';
INSERT INTO job VALUES (5, 1);
RESET leader_lease.fence;
SELECT * FROM job ORDER BY id;

-- the setting stays read at each first write: a takeover makes it stale
SET leader_lease.fence = '{"role": "gset", "holder": "a", "token": 1}';
INSERT INTO job VALUES (6);
SELECT lease_release('gset', 'a', 1), lease_acquire('gset', 'b', '1 hour');
INSERT INTO job VALUES (7);
UPDATE job SET id = id + 100;
DELETE FROM job;
TRUNCATE job;
SELECT * FROM job ORDER BY id;

DROP TABLE job, over;
RESET ROLE;
DROP SCHEMA gset_app;
DROP ROLE gset_app;
