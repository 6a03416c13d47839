-- lease_history: one row a term, who had it, and when and why it ended.
CREATE ROLE his_app NOLOGIN;
CREATE ROLE his_other NOLOGIN;
CREATE ROLE his_mon NOLOGIN IN ROLE pg_monitor;
CREATE ROLE his_gone NOLOGIN;
GRANT SELECT, INSERT, UPDATE ON leader_lease TO his_app;
CREATE VIEW ends AS SELECT role, fencing_token AS token, holder_id AS holder, ended_at IS NOT NULL AS over, end_reason AS reason
  FROM lease_history ORDER BY role, fencing_token;
GRANT SELECT ON ends TO PUBLIC;
-- what only time, a failover and a connection's end do otherwise
CREATE FUNCTION his_set(lease text, what text, value text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET session_replication_role = replica AS $$
BEGIN
    EXECUTE format('UPDATE leader_lease SET %I = %s WHERE role = %L', what, value, lease);
END $$;

-- who
SET ROLE his_app;
SET application_name = 'leader of jobs';
SELECT lease_acquire('his', 'a', '1 hour');
SELECT fencing_token, holder_id, db_user, application_name, client_addr IS NOT DISTINCT FROM inet_client_addr() AS address,
       pid = pg_backend_pid() AS pid, ended_at, end_reason FROM lease_history WHERE role = 'his';
SELECT h.acquired_at = s.acquired_at AS when FROM lease_history h JOIN lease_status s USING (role) WHERE role = 'his';
SET application_name = 'another';

-- a renewal writes nothing, nor does who loses
RESET ROLE;
SELECT xmin AS before FROM leader_lease_history WHERE role = 'his' \gset
SET ROLE his_app;
SELECT lease_renew('his', 'a', 1), lease_acquire('his', 'a'), lease_acquire('his', 'b'), lease_release('his', 'a', 2), lease_transfer('his', 'b', 1, 'c'),
       lease_check_fence('his', 'a', 1), lease_bind_session('his', 'a', 1);
UPDATE leader_lease SET expires_at = clock_timestamp() + interval '2 hours' WHERE role = 'his';
RESET ROLE;
SELECT xmin = :'before'::xid AS same, application_name FROM leader_lease_history WHERE role = 'his';
SET ROLE his_app;

-- each end
SELECT lease_release('his', 'a', 1), lease_acquire('his', 'b', '1 hour'), lease_transfer('his', 'b', 2, 'c'),
       lease_revoke('his'), lease_revoke('his', 'd'), lease_revoke('his', 'e');
SELECT * FROM ends WHERE role = 'his';
-- each term ends when the next begins, or before
SELECT fencing_token, ended_at <= lead(acquired_at) OVER w AS in_order, ended_at >= acquired_at AS positive
  FROM lease_history WHERE role = 'his' WINDOW w AS (ORDER BY fencing_token);
-- a transfer and a revocation with a successor leave no gap
SELECT a.end_reason FROM lease_history a JOIN lease_history b ON b.role = a.role AND b.acquired_at = a.ended_at WHERE a.role = 'his' ORDER BY a.fencing_token;
-- it ran out: the end is that, not when it was noticed, whoever notices
SELECT lease_acquire('his ' || kind, 'a', '1 hour') FROM unnest(ARRAY['run', 'run2', 'run3', 'run4', 'run5']) kind;
SELECT lease_renew('his run2', 'a', 1, '90 min');
-- (time passes for both clocks, and a little more for the one that decides)
SELECT his_set('his run', 'deadline', 'deadline - 7200300000'), his_set('his run', 'expires_at', 'expires_at - interval ''2 hours'''),
       his_set('his run2', 'deadline', 'deadline - 7200000000'), his_set('his run2', 'expires_at', 'expires_at - interval ''2 hours'''),
       his_set('his run3', 'deadline', 'deadline - 7200000000'), his_set('his run3', 'expires_at', 'expires_at - interval ''2 hours'''),
       his_set('his run4', 'deadline', 'deadline - 7200000000'), his_set('his run4', 'expires_at', 'expires_at - interval ''2 hours''');
SELECT role, end_reason FROM lease_history WHERE role LIKE 'his run%' ORDER BY role;
SELECT lease_acquire('his run', 'b'), lease_acquire('his run2', 'a'), lease_revoke('his run3');
UPDATE leader_lease SET holder_id = 'b', fencing_token = 2, expires_at = clock_timestamp() + interval '1 hour' WHERE role = 'his run4';
SELECT role, end_reason, ended_at + interval '2 hours' - acquired_at AS lasted FROM lease_history WHERE role IN ('his run', 'his run3', 'his run4') AND fencing_token = 1 ORDER BY role;
SELECT end_reason, ended_at + interval '2 hours' - acquired_at >= '90 min' AS lasted FROM lease_history WHERE role = 'his run2' AND fencing_token = 1;
-- the clock was stepped meanwhile: it ran out an hour ago by the clock as it is now
SELECT his_set('his run5', 'deadline', 'deadline - 7200000000');
SELECT lease_acquire('his run5', 'b');
SELECT end_reason, ended_at BETWEEN now() - interval '65 min' AND now() - interval '55 min' AS an_hour_ago FROM lease_history WHERE role = 'his run5' AND fencing_token = 1;

-- a failover, and a session that has ended, are the reason, whatever ends it for good
SELECT lease_acquire('his ' || kind, 'a', '1 hour') FROM unnest(ARRAY['fail', 'fail2', 'fail3', 'gone', 'gone2', 'gone3', 'gone4']) kind;
SELECT his_set('his ' || kind, 'origin', '1') FROM unnest(ARRAY['fail', 'fail2', 'fail3']) kind;
-- (a key that no session holds)
SELECT his_set('his ' || kind, 'session', '4294967295') FROM unnest(ARRAY['gone', 'gone2', 'gone3', 'gone4']) kind;
SELECT lease_acquire('his fail', 'a') > 2, lease_revoke('his fail2') > 2, lease_release('his fail3', 'a', 1);
UPDATE leader_lease SET expires_at = clock_timestamp() WHERE role = 'his fail3';
SELECT lease_acquire('his gone', 'b'), lease_revoke('his gone2'), lease_revoke('his gone3', 'b'), lease_transfer('his gone4', 'a', 1, 'b');
UPDATE leader_lease SET holder_id = 'b', fencing_token = 2 WHERE role = 'his gone4';
SELECT role, holder, reason FROM ends WHERE (role LIKE 'his gone%' OR role LIKE 'his fail%') AND token = 1;
SELECT role, count(*) FROM ends WHERE role LIKE 'his gone%' OR role LIKE 'his fail%' GROUP BY role ORDER BY role;

-- by hand
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at) VALUES ('his hand', 'a', 5, clock_timestamp() + interval '1 hour');
UPDATE leader_lease SET holder_id = 'b', fencing_token = 6 WHERE role = 'his hand';
UPDATE leader_lease SET expires_at = clock_timestamp() WHERE role = 'his hand';
UPDATE leader_lease SET expires_at = clock_timestamp() WHERE role = 'his hand';
UPDATE leader_lease SET expires_at = clock_timestamp() + interval '1 hour' WHERE role = 'his hand';
UPDATE leader_lease SET fencing_token = 20, expires_at = clock_timestamp() WHERE role = 'his hand';
UPDATE leader_lease SET fencing_token = 30, expires_at = clock_timestamp() WHERE role = 'his hand';
-- an upsert that conflicts leaves no row of what it would have inserted
PREPARE upsert AS INSERT INTO leader_lease AS l (role, holder_id, fencing_token, expires_at) VALUES ('his hand', $1, 1, clock_timestamp() + interval '1 hour')
    ON CONFLICT (role) DO UPDATE SET holder_id = EXCLUDED.holder_id, fencing_token = l.fencing_token + 1, expires_at = EXCLUDED.expires_at
    WHERE l.expires_at <= clock_timestamp() RETURNING fencing_token;
