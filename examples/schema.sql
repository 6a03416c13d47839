-- What the example workers work on.  In a fresh database, as the user who is to own the table:
--
--     createdb jobs && psql -d jobs -f examples/schema.sql
--
-- It makes one lease, "mail", and a table that only the leader of that lease can write.

\set ON_ERROR_STOP on

BEGIN;

-- An application would rather give the extension a schema of its own and add that to search_path, see the README.
CREATE EXTENSION IF NOT EXISTS leader_lease;

-- One row for each piece of work.  The leader does the lowest one that is open.
CREATE TABLE job (
    slot               bigint PRIMARY KEY,
    worker             text,            -- the holder id of who did it
    completed_at       timestamptz,     -- NULL: still open
    completed_by_token bigint           -- the term it was done in; the guard sees to it
);
CREATE INDEX job_open ON job (slot) WHERE completed_at IS NULL;
INSERT INTO job (slot) SELECT generate_series(1, 100000);

-- From here on a write to the table needs the fence of the lease "mail".  The rows above had to come first.
SELECT lease_protect('job', 'mail', token_column => 'completed_by_token');

COMMIT;

ANALYZE job;

-- The lease itself is made by the first worker that asks for it, and belongs to the database user of that worker.
-- Workers had better not own the table, since its owner can take the guard off.  With a role of their own:
--
--     CREATE ROLE app_worker LOGIN;
--     SELECT lease_create('mail', 'app_worker');
--     GRANT SELECT, UPDATE ON job TO app_worker;
