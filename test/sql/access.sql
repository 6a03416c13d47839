-- Who may: members of a lease's owner, and nobody else.
CREATE ROLE acc_owner NOLOGIN;
CREATE ROLE acc_app NOLOGIN IN ROLE acc_owner;
CREATE ROLE acc_other NOLOGIN;
CREATE ROLE acc_mon NOLOGIN IN ROLE pg_monitor;
CREATE ROLE "acc ""quoted" NOLOGIN;

SET ROLE acc_app;
SET leader_lease.default_owner = 'acc_owner';
SELECT lease_acquire('acc', 'h', '1 hour');
SELECT owner FROM lease_status WHERE role = 'acc';
-- where the creator is no member of it, the creator
SET leader_lease.default_owner = 'acc_other';
SELECT lease_acquire('acc2', 'h', '1 hour');
SELECT owner FROM lease_status WHERE role = 'acc2';
SET leader_lease.default_owner = 'no such role';
SELECT lease_acquire('acc3', 'h', '1 hour');
SELECT owner FROM lease_status WHERE role = 'acc3';
RESET leader_lease.default_owner;

-- a stranger can do nothing, and hold up nothing
SET ROLE acc_other;
SELECT lease_acquire('acc', 'h');
SELECT lease_attempt('acc', 'h');
SELECT lease_renew('acc', 'h', 1);
SELECT lease_check_fence('acc', 'h', 1);
SELECT lease_require_fence('acc', 'h', 1);
SELECT lease_release('acc', 'h', 1);
SELECT lease_set_owner('acc', 'acc_other');
BEGIN;
SELECT lease_check_fence('acc', 'h', 1);
ROLLBACK;
SELECT count(*) FROM lease_status WHERE role LIKE 'acc%';
SELECT * FROM leader_lease;
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at) VALUES ('acc', 'x', 9, now());
UPDATE leader_lease SET expires_at = now();
SELECT * FROM leader_lease_origin;
SELECT nextval('leader_lease_number');
SELECT lease_create('acc4', 'acc_app');
SELECT lease_create('acc4', 'acc_owner');

-- a monitor sees, and may not touch
SET ROLE acc_mon;
SELECT role, holder_id, state FROM lease_status WHERE role LIKE 'acc%' ORDER BY role;
SELECT lease_check_fence('acc', 'h', 1);

-- whoever was not in the backend's memory before is asked anew
SET ROLE acc_app;
BEGIN;
SELECT lease_check_fence('acc', 'h', 1);
SET LOCAL ROLE acc_other;
SELECT lease_check_fence('acc', 'h', 1);
ROLLBACK;

-- another owner: the old one's members are out, what a backend remembers or not
SET ROLE acc_app;
SELECT lease_set_owner('acc2', 'acc_other');
SELECT lease_set_owner('acc2', 'acc_owner');
SELECT lease_check_fence('acc2', 'h', 1);
RESET ROLE;
SELECT lease_set_owner('acc2', 'acc_other');
SET ROLE acc_app;
SELECT lease_check_fence('acc2', 'h', 1);
SET ROLE acc_other;
SELECT lease_check_fence('acc2', 'h', 1);

-- a role that is missing leaves a lease to superusers
RESET ROLE;
SELECT lease_create('acc5', 'acc "quoted');
SET ROLE "acc ""quoted";
SELECT lease_acquire('acc5', 'h', '1 hour');
RESET ROLE;
DROP ROLE "acc ""quoted";
SELECT lease_check_fence('acc5', 'h', 1);
SELECT owner, live FROM lease_status WHERE role = 'acc5';
SET ROLE acc_app;
SELECT lease_check_fence('acc5', 'h', 1);
SELECT count(*) FROM lease_status WHERE role = 'acc5';
RESET ROLE;
SELECT lease_set_owner('acc5', 'acc_app');

-- table privileges do not go past the owner rule
GRANT SELECT, INSERT, UPDATE ON leader_lease TO acc_other;
SET ROLE acc_other;
UPDATE leader_lease SET expires_at = now() WHERE role = 'acc';
UPDATE leader_lease SET owner = 'acc_owner' WHERE role = 'acc2';
UPDATE leader_lease SET usual_ttl = '1 min' WHERE role = 'acc2';
INSERT INTO leader_lease (role, owner) VALUES ('acc6', 'acc_owner');
INSERT INTO leader_lease (role) VALUES ('acc6');
SELECT owner, state FROM lease_status WHERE role = 'acc6';
RESET ROLE;
REVOKE ALL ON leader_lease FROM acc_other;

-- auto_create and max_ttl are the superuser's
SET ROLE acc_app;
SET leader_lease.auto_create = off;
SET leader_lease.max_ttl = '2 days';
RESET ROLE;

-- nothing is found through search_path
CREATE SCHEMA acc_trap;
GRANT ALL ON SCHEMA acc_trap TO acc_app;
SET ROLE acc_app;
CREATE TABLE acc_trap.leader_lease (role text PRIMARY KEY, holder_id text);
CREATE FUNCTION acc_trap.lease_fence() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TABLE acc_trap.job (id int);
SET search_path = acc_trap;
SELECT public.lease_acquire('acc7', 'h');
SELECT count(*) FROM acc_trap.leader_lease;
SELECT public.lease_protect('acc_trap.job', 'acc7');
INSERT INTO job VALUES (1);
SELECT role, holder_id, live FROM public.lease_status WHERE role = 'acc7';
RESET search_path;
RESET ROLE;
DROP SCHEMA acc_trap CASCADE;
