-- lease_renew_all: what a holder has, prolonged; what is missing is lost.
CREATE ROLE all_app NOLOGIN;
CREATE ROLE all_other NOLOGIN;
GRANT SELECT, INSERT, UPDATE ON leader_lease TO all_app;
-- what only time and a failover do otherwise
CREATE FUNCTION all_set(lease text, what text, value text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET session_replication_role = replica AS $$
BEGIN
    EXECUTE format('UPDATE leader_lease SET %I = %s WHERE role = %L', what, value, lease);
END $$;
SET ROLE all_app;

-- all live terms, in the order of the names (by bytes, whatever the locale)
SELECT * FROM lease_renew_all('a');
SELECT count(lease_acquire('all ' || n, 'a', '1 hour'))
  FROM unnest(ARRAY['b', 'C', 'a', '10', '9', U&'\00e9', 'longer than b', 'b ', 'lost']) n;
SELECT lease_acquire('all of b', 'b', '1 hour'), lease_create('all free');
SELECT * FROM lease_renew_all('a');
-- with the ttl given, which they keep then
SELECT role, ttl FROM lease_renew_all('a', '2 hours') LIMIT 2;
SELECT role, ttl FROM lease_renew_all('a') LIMIT 2;
SELECT role, holder_id, fencing_token, ttl, expires_at > now() + '119 min' AS prolonged
  FROM lease_status WHERE role LIKE 'all %' ORDER BY role;

-- what is over is missing, and stays over
SELECT lease_release('all 10', 'a', 1), lease_revoke('all 9'), lease_revoke('all C', 'b'), all_set('all a', 'deadline', '1'),
       all_set('all b', 'origin', 'origin + 1'), all_set('all b ', 'session', '4294967295'), lease_transfer('all longer than b', 'a', 1, 'b');
SELECT * FROM lease_renew_all('a');
SELECT role, state, live FROM lease_status WHERE role LIKE 'all %' ORDER BY role;
-- the new holder has what was handed to him, with its new token
SELECT * FROM lease_renew_all('b');

-- only what the caller may use
RESET ROLE;
GRANT all_app TO all_other;
SET ROLE all_other;
SELECT lease_acquire('all other''s', 'a', '1 hour');
SELECT role FROM lease_renew_all('a', '3 hours');
SET ROLE all_app;
SELECT role FROM lease_renew_all('a', '4 hours');
RESET ROLE;
REVOKE all_app FROM all_other;
SET ROLE all_other;
SELECT role FROM lease_renew_all('a', '5 hours');
SELECT lease_release_all('a'), lease_release_all('b');
RESET ROLE;
SELECT role, ttl FROM leader_lease WHERE role LIKE 'all %' AND holder_id = 'a' AND ended IS NULL AND deadline > 1 ORDER BY role;
SET ROLE all_app;

-- one that was renewed, released or taken in the same transaction
SELECT lease_release_all('a'), lease_release_all('b');
BEGIN;
SELECT count(*) FROM lease_acquire_any(ARRAY['all t1', 'all t2', 'all t3'], 'a', 3);
SELECT * FROM lease_renew_all('a', '1 hour');
SELECT lease_renew('all t1', 'a', 1, '2 hours'), lease_release('all t2', 'a', 1);
SELECT * FROM lease_renew_all('a');
SELECT lease_acquire('all t2', 'a', '3 hours');
SELECT * FROM lease_renew_all('a');
SAVEPOINT s;
SELECT * FROM lease_renew_all('a', '4 hours');
ROLLBACK TO s;
COMMIT;
SELECT role, fencing_token, ttl FROM lease_status WHERE role LIKE 'all t%' ORDER BY role;
-- twice in one statement
SELECT x.role, x.ttl, y.ttl FROM lease_renew_all('a', '5 hours') x JOIN lease_renew_all('a') y USING (role);

-- a row that the transaction itself has locked, and that it made by hand
BEGIN;
SELECT role FROM leader_lease WHERE role LIKE 'all t%' ORDER BY role FOR UPDATE;
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at) VALUES ('all t0', 'a', 7, clock_timestamp() + interval '1 hour');
SELECT role, token FROM lease_renew_all('a');
COMMIT;
-- a row that the very statement changes
UPDATE leader_lease SET usual_ttl = '1 min' WHERE role = 'all t1' RETURNING (SELECT max(ttl) FROM lease_renew_all('a'));

