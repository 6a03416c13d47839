-- TRUNCATE is guarded like a write.
CREATE ROLE gtrunc_app NOLOGIN;
CREATE SCHEMA AUTHORIZATION gtrunc_app;
SET ROLE gtrunc_app;
CREATE TABLE job (id int PRIMARY KEY, by_token bigint);
CREATE TABLE ref (id int REFERENCES job);
CREATE TABLE plain (id int);
SELECT lease_protect('job', 'gtrunc', 'by_token');
SELECT lease_acquire('gtrunc', 'a', '1 hour');
\set VERBOSITY sqlstate
-- empty or not
TRUNCATE job CASCADE;
BEGIN;
SELECT lease_require_fence('gtrunc', 'a', 1);
INSERT INTO job VALUES (1);
INSERT INTO ref VALUES (1);
COMMIT;
INSERT INTO plain VALUES (1);
TRUNCATE plain, ref, job;
TRUNCATE ONLY job CASCADE;
SELECT count(*) FROM plain, ref, job;
BEGIN;
SELECT lease_require_fence('gtrunc', 'a', 1);
TRUNCATE plain, ref, job RESTART IDENTITY;
COMMIT;
SELECT count(*) FROM plain, ref, job;
-- by the setting
SET leader_lease.fence = '{"role": "gtrunc", "holder": "a", "token": 1}';
TRUNCATE job, ref;
SET leader_lease.fence = '{"role": "gtrunc", "holder": "a", "token": 2}';
TRUNCATE job, ref;
RESET leader_lease.fence;
-- a truncated table's cascade reaches a protected one
SELECT lease_unprotect('job'), lease_protect('ref', 'gtrunc');
TRUNCATE job CASCADE;
BEGIN;
SELECT lease_require_fence('gtrunc', 'a', 1);
TRUNCATE job CASCADE;
COMMIT;
-- only where it is asked for
SELECT lease_protect('ref', 'gtrunc', events => 'insert,update,delete');
TRUNCATE ref;
SELECT lease_protect('ref', 'gtrunc', events => 'truncate');
INSERT INTO ref SELECT 1 WHERE false;
DELETE FROM ref;
TRUNCATE ref;

DROP TABLE job, ref, plain;
RESET ROLE;
DROP SCHEMA gtrunc_app;
DROP ROLE gtrunc_app;
