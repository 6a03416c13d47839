-- A foreign key's action runs as the owner of the table it writes; whose right counts is the one's who caused it.
CREATE ROLE gcas_owner NOLOGIN;    -- owns the protected table
CREATE ROLE gcas_lead NOLOGIN;     -- may use the lease
CREATE ROLE gcas_other NOLOGIN;    -- may use neither, but writes what the protected table refers to
CREATE SCHEMA gcas;
GRANT ALL ON SCHEMA gcas TO gcas_owner, gcas_lead, gcas_other;
SET search_path = gcas, public;
SELECT lease_create('gcas', 'gcas_lead');
SET ROLE gcas_other;
CREATE TABLE part (id int PRIMARY KEY, shelf int UNIQUE);
INSERT INTO part SELECT i, i FROM generate_series(1, 9) i;
GRANT ALL ON part TO gcas_owner, gcas_lead;
SET ROLE gcas_owner;
CREATE TABLE job (id int PRIMARY KEY, by_token bigint,
    part int REFERENCES part ON DELETE CASCADE ON UPDATE CASCADE,
    shelf int REFERENCES part (shelf) ON DELETE SET NULL ON UPDATE SET DEFAULT);
GRANT ALL ON job TO gcas_lead;
SET ROLE gcas_lead;
SELECT lease_acquire('gcas', 'a', '1 hour');
INSERT INTO job VALUES (1, NULL, 1, NULL), (2, NULL, 2, NULL), (3, NULL, NULL, 3), (4, NULL, NULL, 4);
SET ROLE gcas_owner;
SELECT lease_protect('job', 'gcas', 'by_token', proof => 'row');
\set VERBOSITY sqlstate

-- nothing shown
DELETE FROM part WHERE id = 1;
UPDATE part SET id = 20 WHERE id = 2;
DELETE FROM part WHERE id = 3;
UPDATE part SET shelf = 40 WHERE id = 4;
-- what nothing refers to is not affected
DELETE FROM part WHERE id = 9;

-- a stranger who knows the claim takes no fence through the action, which runs as gcas_owner ..
SET ROLE gcas_other;
SET leader_lease.fence = '{"role": "gcas", "holder": "a", "token": 1}';
DELETE FROM part WHERE id = 1;
UPDATE part SET id = 20 WHERE id = 2;
DELETE FROM part WHERE id = 3;
UPDATE part SET shelf = 40 WHERE id = 4;
-- .. nor does he where that one has the right
RESET ROLE;
GRANT gcas_lead TO gcas_owner;
SET ROLE gcas_other;
BEGIN;
SAVEPOINT s;
DELETE FROM part WHERE id = 1;
ROLLBACK TO s;
SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND classid = 'leader_lease'::regclass;
UPDATE part SET id = 20 WHERE id = 2;
ROLLBACK;
RESET ROLE;
REVOKE gcas_lead FROM gcas_owner;
SELECT id, part, shelf, by_token FROM gcas.job ORDER BY id;

-- who leads may, though the action runs as one who may not
SET ROLE gcas_lead;
BEGIN;
DELETE FROM part WHERE id = 1;
SELECT mode FROM lease_locks WHERE role = 'gcas';
UPDATE part SET id = 20 WHERE id = 2;
DELETE FROM part WHERE id = 3;
UPDATE part SET shelf = 40 WHERE id = 4;
COMMIT;
SELECT id, part, shelf, by_token FROM job ORDER BY id;
-- by a fence in the transaction too
RESET leader_lease.fence;
BEGIN;
SELECT lease_require_fence('gcas', 'a', 1);
UPDATE part SET id = 2 WHERE id = 20;
COMMIT;
-- a stale claim is as stale in a cascade
SELECT lease_release('gcas', 'a', 1), lease_acquire('gcas', 'b', '1 hour');
SET leader_lease.fence = '{"role": "gcas", "holder": "a", "token": 1}';
DELETE FROM part WHERE id = 2;
-- and the new leader's good
SET leader_lease.fence = '{"role": "gcas", "holder": "b", "token": 2}';
UPDATE part SET id = 21 WHERE id = 2;
SELECT id, part, shelf, by_token FROM job ORDER BY id;
-- TRUNCATE ... CASCADE
RESET leader_lease.fence;
TRUNCATE part CASCADE;
RESET ROLE;
SET leader_lease.fence = '{"role": "gcas", "holder": "b", "token": 2}';
TRUNCATE gcas.part CASCADE;
SELECT count(*) FROM gcas.job;

DROP TABLE gcas.job, gcas.part;
DROP SCHEMA gcas;
DROP ROLE gcas_owner, gcas_lead, gcas_other;