-- a fence stays open, and a bound session bound
BEGIN;
SELECT lease_check_fence('all t1', 'a', 1), lease_bind_session('all t1', 'a', 1);
SELECT role FROM lease_renew_all('a');
SELECT lease_check_fence('all t1', 'a', 1);
COMMIT;
SELECT role FROM lease_renew_all('a');
DISCARD ALL;
SET ROLE all_app;
SELECT role FROM lease_renew_all('a');

-- in each level
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT role, ttl FROM lease_renew_all('a', '1 hour');
SELECT role, ttl FROM lease_renew_all('a', '2 hours');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT role, ttl FROM lease_renew_all('a', '3 hours');
SELECT count(*) FROM lease_acquire_any(ARRAY['all t4', 'all t5'], 'serial', 2);
SELECT lease_release_all('serial');
-- strangers are not made to fail by what these looked at: of the record of origins nothing ever changes but at a failover
SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' AND pid = pg_backend_pid() AND relation <> 'leader_lease_origin'::regclass;
COMMIT;

-- renewals are HOT updates: the index on the holder does not stand in the way
SELECT count(*) FROM lease_acquire_any((SELECT array_agg('all h' || i) FROM generate_series(1, 50) i), 'hot', 50);
SELECT count(*) FROM lease_renew_all('hot', '1 hour');
BEGIN;
SELECT pg_stat_get_xact_tuples_hot_updated('leader_lease'::regclass) AS before \gset
SELECT count(*) FROM lease_renew_all('hot', '1 hour');
-- some might be others where an old snapshot keeps VACUUM off
SELECT pg_stat_get_xact_tuples_hot_updated('leader_lease'::regclass) - :before > 40 AS hot;
COMMIT;
RESET ROLE;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
EXPLAIN (COSTS OFF) SELECT role FROM leader_lease WHERE holder_id = 'hot' ORDER BY role;
RESET enable_seqscan;
RESET enable_bitmapscan;
-- without that index it is slower, and does the same
BEGIN;
DROP INDEX leader_lease_holder_id_role_idx;
SELECT count(*), array_agg(role) = array_agg(role ORDER BY role COLLATE "C") AS ordered FROM lease_renew_all('hot');
ROLLBACK;
-- an index of somebody's in another order is not the one to look in
BEGIN;
SELECT count(*) FROM lease_acquire_any((SELECT array_agg('all i' || i) FROM generate_series(1, 50) i), 'HOT', 50);
DO $$ BEGIN
    -- there is none where PostgreSQL was built without ICU
    IF EXISTS (SELECT FROM pg_collation WHERE collname = 'und-x-icu') THEN
        CREATE INDEX ON leader_lease (holder_id COLLATE "und-x-icu");
    END IF;
END $$;
SELECT count(*) FROM lease_renew_all('hot');
SELECT lease_release_all('HOT');
ROLLBACK;
SET ROLE all_app;

-- errors
SELECT lease_renew_all(NULL);
SELECT lease_renew_all('');
SELECT lease_renew_all(repeat('x', 256));
SELECT lease_renew_all('a', '0');
SELECT lease_renew_all('a', '-1 hour');
SELECT lease_renew_all('a', '2 days');
\set VERBOSITY sqlstate
SELECT lease_renew_all(NULL);
BEGIN READ ONLY;
SELECT lease_renew_all('a');
ROLLBACK;
\set VERBOSITY default

-- a call writes nothing to the history, and nothing at all where there is nothing
SELECT count(*) FROM lease_history WHERE role LIKE 'all h%';
BEGIN;
SELECT * FROM lease_renew_all('nobody');
SELECT pg_current_xact_id_if_assigned();
SELECT locktype, mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'leader_lease'::regclass;
COMMIT;
RESET ROLE;
REVOKE ALL ON leader_lease FROM all_app;
DROP FUNCTION all_set;

-- a ttl above a max_ttl that was lowered since is cut, and the others' is kept
RESET ROLE;
SELECT lease_acquire('cut long', 'cut', '2 hours'), lease_acquire('cut short', 'cut', '10 min');
SET leader_lease.max_ttl = '1h';
SELECT * FROM lease_renew_all('cut');
SELECT lease_renew('cut long', 'cut', 1, '2 hours');
RESET leader_lease.max_ttl;
SELECT lease_release_all('cut');
