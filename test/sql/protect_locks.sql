-- Who may not change a table's guards is refused before he waits for the table, and so holds nobody up; who may, waits.
SELECT current_setting('max_prepared_transactions')::int = 0 AS skip \gset
\if :skip
\quit
\endif
CREATE ROLE plock_app NOLOGIN;
CREATE ROLE plock_other NOLOGIN;
CREATE SCHEMA AUTHORIZATION plock_app;
GRANT USAGE ON SCHEMA plock_app TO plock_other;
SET ROLE plock_app;
CREATE TABLE job (id int) PARTITION BY LIST (id);
CREATE TABLE job1 PARTITION OF job FOR VALUES IN (1);
BEGIN;
INSERT INTO job VALUES (1);
PREPARE TRANSACTION 'plock';
\set VERBOSITY sqlstate
SET ROLE plock_other;
SET lock_timeout = '10ms';
SELECT lease_protect('plock_app.job', 'plock');
SELECT lease_protect('plock_app.job1', 'plock');
SELECT lease_unprotect('plock_app.job');
SET ROLE plock_app;
SELECT lease_protect('job', 'plock');
SELECT lease_protect('job1', 'plock');
SELECT lease_protect('job', 'plock', events => 'truncate');
SELECT lease_unprotect('job');
SELECT count(*) FROM lease_guards WHERE role = 'plock';
COMMIT PREPARED 'plock';
SELECT lease_protect('job', 'plock');
SELECT count(*) FROM lease_guards WHERE role = 'plock';
DROP TABLE job;
RESET ROLE;
DROP SCHEMA plock_app;
DROP ROLE plock_app, plock_other;
