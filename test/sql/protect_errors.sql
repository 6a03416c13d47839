-- What lease_protect and lease_unprotect refuse.
CREATE ROLE prot_app NOLOGIN;
CREATE ROLE prot_other NOLOGIN;
CREATE SCHEMA AUTHORIZATION prot_app;
GRANT USAGE, CREATE ON SCHEMA prot_app TO prot_other;
SET ROLE prot_app;
CREATE DOMAIN token_domain AS bigint;
CREATE TABLE job (id serial PRIMARY KEY, by_token bigint, small int, text_token text, domain_token token_domain,
    made bigint GENERATED ALWAYS AS (5) STORED, ident bigint GENERATED ALWAYS AS IDENTITY, dropped bigint,
    stamp timestamptz, padded char(5), num numeric, ints int[], real4 real);
ALTER TABLE job DROP COLUMN dropped;
CREATE VIEW job_view AS SELECT * FROM job;
CREATE MATERIALIZED VIEW job_matview AS SELECT * FROM job;
CREATE TABLE part (id int) PARTITION BY LIST (id);
CREATE TYPE job_type AS (id int);

CREATE FUNCTION try(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE 'SELECT ' || command;
    RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE || ' ' || SQLERRM;
END $$;

SELECT c, try(c) FROM unnest(ARRAY[
    -- NULL
    $$lease_protect(NULL, 'prot')$$,
    $$lease_protect('job', NULL)$$,
    $$lease_protect('job', 'prot', events => NULL)$$,
    $$lease_protect('job', 'prot', proof => NULL)$$,
    $$lease_protect('job', 'prot', mode => NULL)$$,
    $$lease_protect('job', 'prot', on_replica => NULL)$$,
    $$lease_unprotect(NULL)$$,
    $$lease_unprotect(NULL, 'prot')$$,
    -- names
    $$lease_protect('job', '')$$,
    $$lease_protect('job', repeat('x', 256))$$,
    $$lease_protect('job', repeat(E'\303\251', 128))$$,
    $$lease_unprotect('job', '')$$,
    -- options
    $$lease_protect('job', 'prot', events => '')$$,
    $$lease_protect('job', 'prot', events => ' , ')$$,
    $$lease_protect('job', 'prot', events => 'insert,updates')$$,
    $$lease_protect('job', 'prot', events => 'insert;delete')$$,
    $$lease_protect('job', 'prot', events => 'all')$$,
    $$lease_protect('job', 'prot', proof => 'rows')$$,
    $$lease_protect('job', 'prot', proof => 'ROW')$$,
    $$lease_protect('job', 'prot', proof => '')$$,
    $$lease_protect('job', 'prot', mode => 'logs')$$,
    $$lease_protect('job', 'prot', mode => 'off')$$,
    $$lease_protect('job', 'prot', proof => 'row')$$,
    -- token columns
    $$lease_protect('job', 'prot', 'nowhere')$$,
    $$lease_protect('job', 'prot', 'BY_TOKEN')$$,
    $$lease_protect('job', 'prot', '')$$,
    $$lease_protect('job', 'prot', '........pg.dropped.8........')$$,
    $$lease_protect('job', 'prot', 'small')$$,
    $$lease_protect('job', 'prot', 'text_token')$$,
    $$lease_protect('job', 'prot', 'domain_token')$$,
    $$lease_protect('job', 'prot', 'made')$$,
    $$lease_protect('job', 'prot', 'ident')$$,
    $$lease_protect('job', 'prot', 'xmin')$$,
    $$lease_protect('job', 'prot', 'tableoid')$$,
    -- key columns
    $$lease_protect('job', 'prot', key_column => 'nowhere')$$,
    $$lease_protect('job', 'prot', key_column => '')$$,
    $$lease_protect('job', 'prot', key_column => '........pg.dropped.8........')$$,
    $$lease_protect('job', 'prot', key_column => 'stamp')$$,
    $$lease_protect('job', 'prot', key_column => 'padded')$$,
    $$lease_protect('job', 'prot', key_column => 'num')$$,
    $$lease_protect('job', 'prot', key_column => 'ints')$$,
    $$lease_protect('job', 'prot', key_column => 'real4')$$,
    $$lease_protect('job', 'prot', key_column => 'made')$$,
    $$lease_protect('job', 'prot', key_column => 'ctid')$$,
    $$lease_protect('job', 'prot', key_column => 'tableoid')$$,
    $$lease_protect('job', 'prot', 'by_token', key_column => 'by_token')$$,
    -- what is no table
    $$lease_protect('job_view', 'prot')$$,
    $$lease_protect('job_matview', 'prot')$$,
    $$lease_protect('job_id_seq', 'prot')$$,
    $$lease_protect('job_pkey', 'prot')$$,
    $$lease_protect('job_type', 'prot')$$,
    $$lease_protect(0, 'prot')$$,
    $$lease_protect(1, 'prot')$$,
    $$lease_unprotect(1)$$,
    -- what is not there
    $$lease_unprotect('job')$$,
    $$lease_unprotect('job', 'prot')$$,
    $$lease_unprotect('job_view')$$,
    -- what is not theirs
    $$lease_protect('leader_lease', 'prot')$$,
    $$lease_protect('pg_class', 'prot')$$,
    $$lease_unprotect('leader_lease')$$]) WITH ORDINALITY u(c, n) ORDER BY n;
SELECT count(*) FROM lease_guards WHERE role LIKE 'prot%';

-- an int4 column is refused for what a failover does to tokens
SELECT lease_protect('job', 'prot', 'small');
SELECT lease_protect('job', 'prot', key_column => 'stamp');
SELECT lease_protect('job_view', 'prot');
SELECT lease_protect('job', 'prot', events => 'none');

-- for the owner alone: not for who may write, or may make triggers
GRANT ALL ON job, part TO prot_other;
SET ROLE prot_other;
SELECT prot_app.try('lease_protect(''prot_app.job'', ''prot'')');
SELECT prot_app.try('lease_unprotect(''prot_app.job'')');
-- a refused call holds no lock on the table
BEGIN;
SELECT prot_app.try('lease_protect(''prot_app.job'', ''prot'')');
SELECT prot_app.try('lease_unprotect(''prot_app.job'')');
SELECT mode FROM pg_locks WHERE relation = 'prot_app.job'::regclass AND pid = pg_backend_pid();
COMMIT;
-- a member of the owner is one
RESET ROLE;
GRANT prot_app TO prot_other;
SET ROLE prot_other;
SELECT lease_protect('prot_app.job', 'prot'), lease_unprotect('prot_app.job');
RESET ROLE;
REVOKE prot_app FROM prot_other;
-- and all that hangs below has to be theirs too
SET ROLE prot_other;
CREATE TABLE prot_app.part1 (id int);
RESET ROLE;
ALTER TABLE prot_app.part ATTACH PARTITION prot_app.part1 FOR VALUES IN (1);
SET ROLE prot_app;
SELECT try('lease_protect(''part'', ''prot'')');
SELECT count(*) FROM lease_guards WHERE role LIKE 'prot%';

-- for superusers: foreign tables, catalogs and the lease table itself are no tables to protect
RESET ROLE;
SET search_path = prot_app, public;
CREATE FOREIGN DATA WRAPPER prot_fdw;
CREATE SERVER prot_server FOREIGN DATA WRAPPER prot_fdw;
CREATE FOREIGN TABLE job_foreign (id int) SERVER prot_server;
SELECT c, try(c) FROM unnest(ARRAY[
    $$lease_protect('job_foreign', 'prot')$$,
    $$lease_protect('leader_lease', 'prot')$$]) WITH ORDINALITY u(c, n) ORDER BY n;
\set VERBOSITY sqlstate
SELECT lease_protect('pg_class', 'prot');
SELECT lease_protect('pg_authid', 'prot', events => 'insert');
SELECT lease_protect('information_schema.sql_features', 'prot', events => 'insert'), lease_unprotect('information_schema.sql_features');
-- nothing that needs the guard goes away with the extension
SELECT lease_protect('job', 'prot');
BEGIN;
DROP EXTENSION leader_lease;
ROLLBACK;
SELECT count(*) FROM lease_guards WHERE role LIKE 'prot%';

DROP FUNCTION try;
DROP FOREIGN DATA WRAPPER prot_fdw CASCADE;
DROP VIEW job_view;
DROP MATERIALIZED VIEW job_matview;
DROP TABLE job, part;
DROP TYPE job_type, token_domain;
DROP SCHEMA prot_app;
DROP ROLE prot_app, prot_other;
