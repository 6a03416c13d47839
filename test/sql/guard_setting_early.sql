-- A claim that was set before the library is loaded, by ALTER ROLE or with the connection, and is no good, must not
-- make loading fail.  Each \c is a new process without the library.
SELECT current_user AS admin \gset
CREATE ROLE gearly_app LOGIN;
CREATE SCHEMA AUTHORIZATION gearly_app;
CREATE TABLE gearly_app.job (id int);
SELECT lease_protect('gearly_app.job', 'gearly');
ALTER TABLE gearly_app.job OWNER TO gearly_app;
SELECT lease_create('gearly', 'gearly_app');
\c -
ALTER ROLE gearly_app SET leader_lease.fence = '{"role": "gearly';
\set VERBOSITY default

\c - gearly_app
SHOW leader_lease.fence;
SELECT lease_acquire('gearly', 'a', '1 hour');
INSERT INTO job VALUES (1);
SHOW leader_lease.fence;
-- the guard itself may be what loads the library
\c -
INSERT INTO job VALUES (1);
SET leader_lease.fence = '{"role": "gearly", "holder": "a", "token": 1}';
INSERT INTO job VALUES (1);
-- deep nesting
\c - :admin
DO $$ BEGIN
    EXECUTE format('ALTER ROLE gearly_app SET leader_lease.fence = %L', repeat('[', 100000));
END $$;
\c - gearly_app
SET client_min_messages = error;
SELECT lease_check_fence('gearly', 'a', 1);
RESET client_min_messages;
-- with the connection
\c - :admin
ALTER ROLE gearly_app RESET leader_lease.fence;
\set app 'user=gearly_app dbname=' :DBNAME
\setenv PGOPTIONS '-c leader_lease.fence=no_json'
\c -reuse-previous=off :app
INSERT INTO job VALUES (2);
SELECT lease_check_fence('gearly', 'a', 1);

-- JSON of a bad shape, and a good claim, get as far as the first write
\setenv PGOPTIONS '-c leader_lease.fence={}'
\c -reuse-previous=off :app
INSERT INTO job VALUES (2);
\setenv PGOPTIONS '-c leader_lease.fence={"role":"gearly","holder":"a","token":1}'
\c -reuse-previous=off :app
INSERT INTO job VALUES (2);
SELECT count(*) FROM job;

\setenv PGOPTIONS
\set admin 'user=' :admin ' dbname=' :DBNAME
\c -reuse-previous=off :admin
DROP TABLE gearly_app.job;
DROP SCHEMA gearly_app;
DROP ROLE gearly_app;
