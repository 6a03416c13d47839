-- lease_acquire_any: free leases of a list, as many as wanted.
CREATE ROLE any_app NOLOGIN;
CREATE ROLE any_other NOLOGIN;
-- what only time and a failover do otherwise
CREATE FUNCTION any_set(lease text, what text, value text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET session_replication_role = replica AS $$
BEGIN
    EXECUTE format('UPDATE leader_lease SET %I = %s WHERE role = %L', what, value, lease);
END $$;
SET ROLE any_app;

-- absent leases are made, all of them where that many are wanted; then none is free
SELECT * FROM lease_acquire_any(ARRAY['any1', 'any2', 'any3'], 'a', 10, '1 hour') ORDER BY role;
SELECT * FROM lease_acquire_any(ARRAY['any1', 'any2', 'any3'], 'b', 10);
-- the holder's own live ones are not renewed
SELECT * FROM lease_acquire_any(ARRAY['any1', 'any2', 'any3'], 'a', 10, '2 hours');
SELECT role, holder_id, fencing_token, ttl FROM lease_status WHERE role LIKE 'any%' ORDER BY role;

-- released, expired, revoked, failed over: free, with the next token
SELECT lease_release('any1', 'a', 1), lease_revoke('any2'), any_set('any3', 'deadline', '1');
SELECT * FROM lease_acquire_any(ARRAY['any1', 'any2', 'any3', 'any4'], 'b', 10, '1 hour') ORDER BY role;
SELECT any_set('any1', 'origin', 'origin + 1'), any_set('any2', 'origin', 'origin + 1'), any_set('any2', 'deadline', '1');
-- a live term of before a failover keeps others out, and is over for its own holder
SELECT role, token > 2 AS higher FROM lease_acquire_any(ARRAY['any1'], 'c', 10);
SELECT role, token > 2 AS higher FROM lease_acquire_any(ARRAY['any1', 'any2'], 'b', 10) ORDER BY role;

-- a term's ttl: the one given, else the lease's own, else the setting's
SELECT lease_create('any ttl', ttl => '5 min');
SET leader_lease.default_ttl = '7s';
SELECT role, ttl FROM lease_acquire_any(ARRAY['any ttl', 'any no ttl'], 'a', 2) ORDER BY role;
SELECT lease_release_all('a');
SELECT role, ttl FROM lease_acquire_any(ARRAY['any ttl', 'any no ttl'], 'a', 2, '1 min') ORDER BY role;
RESET leader_lease.default_ttl;

-- at most max_n
SELECT count(*) FROM lease_acquire_any((SELECT array_agg('any n' || i) FROM generate_series(1, 10) i), 'a', 3);
SELECT count(*) FROM lease_acquire_any((SELECT array_agg('any n' || i) FROM generate_series(1, 10) i), 'a', 3);
SELECT count(*) FROM lease_acquire_any((SELECT array_agg('any n' || i) FROM generate_series(1, 10) i), 'b', 10);
SELECT holder_id, count(*) FROM lease_status WHERE role LIKE 'any n%' AND live GROUP BY 1 ORDER BY 1;

-- nothing wanted, nothing to have; a name twice; an array of arrays
SELECT * FROM lease_acquire_any(ARRAY['any none'], 'a', 0);
SELECT * FROM lease_acquire_any('{}', 'a', 5);
SELECT count(*) FROM lease_status WHERE role = 'any none';
SELECT * FROM lease_acquire_any(ARRAY['any twice', 'any twice', 'any twice'], 'a', 5, '1 hour');
SELECT * FROM lease_acquire_any('{{any m1,any m2},{any m3,any m4}}', 'a', 5, '1 hour') ORDER BY role;

-- in random order: not always the same one first
BEGIN;
DO $$ BEGIN PERFORM lease_create('any r' || i) FROM generate_series(1, 100) i; END $$;
SAVEPOINT s;
CREATE FUNCTION pg_temp.first() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    got text;
BEGIN
    BEGIN
        SELECT role INTO got FROM lease_acquire_any((SELECT array_agg('any r' || i) FROM generate_series(1, 100) i), 'a', 1);
        RAISE division_by_zero;
    EXCEPTION WHEN division_by_zero THEN
        RETURN got;
    END;
END $$;
SELECT count(DISTINCT pg_temp.first()) > 1 AS random FROM generate_series(1, 20);
ROLLBACK;

-- a hundred in one call use no subtransaction id
BEGIN;
SELECT count(*) FROM lease_acquire_any((SELECT array_agg('any x' || i) FROM generate_series(1, 100) i), 'a', 100);
RESET ROLE;
SELECT count(*) FROM leader_lease WHERE role LIKE 'any x%' AND xmin = pg_current_xact_id()::xid;
SET ROLE any_app;
COMMIT;

-- who gets nothing writes nothing and holds nothing
BEGIN;
SELECT * FROM lease_acquire_any((SELECT array_agg('any x' || i) FROM generate_series(1, 100) i), 'b', 100);
SELECT pg_current_xact_id_if_assigned();
SELECT locktype, relation::regclass, mode FROM pg_locks
 WHERE pid = pg_backend_pid() AND (locktype = 'object' OR relation = 'leader_lease'::regclass);
COMMIT;

-- two grants and a release in one transaction
BEGIN;
SELECT * FROM lease_acquire_any(ARRAY['any b1', 'any b2'], 'a', 2, '1 hour') ORDER BY role;
SELECT lease_release('any b1', 'a', 1);
SELECT * FROM lease_acquire_any(ARRAY['any b1', 'any b2'], 'b', 2, '1 hour');
SAVEPOINT s;
SELECT * FROM lease_acquire_any(ARRAY['any b3'], 'b', 2, '1 hour');
ROLLBACK TO s;
COMMIT;
SELECT role, holder_id, fencing_token FROM lease_status WHERE role LIKE 'any b%' ORDER BY role;

-- a term of one's own with an open fence, ended and taken again in the same transaction
BEGIN;
SELECT lease_check_fence('any b2', 'a', 1), lease_release('any b2', 'a', 1);
SELECT * FROM lease_acquire_any(ARRAY['any b2'], 'a', 1, '1 hour');
SELECT lease_check_fence('any b2', 'a', 1), lease_check_fence('any b2', 'a', 2);
COMMIT;

-- errors
SELECT lease_acquire_any(NULL, 'a', 1);
SELECT lease_acquire_any(ARRAY['any1', NULL], 'a', 1);
SELECT lease_acquire_any(ARRAY['any1', NULL], 'a', 0);
SELECT lease_acquire_any(ARRAY['any1'], NULL, 1);
SELECT lease_acquire_any(ARRAY['any1'], 'a', NULL);
SELECT lease_acquire_any(ARRAY['any1'], 'a', -1);
SELECT lease_acquire_any(ARRAY['any1', ''], 'a', 1);
SELECT lease_acquire_any(ARRAY[repeat('x', 256)], 'a', 1);
SELECT lease_acquire_any(ARRAY['any1'], '', 1);
SELECT lease_acquire_any(ARRAY['any1'], 'a', 1, '0');
SELECT lease_acquire_any(ARRAY['any1'], 'a', 1, '2 days');
\set VERBOSITY sqlstate
SELECT lease_acquire_any(NULL, 'a', 1);
SELECT lease_acquire_any(ARRAY['any1', NULL], 'a', 1);
SELECT lease_acquire_any(ARRAY['any1'], 'a', NULL);
SELECT lease_acquire_any(ARRAY['any1'], 'a', -1);
BEGIN READ ONLY;
SELECT lease_acquire_any(ARRAY['any1'], 'a', 1);
ROLLBACK;
\set VERBOSITY default

-- auto_create off: what is absent is an error
RESET ROLE;
SET leader_lease.auto_create = off;
SELECT lease_acquire_any(ARRAY['any absent'], 'a', 1);
RESET leader_lease.auto_create;

-- another's leases, free or live, are an error: nothing of the call stays
SET ROLE any_other;
SELECT lease_acquire_any(ARRAY['any other', 'any1'], 'b', 10);
SELECT count(*) FROM lease_status WHERE role LIKE 'any%';
SET ROLE any_app;

-- where the function stands in the target list
SELECT count(*) FROM (SELECT lease_acquire_any(ARRAY['any t1', 'any t2'], 'a', 2)) s;
SELECT (lease_acquire_any(ARRAY['any t3'], 'a', 2, '1 hour')).*;
RESET ROLE;

-- the history has them
SELECT role, holder_id, db_user, end_reason FROM lease_history WHERE role IN ('any1', 'any2') ORDER BY role, fencing_token;
DROP FUNCTION any_set;
