-- The guard takes a fence by the right of whoever writes; a right on the table is none on the lease.
CREATE ROLE gright_lead NOLOGIN;
CREATE ROLE gright_worker NOLOGIN IN ROLE gright_lead;
CREATE ROLE gright_noinherit NOLOGIN NOINHERIT IN ROLE gright_lead;
CREATE ROLE gright_other NOLOGIN;
CREATE SCHEMA gright;
GRANT ALL ON SCHEMA gright TO gright_lead, gright_other;
SELECT lease_create('gright', 'gright_lead');
SET ROLE gright_lead;
SELECT lease_acquire('gright', 'a', '1 hour');
CREATE TABLE gright.job (id int, by_token bigint);
SELECT lease_protect('gright.job', 'gright', 'by_token', proof => 'row');
GRANT ALL ON gright.job TO gright_other;
CREATE FUNCTION gright.as_lead(command text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN EXECUTE command; END $$;
SET leader_lease.fence = '{"role": "gright", "holder": "a", "token": 1}';
INSERT INTO gright.job VALUES (0);

-- a stranger who may write the table and knows everything
SET ROLE gright_other;
INSERT INTO gright.job VALUES (1);
\set VERBOSITY sqlstate
UPDATE gright.job SET id = 2;
DELETE FROM gright.job;
TRUNCATE gright.job;
RESET leader_lease.fence;
INSERT INTO gright.job VALUES (1, 1);
BEGIN;
SAVEPOINT s;
INSERT INTO gright.job VALUES (1, 1);
ROLLBACK TO s;
RESET ROLE;
SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND classid = 'leader_lease'::regclass;
COMMIT;
SET ROLE gright_other;
-- nor by a table of his own: nobody may hold up a lease that is not theirs
CREATE TABLE gright.mine (id int, by_token bigint);
SELECT lease_protect('gright.mine', 'gright', 'by_token', proof => 'row');
INSERT INTO gright.mine VALUES (1, 1);
-- which does not tell him either what the current token is not
SELECT lease_protect('gright.mine', 'gright', 'by_token');
INSERT INTO gright.mine VALUES (1, 1);
INSERT INTO gright.mine VALUES (1, 2);
-- a SECURITY DEFINER function writes by its owner's right, on the table and on the lease; the claim has to be good
SET leader_lease.fence = '{"role": "gright", "holder": "a", "token": 1}';
SELECT gright.as_lead('INSERT INTO gright.job VALUES (2)');
SELECT gright.as_lead('INSERT INTO gright.job VALUES (2, 1)');
SET leader_lease.fence = '{"role": "gright", "holder": "a", "token": 2}';
SELECT gright.as_lead('INSERT INTO gright.job VALUES (2)');
SET leader_lease.fence = '{"role": "gright", "holder": "a", "token": 1}';
SELECT gright.as_lead('SELECT lease_require_fence(''gright'', ''a'', 1); INSERT INTO gright.job VALUES (2)');
CREATE FUNCTION gright.as_other(command text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN EXECUTE command; END $$;

-- a member of the owner
SET ROLE gright_worker;
INSERT INTO gright.job VALUES (3);
-- one who would first have to SET ROLE
RESET ROLE;
GRANT ALL ON gright.job TO gright_noinherit;
GRANT USAGE ON SCHEMA gright TO gright_noinherit;
SET ROLE gright_noinherit;
INSERT INTO gright.job VALUES (4);
SET ROLE gright_lead;
INSERT INTO gright.job VALUES (4);
-- and a stranger's by the stranger's, though the leader calls it
SELECT gright.as_other('INSERT INTO gright.job VALUES (5)');

-- a fence belongs to the transaction, whoever writes in it
BEGIN;
SELECT lease_require_fence('gright', 'a', 1);
SET LOCAL ROLE gright_other;
INSERT INTO gright.job VALUES (6);
SAVEPOINT s;
SELECT lease_check_fence('gright', 'a', 1);
ROLLBACK TO s;
COMMIT;
-- the right is asked for anew in each transaction
SET ROLE gright_worker;
INSERT INTO gright.job VALUES (7);
RESET ROLE;
REVOKE gright_lead FROM gright_worker;
GRANT USAGE ON SCHEMA gright TO gright_worker;
GRANT ALL ON gright.job TO gright_worker;
SET ROLE gright_worker;
INSERT INTO gright.job VALUES (8);
RESET ROLE;
-- an owner who is gone leaves the lease to superusers
SELECT lease_set_owner('gright', 'no such role');
SET ROLE gright_lead;
INSERT INTO gright.job VALUES (9);
RESET ROLE;
INSERT INTO gright.job VALUES (10);
SELECT * FROM gright.job ORDER BY id;

DROP FUNCTION gright.as_lead, gright.as_other;
DROP TABLE gright.job, gright.mine;
DROP SCHEMA gright;
DROP ROLE gright_lead, gright_worker, gright_noinherit, gright_other;