EXECUTE upsert('c');
EXECUTE upsert('d');
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at) VALUES ('his hand', 'e', 1, clock_timestamp() + interval '1 hour') ON CONFLICT DO NOTHING;
SELECT * FROM ends WHERE role = 'his hand';
SELECT db_user, application_name, pid = pg_backend_pid() AS pid FROM lease_history WHERE role = 'his hand' AND fencing_token = 5;
-- a table of old that moves over: what is over has no history, what lives has
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at) VALUES ('his old', 'a', 41, now() - interval '1 hour');
SELECT lease_acquire('his old', 'b');
SELECT * FROM ends WHERE role = 'his old';
-- what a dump brings began elsewhere, in a transaction that may have had just this number
RESET ROLE;
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at, number, owner, ttl, acquired_at, renewed_at, origin, granted_xid, granted_cid)
    SELECT 'his restored', 'a', 7, now() + interval '1 hour', last_value + 1000, 'his_app', '1 hour', now(), now(), 1, pg_current_xact_id(), 0 FROM leader_lease_number;
SELECT state FROM lease_status WHERE role = 'his restored';
SELECT * FROM ends WHERE role = 'his restored';
SET ROLE his_app;

-- rolled back, nothing happened
BEGIN;
SELECT lease_acquire('his back', 'a', '1 hour'), lease_release('his', 'e', 6);
ROLLBACK;
BEGIN;
SELECT lease_acquire('his back', 'a', '1 hour');
SAVEPOINT s;
SELECT lease_transfer('his back', 'a', 1, 'b'), lease_release('his', 'e', 6);
ROLLBACK TO s;
COMMIT;
SELECT * FROM ends WHERE role = 'his back' OR role = 'his' AND token = 6;

