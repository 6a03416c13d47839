-- What a DBA adds to the lease table is kept.
CREATE FUNCTION shout(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT upper($1)';
CREATE INDEX dba_expression ON leader_lease (shout(holder_id)) WHERE shout(holder_id) <> 'NOBODY';
CREATE INDEX dba_holder ON leader_lease (holder_id);
ALTER TABLE leader_lease ADD COLUMN note text NOT NULL DEFAULT 'none';
ALTER TABLE leader_lease ADD COLUMN gone int;
ALTER TABLE leader_lease DROP COLUMN gone;
ALTER TABLE leader_lease ADD COLUMN loud text GENERATED ALWAYS AS (upper(holder_id)) STORED;
ALTER TABLE leader_lease ADD CONSTRAINT dba_check CHECK (holder_id <> 'forbidden');

SELECT lease_acquire('dba', 'h1', '1 hour'), lease_renew('dba', 'h1', 1), lease_acquire('dba', 'h1');
UPDATE leader_lease SET note = 'mine' WHERE role = 'dba';
SELECT lease_release('dba', 'h1', 1), lease_acquire('dba', 'h2');
SELECT lease_check_fence('dba', 'h1', 1), lease_check_fence('dba', 'h2', 2);
SELECT role, holder_id, note, loud FROM leader_lease WHERE role = 'dba';
SET enable_seqscan = off;
SELECT role FROM leader_lease WHERE shout(holder_id) = 'H2' AND shout(holder_id) <> 'NOBODY';
SELECT role FROM leader_lease WHERE holder_id = 'h2';
SELECT role FROM leader_lease WHERE holder_id = 'h1';
RESET enable_seqscan;
\set VERBOSITY terse
SELECT lease_acquire('dba2', 'forbidden');
\set VERBOSITY default
SELECT count(*) FROM leader_lease WHERE role = 'dba2';

-- a unique index of somebody's is no endless loop
CREATE UNIQUE INDEX dba_unique ON leader_lease (note) WHERE role LIKE 'uniq%';
SELECT lease_acquire('uniq1', 'h');
SELECT lease_acquire('uniq2', 'h');
DROP INDEX dba_unique;
-- nor is a trigger or a rule
CREATE FUNCTION dba_skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER dba_skip BEFORE INSERT ON leader_lease FOR EACH ROW EXECUTE FUNCTION dba_skip();
SELECT lease_acquire('skipped', 'h');
SELECT lease_create('skipped');
DROP FUNCTION dba_skip CASCADE;

-- a page that is full, since nothing of it can be pruned yet
BEGIN;
SELECT count(lease_renew('dba', 'h2', 2)) FROM generate_series(1, 300);
COMMIT;
SELECT lease_check_fence('dba', 'h2', 2);

ALTER TABLE leader_lease DROP CONSTRAINT dba_check;
ALTER TABLE leader_lease DROP COLUMN loud;
ALTER TABLE leader_lease DROP COLUMN note;
DROP INDEX dba_expression, dba_holder;
DROP FUNCTION shout;
