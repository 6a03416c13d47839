-- The extension goes into a schema of one's own, and goes without a trace.
SELECT current_database() AS here \gset
CREATE DATABASE lease_elsewhere;
\c lease_elsewhere
SELECT count(*) AS before FROM pg_depend \gset
CREATE SCHEMA "Odd schema";
CREATE EXTENSION leader_lease SCHEMA "Odd schema";
ALTER EXTENSION leader_lease SET SCHEMA public;
SELECT "Odd schema".lease_acquire('l', 'h', '1 hour');
CREATE TABLE job (id int, token bigint);
SELECT "Odd schema".lease_protect('job', 'l', 'token');
INSERT INTO job VALUES (1, "Odd schema".lease_require_fence('l', 'h', 1)) RETURNING *;
INSERT INTO job VALUES (1);
SELECT role, holder_id, state FROM "Odd schema".lease_status;
SELECT "table", role, options FROM "Odd schema".lease_guards ORDER BY events;
DROP EXTENSION leader_lease;
SELECT "Odd schema".lease_unprotect('job');
DROP EXTENSION leader_lease;
DROP TABLE job;
DROP EXTENSION leader_lease;
DROP SCHEMA "Odd schema";
SELECT count(*) - :before AS left_behind FROM pg_depend;
SELECT count(*) FROM pg_class WHERE relname LIKE '%lease%';

-- made again elsewhere in the same session, it is another one
CREATE EXTENSION leader_lease;
SELECT lease_acquire('l', 'other', '1 hour');
SELECT lease_check_fence('l', 'h', 1), lease_check_fence('l', 'other', 1);
DROP EXTENSION leader_lease;

-- also where the session knew the table from a statement by hand alone
CREATE EXTENSION leader_lease;
\c lease_elsewhere
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at) VALUES ('l', 'h', 1, now() + interval '1 hour');
DROP EXTENSION leader_lease;
CREATE SCHEMA other;
CREATE EXTENSION leader_lease SCHEMA other;
SELECT other.lease_acquire('l', 'h');
DROP EXTENSION leader_lease;
\c :here
DROP DATABASE lease_elsewhere;