-- its owner's members see it, and monitors
SET ROLE his_other;
SELECT count(*) FROM lease_history WHERE role LIKE 'his%';
SELECT count(*) FROM leader_lease_history;
DELETE FROM leader_lease_history;
SELECT lease_acquire('his of another', 'a', '1 hour');
SELECT role FROM lease_history WHERE role LIKE 'his%';
SET ROLE his_mon;
SELECT count(*) > 10 AS all_of_it, count(DISTINCT db_user) AS users FROM lease_history WHERE role LIKE 'his%';
SET ROLE his_app;
SELECT count(*) FROM lease_history WHERE role = 'his of another';

-- retention is the superuser's
SET leader_lease.history_retention = 0;
RESET ROLE;

-- 0 keeps none; what ends then stays as it was
SET leader_lease.history_retention = 0;
SELECT lease_acquire('his none', 'a', '1 hour'), lease_transfer('his none', 'a', 1, 'b'), lease_release('his none', 'b', 2), lease_revoke('his none');
SELECT count(*) FROM lease_history WHERE role = 'his none';
-- switched on again, terms that began meanwhile have no row, and the next has
RESET leader_lease.history_retention;
SELECT lease_acquire('his none', 'c', '1 hour');
SELECT * FROM ends WHERE role = 'his none';

-- a few old rows go with each grant, whosever they are, oldest first; not what has not ended
CREATE PROCEDURE age(lease text, n int) LANGUAGE sql AS $$
    INSERT INTO leader_lease_history (role, fencing_token, holder_id, db_user, acquired_at, ended_at, end_reason)
        SELECT lease, i, 'a', 'x', now() - interval '200 days', now() - make_interval(days => 100 - i), 'released' FROM generate_series(1, n) i
