-- Calling lease_protect again changes the guard; options as they stand in the trigger; rights and locks.
CREATE ROLE pchg_app NOLOGIN;
CREATE SCHEMA AUTHORIZATION pchg_app;
SET ROLE pchg_app;
CREATE TABLE job (id int PRIMARY KEY, by_token bigint, other_token bigint);
CREATE VIEW guards AS SELECT role, options, events, enabled FROM lease_guards WHERE "table" = 'job'::regclass ORDER BY role, events;

SELECT lease_protect('job', 'pchg');
TABLE guards;
SELECT lease_protect('job', 'pchg', 'by_token', proof => 'row', mode => 'log', on_replica => true);
TABLE guards;
SELECT lease_protect('job', 'pchg', 'other_token', events => 'UPDATE, Insert  insert,');
TABLE guards;
SELECT lease_protect('job', 'pchg', events => 'truncate');
TABLE guards;
SELECT lease_protect('job', 'pchg', events => E'delete\ttruncate\nupdate');
TABLE guards;
SELECT lease_protect('job', 'pchg');
TABLE guards;
-- a guard that was switched off is on again
ALTER TABLE job DISABLE TRIGGER USER;
TABLE guards;
SELECT lease_protect('job', 'pchg');
TABLE guards;
-- the triggers are ordinary ones, with names that sort after others
SELECT count(*), bool_and(tgname > 'zzz' COLLATE "C"), bool_or(tgisinternal) FROM pg_trigger WHERE tgrelid = 'job'::regclass;
-- one lease's or all
SELECT lease_protect('job', 'pchg 2'), lease_protect('job', 'pchg 3');
SELECT lease_unprotect('job', 'pchg');
TABLE guards;
SELECT lease_unprotect('job', 'pchg');
SELECT lease_unprotect('job');
TABLE guards;
SELECT lease_unprotect('job');

-- an error changes nothing
SELECT lease_protect('job', 'pchg');
BEGIN;
SELECT lease_protect('job', 'pchg', 'nowhere');
ROLLBACK;
BEGIN;
SELECT lease_protect('job', 'pchg', mode => 'log'), lease_unprotect('job', 'no such guard');
ROLLBACK;
TABLE guards;
-- no write slips in between: the table is locked against writers until the end
BEGIN;
SELECT lease_protect('job', 'pchg');
SELECT count(*) > 0 AS locked FROM pg_locks WHERE relation = 'job'::regclass AND pid = pg_backend_pid()
    AND mode IN ('ShareRowExclusiveLock', 'AccessExclusiveLock') AND granted;
COMMIT;
-- found in its own schema, whatever stands in search_path
CREATE FUNCTION pchg_app.lease_fence() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
SET search_path = pchg_app, pg_temp;
SELECT public.lease_protect('job', 'pchg');
INSERT INTO job VALUES (1);
SET search_path = '';
SELECT public.lease_protect('pchg_app.job', 'pchg'), public.lease_unprotect('pchg_app.job'), public.lease_protect('pchg_app.job', 'pchg');
INSERT INTO pchg_app.job VALUES (1);
RESET search_path;
-- temporary tables
CREATE TEMP TABLE job_temp (id int);
SELECT lease_protect('job_temp', 'pchg');
INSERT INTO job_temp VALUES (1);
-- a read-only transaction makes no guard
\set VERBOSITY sqlstate
BEGIN READ ONLY;
SELECT lease_protect('job', 'pchg');
ROLLBACK;

DROP TABLE job_temp;
DROP VIEW guards;
DROP TABLE job;
DROP FUNCTION lease_fence;
RESET ROLE;
DROP SCHEMA pchg_app;
DROP ROLE pchg_app;
