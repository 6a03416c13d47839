-- Two guards of two leases on one table: both fences are needed, and each stamps its own column.
CREATE ROLE gtwo_app NOLOGIN;
CREATE SCHEMA AUTHORIZATION gtwo_app;
SET ROLE gtwo_app;
CREATE TABLE job (id int PRIMARY KEY, red_token bigint, blue_token bigint);
SELECT lease_protect('job', 'gtwo red', 'red_token'), lease_protect('job', 'gtwo blue', 'blue_token');
SELECT lease_acquire('gtwo red', 'a', '1 hour'), lease_acquire('gtwo blue', 'b', '1 microsecond');
SELECT lease_acquire('gtwo blue', 'b', '1 hour');
SELECT role, options, events FROM lease_guards WHERE "table" = 'job'::regclass ORDER BY role, events;

BEGIN;
SELECT lease_require_fence('gtwo red', 'a', 1);
INSERT INTO job VALUES (1);
ROLLBACK;
BEGIN;
SELECT lease_require_fence('gtwo blue', 'b', 2);
INSERT INTO job VALUES (1);
ROLLBACK;
BEGIN;
SELECT lease_require_fence('gtwo red', 'a', 1), lease_require_fence('gtwo blue', 'b', 2);
INSERT INTO job VALUES (1) RETURNING *;
UPDATE job SET id = 2, blue_token = 1 WHERE id = 1;
ROLLBACK;
\set VERBOSITY sqlstate
-- one by function, one by the setting; both by the setting; both fences are held then
SET leader_lease.fence = '{"role": "gtwo blue", "holder": "b", "token": 2}';
BEGIN;
SELECT lease_require_fence('gtwo red', 'a', 1);
INSERT INTO job VALUES (2) RETURNING *;
COMMIT;
DELETE FROM job;
TRUNCATE job;
SET leader_lease.fence = '[{"role": "gtwo blue", "holder": "b", "token": 2}, {"role": "gtwo red", "holder": "a", "token": 1}]';
BEGIN;
INSERT INTO job VALUES (3) RETURNING *;
SELECT role, mode FROM lease_locks WHERE role LIKE 'gtwo%' ORDER BY role;
TRUNCATE job;
INSERT INTO job VALUES (4) RETURNING *;
COMMIT;
SET leader_lease.fence = '[{"role": "gtwo blue", "holder": "b", "token": 1}, {"role": "gtwo red", "holder": "a", "token": 1}]';
INSERT INTO job VALUES (5);
RESET leader_lease.fence;
-- changing or taking off the one leaves the other
SELECT lease_protect('job', 'gtwo red', 'red_token', proof => 'row', events => 'insert');
SELECT role, options, events FROM lease_guards WHERE "table" = 'job'::regclass ORDER BY role, events;
INSERT INTO job VALUES (5, 1, 2);
SELECT lease_unprotect('job', 'gtwo blue');
INSERT INTO job VALUES (5, 1, 2);
INSERT INTO job VALUES (6, NULL, 2);
SELECT * FROM job ORDER BY id;
-- two leases cannot share a column, where their tokens differ
SELECT lease_protect('job', 'gtwo red', 'red_token'), lease_protect('job', 'gtwo blue', 'red_token');
BEGIN;
SELECT lease_require_fence('gtwo red', 'a', 1), lease_require_fence('gtwo blue', 'b', 2);
INSERT INTO job VALUES (7);
ROLLBACK;

DROP TABLE job;
RESET ROLE;
DROP SCHEMA gtwo_app;
DROP ROLE gtwo_app;