$$;
CALL age('his of another', 6);
INSERT INTO leader_lease_history (role, fencing_token, holder_id, db_user, acquired_at) VALUES ('his of another', 9, 'a', 'x', now() - interval '200 days');
CREATE VIEW aged AS SELECT array_agg(fencing_token ORDER BY fencing_token) AS left FROM leader_lease_history WHERE role = 'his of another' AND db_user = 'x';
SET leader_lease.history_retention = -1;
SELECT lease_acquire('his p1', 'a', '1 hour');
TABLE aged;
SET leader_lease.history_retention = '99d';
SELECT lease_acquire('his p2', 'a', '1 hour');
TABLE aged;
RESET leader_lease.history_retention;
-- neither a renewal nor an end takes any
SELECT lease_renew('his p2', 'a', 1), lease_release('his p2', 'a', 1), lease_acquire('his p1', 'b');
TABLE aged;
SELECT lease_acquire('his p2', 'a', '1 hour');
TABLE aged;
SELECT lease_transfer('his p2', 'a', 2, 'b');
TABLE aged;
CALL age('his of another', 6);
SET leader_lease.history_retention = '1min';
UPDATE leader_lease SET fencing_token = 4 WHERE role = 'his p2';
TABLE aged;
BEGIN;
SELECT lease_acquire('his p3', 'a', '1 hour');
TABLE aged;
ROLLBACK;
TABLE aged;
SET leader_lease.history_retention = 2147483647;
SELECT lease_acquire('his p3', 'a', '1 hour');
RESET leader_lease.history_retention;

-- lease_prune_history: of leases that the caller may use
SELECT lease_create('his mine', 'his_app');
SELECT lease_create('his orphan', 'his_gone');
DROP ROLE his_gone;
DELETE FROM leader_lease_history WHERE db_user = 'x';
CALL age('his mine', 5);
CALL age('his of another', 5);
CALL age('his orphan', 5);
CALL age('his unknown', 5);
CREATE VIEW left_over AS SELECT role, count(*) FROM leader_lease_history WHERE db_user = 'x' GROUP BY role ORDER BY role;
SET ROLE his_app;
SELECT lease_prune_history(NULL);
SELECT lease_prune_history('101 days');
SELECT lease_prune_history('97 days');
SELECT lease_prune_history('80 days');
SELECT lease_prune_history('80 days');
SELECT count(*) FROM lease_history WHERE role = 'his mine';
SELECT count(*) FROM lease_history WHERE role = 'his' AND ended_at IS NULL;
RESET ROLE;
TABLE left_over;
SET ROLE his_mon;
SELECT lease_prune_history('80 days');
BEGIN READ ONLY;
SELECT lease_prune_history('80 days');
ROLLBACK;
SET ROLE his_other;
SELECT lease_prune_history('80 days');
RESET ROLE;
TABLE left_over;
SELECT lease_prune_history('80 days');
TABLE left_over;
-- what has not ended stays, whatever is asked
SET ROLE his_other;
SELECT lease_prune_history('0'), lease_prune_history('-1 day');
SELECT * FROM ends WHERE role = 'his of another';
RESET ROLE;

-- stale rows with the same token refuse no grant; one that is open is closed with it
INSERT INTO leader_lease_history (role, fencing_token, holder_id, db_user, acquired_at) VALUES ('his stale', 1, 'old', 'x', 'epoch');
INSERT INTO leader_lease_history (role, fencing_token, holder_id, db_user, acquired_at, ended_at, end_reason)
    VALUES ('his stale', 1, 'older', 'x', 'epoch', now() - interval '1 day', 'expired');
