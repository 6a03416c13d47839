-- lease_observe: the highest token that was seen of a resource whose lease lives elsewhere.
CREATE ROLE obs_app LOGIN;
CREATE ROLE obs_other LOGIN;
CREATE FUNCTION state_of(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE command;
    RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE || ' ' || SQLERRM;
END $$;
CREATE FUNCTION locks() RETURNS TABLE (mode text, xid boolean) LANGUAGE sql
    AS 'SELECT mode, pg_current_xact_id_if_assigned() IS NOT NULL FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = ''object''
        AND classid = ''leader_lease_observed''::regclass AND objsubid = 1 ORDER BY mode';
SET ROLE obs_app;
SELECT lease_observe('obs', 33);
-- equal or higher, and below
SELECT t, lease_observe('obs', t) FROM unnest(ARRAY[33, 32, 34, 33, 34, 9223372036854775806, 35]) WITH ORDINALITY u(t, n) ORDER BY n;
SELECT resource, fencing_token, observed_at BETWEEN now() - interval '1 min' AND now() AS just_now, owner FROM lease_observed;
SELECT lease_observe('obs2', 1), lease_observe('obs2', 2), lease_observe('obs', 2);
-- what is nobody's token is none, and makes nothing
SELECT lease_observe('obs2', 0), lease_observe('obs2', -1), lease_observe('obs nobody', 0), lease_observe('obs nobody', -9223372036854775808);
SELECT count(*) FROM lease_observed WHERE resource = 'obs nobody';
SELECT c, state_of('SELECT lease_observe(' || c || ')') FROM unnest(ARRAY['NULL, 1', '''obs'', NULL', ''''', 1', 'repeat(''x'', 256), 1',
    'repeat(''x'', 255), 1']) WITH ORDINALITY u(c, n) ORDER BY n;
-- a lease here of the same name is another thing
SELECT lease_acquire('obs2', 'a', '1 hour'), lease_check_fence('obs2', 'a', 2), lease_observe('obs2', 1), lease_observe('obs2', 2);

-- equal is a lock and writes nothing; a raise is a lock and the row; below is neither
BEGIN;
SELECT lease_observe('obs2', 1);
SELECT * FROM locks();
SELECT lease_observe('obs2', 2), lease_observe('obs2', 2);
SELECT * FROM locks();
SAVEPOINT s;
SELECT lease_observe('obs2', 3), lease_observe('obs2', 2);
SELECT * FROM locks();
ROLLBACK TO s;
-- rolled back, it was never seen
SELECT lease_observe('obs2', 2);
SELECT mode FROM locks();
COMMIT;
SELECT fencing_token FROM lease_observed WHERE resource = 'obs2';
BEGIN;
SAVEPOINT s;
SELECT lease_observe('obs2', 2);
ROLLBACK TO s;
SELECT * FROM locks();
SELECT lease_observe('obs new', 1);
ROLLBACK TO s;
SELECT count(*) FROM lease_observed WHERE resource = 'obs new';
SELECT lease_observe('obs new', 1);
COMMIT;

-- a read-only transaction may observe what is known
BEGIN READ ONLY;
SELECT lease_observe('obs2', 2), lease_observe('obs2', 1), lease_observe('obs2', 0);
SELECT state_of('SELECT lease_observe(''obs2'', 3)'), state_of('SELECT lease_observe(''obs unknown'', 3)');
COMMIT;
-- so may one that is prepared
BEGIN;
SELECT lease_observe('obs2', 2);
PREPARE TRANSACTION 'obs';
SET leader_lease.takeover_timeout = '10ms';
SELECT lease_observe('obs2', 2), lease_observe('obs2', 1);
\set VERBOSITY default
SELECT lease_observe('obs2', 3);
\set VERBOSITY terse
COMMIT PREPARED 'obs';
RESET leader_lease.takeover_timeout;
BEGIN;
SELECT lease_observe('obs2', 3);
PREPARE TRANSACTION 'obs';
SELECT lease_observe('obs2', 2);

-- REPEATABLE READ and SERIALIZABLE
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT lease_observe('obs2', 2), lease_observe('obs2', 3), lease_observe('obs2', 3), lease_observe('obs2', 4), lease_observe('obs rr', 4);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT lease_observe('obs2', 3), lease_observe('obs2', 4), lease_observe('obs2', 5), lease_observe('obs ser', 4);
SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' AND pid = pg_backend_pid() AND relation::regclass::text LIKE 'leader_lease%';
COMMIT;
SELECT resource, fencing_token FROM lease_observed WHERE resource NOT LIKE 'xxx%' ORDER BY resource;

-- for members of the owner alone
SET ROLE obs_other;
SELECT state_of('SELECT lease_observe(''obs2'', 5)'), state_of('SELECT lease_observe(''obs2'', 6)'), state_of('SELECT lease_observe(''obs2'', 1)');
SELECT count(*) FROM lease_observed;
SELECT state_of('SELECT * FROM leader_lease_observed'), state_of('UPDATE leader_lease_observed SET fencing_token = 9');
-- refused before any lock
BEGIN;
SELECT state_of('SELECT lease_observe(''obs2'', 6)');
SELECT * FROM locks();
COMMIT;
RESET ROLE;
GRANT obs_app TO obs_other;
SET ROLE obs_other;
SELECT lease_observe('obs2', 5), lease_observe('obs2', 4);
SET leader_lease.default_owner = 'obs_app';
SELECT lease_observe('obs theirs', 5);
RESET leader_lease.default_owner;
SELECT lease_observe('obs mine', 5);
SELECT resource, owner FROM lease_observed WHERE resource LIKE 'obs %i%' ORDER BY resource;
RESET ROLE;
REVOKE obs_app FROM obs_other;
SELECT lease_observe('obs2', 5) AS superuser;
-- in a SECURITY DEFINER function by its owner's right
CREATE FUNCTION definer(t bigint) RETURNS boolean LANGUAGE sql SECURITY DEFINER AS 'SELECT lease_observe(''obs2'', t)';
ALTER FUNCTION definer OWNER TO obs_app;
SET ROLE obs_other;
SELECT definer(5), definer(4);
BEGIN;
SELECT definer(5);
SELECT state_of('SELECT lease_observe(''obs2'', 5)');
COMMIT;
SET ROLE obs_app;

-- auto_create off
RESET ROLE;
SET leader_lease.auto_create = off;
SET ROLE obs_app;
SELECT state_of('SELECT lease_observe(''obs unknown'', 1)'), lease_observe('obs2', 5);
RESET ROLE;
INSERT INTO leader_lease_observed (resource, owner) VALUES ('obs unknown', 'obs_app');
SET ROLE obs_app;
SELECT lease_observe('obs unknown', 1), lease_observe('obs unknown', 0);
RESET ROLE;
RESET leader_lease.auto_create;

-- statements by hand
GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON leader_lease_observed TO obs_app, obs_other;
SET ROLE obs_app;
INSERT INTO leader_lease_observed (resource, fencing_token) VALUES ('obs hand', 7) RETURNING resource, fencing_token, owner, observed_at IS NOT NULL AS at;
SELECT lease_observe('obs hand', 6), lease_observe('obs hand', 7);
UPDATE leader_lease_observed SET fencing_token = 9 WHERE resource = 'obs hand' RETURNING fencing_token;
SELECT lease_observe('obs hand', 8), lease_observe('obs hand', 9);
SELECT c, state_of('UPDATE leader_lease_observed SET ' || c || ' WHERE resource = ''obs hand''') FROM unnest(ARRAY['fencing_token = 8',
    'fencing_token = NULL', 'resource = ''x''', 'resource = NULL', 'number = 1', 'number = NULL', 'owner = ''obs_other''',
    'owner = repeat(''x'', 64)', 'fencing_token = -1']) WITH ORDINALITY u(c, n) ORDER BY n;
SELECT c, state_of('INSERT INTO leader_lease_observed (resource, fencing_token, owner) VALUES (' || c || ')') FROM unnest(ARRAY['''obs hand'', 9, NULL',
    ''''', 1, NULL', 'NULL, 1, NULL', '''x'', NULL, NULL', '''x'', -1, NULL', '''x'', 1, ''obs_other''', '''x'', 1, ''nobody''', 'repeat(''x'', 256), 1, NULL']) WITH ORDINALITY u(c, n) ORDER BY n;
SELECT state_of('DELETE FROM leader_lease_observed'), state_of('TRUNCATE leader_lease_observed');
-- what the extension itself keeps is not to be had
UPDATE leader_lease_observed SET raised_xid = '1', raised_cid = 1, origin = 0, observed_at = '-infinity' WHERE resource = 'obs hand';
SELECT raised_xid <> '1' AND origin <> 0 AND observed_at > now() - interval '1 min' AS kept FROM leader_lease_observed WHERE resource = 'obs hand';
INSERT INTO leader_lease_observed AS o (resource, fencing_token) VALUES ('obs hand', 12), ('obs hand2', 12)
    ON CONFLICT (resource) DO UPDATE SET fencing_token = GREATEST(o.fencing_token, EXCLUDED.fencing_token);
SELECT resource, fencing_token FROM lease_observed WHERE resource LIKE 'obs hand%' ORDER BY 1;
SELECT count(*) = count(DISTINCT number) AS numbers_differ FROM leader_lease_observed;
-- an observation of the transaction's own ends with the raise
BEGIN;
SELECT lease_observe('obs hand', 12);
UPDATE leader_lease_observed SET fencing_token = 13 WHERE resource = 'obs hand';
SELECT lease_observe('obs hand', 12), lease_observe('obs hand', 13);
ROLLBACK;
SET ROLE obs_other;
SELECT state_of('UPDATE leader_lease_observed SET fencing_token = 99 WHERE resource = ''obs hand''');
RESET ROLE;
UPDATE leader_lease_observed SET owner = 'obs_other' WHERE resource = 'obs hand';
SET ROLE obs_other;
SELECT lease_observe('obs hand', 12);
SET ROLE obs_app;
SELECT state_of('SELECT lease_observe(''obs hand'', 12)');

-- numbers catch up where rows were restored without the sequence
RESET ROLE;
INSERT INTO leader_lease_observed (resource, number, owner) SELECT 'obs restored', last_value + 1, 'obs_app' FROM leader_lease_number;
SET ROLE obs_app;
SELECT lease_observe('obs after', 1);
SELECT a.number > b.number AS above FROM leader_lease_observed a, leader_lease_observed b WHERE a.resource = 'obs after' AND b.resource = 'obs restored';
-- nothing is found through search_path
RESET ROLE;
CREATE SCHEMA obs_trap;
CREATE TABLE obs_trap.leader_lease_observed (LIKE leader_lease_observed);
SET search_path = obs_trap, public;
SELECT lease_observe('obs trap', 1);
SELECT count(*) FROM obs_trap.leader_lease_observed;
RESET search_path;
DROP TABLE obs_trap.leader_lease_observed;
DROP SCHEMA obs_trap;

REVOKE ALL ON leader_lease_observed FROM obs_app, obs_other;
DROP FUNCTION state_of, locks, definer;
DROP ROLE obs_app, obs_other;
