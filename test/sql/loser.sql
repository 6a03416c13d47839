-- Who loses writes nothing, and holds nothing.
CREATE ROLE loser_app NOLOGIN;
CREATE FUNCTION wal_records(command text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE plan jsonb;
BEGIN
    EXECUTE 'EXPLAIN (ANALYZE, WAL, FORMAT json) ' || command INTO plan;
    RETURN (plan->0->'Plan'->>'WAL Records')::bigint;
END $$;
SET ROLE loser_app;
SELECT lease_acquire('lose', 'a', '1 hour');

BEGIN;
SELECT lease_acquire('lose', 'b');
SELECT token FROM lease_attempt('lose', 'b');
SELECT lease_check_fence('lose', 'b', 1), lease_renew('lose', 'b', 1), lease_release('lose', 'b', 1);
SELECT pg_current_xact_id_if_assigned();
SELECT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'leader_lease'::regclass AND mode <> 'AccessShareLock';
SELECT locktype, mode FROM pg_locks WHERE pid = pg_backend_pid() AND locktype IN ('object', 'tuple', 'transactionid', 'page');
SELECT count(*) FROM lease_locks;
COMMIT;

SELECT wal_records('SELECT lease_acquire(''lose'', ''b'')') AS losing,
       wal_records('SELECT lease_acquire(''lose'', ''a'')') > 0 AS renewing,
       wal_records('SELECT lease_acquire(''lose'', ''b'')') AS losing_again;

-- a fence is a lock and nothing else
BEGIN;
SELECT lease_check_fence('lose', 'a', 1);
SELECT pg_current_xact_id_if_assigned();
SELECT role, mode, granted, pid = pg_backend_pid() AS mine FROM lease_locks;
SELECT role, open_fences, waiters FROM lease_status;
COMMIT;
SELECT count(*) FROM lease_locks;
RESET ROLE;
DROP FUNCTION wal_records;