SELECT lease_acquire('his stale', 'a', '1 hour'), lease_release('his stale', 'a', 1);
SELECT * FROM ends WHERE role = 'his stale' ORDER BY holder;
-- no row of a term is no obstacle to its end
SELECT lease_acquire('his lost', 'a', '1 hour');
DELETE FROM leader_lease_history WHERE role = 'his lost';
SELECT lease_release('his lost', 'a', 1);
SELECT * FROM ends WHERE role = 'his lost';
-- a column of a DBA's, with a default
ALTER TABLE leader_lease_history ADD COLUMN note text NOT NULL DEFAULT 'none';
SELECT lease_acquire('his column', 'a', '1 hour'), lease_release('his column', 'a', 1);
SELECT note, end_reason FROM leader_lease_history WHERE role = 'his column';
SELECT * FROM ends WHERE role = 'his column';
-- what refuses the row refuses the grant, and changes nothing; history_retention gets around it
ALTER TABLE leader_lease_history ALTER note DROP DEFAULT;
\set VERBOSITY terse
SELECT lease_acquire('his column', 'b', '1 hour');
SELECT lease_acquire('his column2', 'b', '1 hour');
\set VERBOSITY default
SELECT role, state, fencing_token FROM lease_status WHERE role LIKE 'his column%';
SET leader_lease.history_retention = 0;
SELECT lease_acquire('his column', 'b', '1 hour');
RESET leader_lease.history_retention;
-- an end needs no new row
SELECT lease_release('his column', 'b', 2);
ALTER TABLE leader_lease_history DROP COLUMN note;
-- a column that is no longer what it was is told, and the lease is as before
SELECT lease_acquire('his column', 'c', '1 hour');
BEGIN;
ALTER TABLE leader_lease_history RENAME end_reason TO why;
SAVEPOINT s;
SELECT lease_release('his column', 'c', 3);
ROLLBACK TO s;
ALTER TABLE leader_lease_history RENAME why TO end_reason;
ALTER TABLE leader_lease_history ADD extra int, ADD CHECK (end_reason <> 'transferred') NOT VALID, ADD more text GENERATED ALWAYS AS (end_reason || '!') STORED;
CREATE INDEX ON leader_lease_history (upper(end_reason));
SAVEPOINT s;
\set VERBOSITY terse
SELECT lease_transfer('his column', 'c', 3, 'd');
\set VERBOSITY default
ROLLBACK TO s;
-- checks, indexes and generated columns are kept
SELECT lease_release('his column', 'c', 3);
SET LOCAL enable_seqscan = off;
SELECT fencing_token, more FROM leader_lease_history WHERE upper(end_reason) = 'RELEASED' AND role = 'his column' ORDER BY 1;
ROLLBACK;
-- nor does it need its indexes
BEGIN;
DO $$
DECLARE
    i regclass;
BEGIN
    FOR i IN SELECT indexrelid FROM pg_index WHERE indrelid = 'leader_lease_history'::regclass LOOP
        EXECUTE format('DROP INDEX %s', i);
    END LOOP;
END $$;
SELECT lease_release('his column', 'c', 3), lease_acquire('his column', 'd', '1 hour');
SELECT token, holder, reason FROM ends WHERE role = 'his column';
ROLLBACK;

-- nothing is found through search_path
CREATE SCHEMA his_trap;
CREATE FUNCTION his_trap.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''infinity''::timestamptz';
CREATE FUNCTION his_trap.pg_backend_pid() RETURNS int LANGUAGE sql AS 'SELECT -1';
CREATE TABLE his_trap.leader_lease_history (LIKE leader_lease_history);
SET search_path = his_trap, pg_catalog, public;
SELECT lease_acquire('his trap', 'a', '1 hour'), lease_release('his trap', 'a', 1);
RESET search_path;
SELECT pid = pg_backend_pid() AS pid, end_reason FROM lease_history WHERE role = 'his trap';
SELECT count(*) FROM his_trap.leader_lease_history;
SET client_min_messages = warning;
DROP SCHEMA his_trap CASCADE;
RESET client_min_messages;

RESET application_name;
DELETE FROM leader_lease_history WHERE db_user = 'x';
DROP VIEW ends, aged, left_over;
DROP FUNCTION his_set;
DROP PROCEDURE age;
REVOKE ALL ON leader_lease FROM his_app;
