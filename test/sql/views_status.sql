-- lease_status: each state, the columns, and who sees what.
CREATE ROLE vstat_app NOLOGIN;
CREATE ROLE vstat_other NOLOGIN;
CREATE ROLE vstat_mon NOLOGIN IN ROLE pg_monitor;
GRANT SELECT, INSERT, UPDATE ON leader_lease TO vstat_app;
SET ROLE vstat_app;
SELECT lease_create('vstat free', ttl => '5 min');
SELECT lease_acquire('vstat held', 'a', '1 hour'), lease_acquire('vstat expired', 'a', '1 microsecond'),
    lease_acquire('vstat released', 'a', '1 hour'), lease_acquire('vstat revoked', 'a', '1 hour');
SELECT lease_release('vstat released', 'a', 1);
UPDATE leader_lease SET fencing_token = 2, expires_at = clock_timestamp() WHERE role = 'vstat revoked';
-- of another origin, as a restore brings it: its holder still keeps others out, and has no fence
RESET ROLE;
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at, number, owner, ttl, acquired_at, renewed_at, origin)
    VALUES ('vstat failed over', 'a', 7, now() + interval '1 hour', 4000000001, 'vstat_app', '1 hour', now(), now(), 42),
           ('vstat failed over, expired', 'a', 7, now() - interval '1 hour', 4000000002, 'vstat_app', '1 hour', now(), now(), 42);
SET ROLE vstat_app;
SELECT role, holder_id, fencing_token AS token, state, live, remaining BETWEEN '59 min' AND '1 hour' AS remaining, ttl, owner
  FROM lease_status WHERE role LIKE 'vstat%' ORDER BY role;
SELECT role, expires_at IS NULL AS e, acquired_at IS NULL AS a, renewed_at IS NULL AS r, isfinite(expires_at) AS f,
       expires_at - renewed_at = ttl AS length, open_fences, waiters
  FROM lease_status WHERE role LIKE 'vstat%' ORDER BY role;
SELECT role, lease_check_fence(role, 'a', fencing_token), live FROM lease_status WHERE role LIKE 'vstat%' ORDER BY role;
SELECT lease_acquire('vstat failed over', 'b');

-- open fences, by each transaction once
BEGIN;
SELECT lease_require_fence('vstat held', 'a', 1), lease_require_fence('vstat held', 'a', 1);
SAVEPOINT s;
SELECT lease_require_fence('vstat held', 'a', 1);
SELECT role, open_fences, waiters FROM lease_status WHERE role LIKE 'vstat held%';
COMMIT;

-- a role's own leases, everything to pg_monitor
SET ROLE vstat_other;
SELECT count(*) FROM lease_status WHERE role LIKE 'vstat%';
SELECT lease_acquire('vstat other', 'x', '1 hour');
SELECT role, holder_id FROM lease_status WHERE role LIKE 'vstat%';
SET ROLE vstat_mon;
SELECT count(*) FROM lease_status WHERE role LIKE 'vstat%';
SET ROLE vstat_app;
SELECT count(*) FROM lease_status WHERE role LIKE 'vstat%';
-- a function in the query sees nothing that the view does not show
SET ROLE vstat_other;
CREATE FUNCTION pg_temp.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$
BEGIN
    IF $1 LIKE 'vstat%' THEN
        RAISE NOTICE 'leak %', $1;
    END IF;
    RETURN true;
END $$;
SELECT role FROM lease_status WHERE pg_temp.leak(role) AND role LIKE 'vstat%';
SELECT role FROM lease_locks WHERE pg_temp.leak(role) AND role LIKE 'vstat%';
DROP FUNCTION pg_temp.leak;
-- an owner who is gone hides the lease from all but superusers and monitors
RESET ROLE;
SELECT lease_set_owner('vstat other', 'no such role');
SET ROLE vstat_other;
SELECT count(*) FROM lease_status WHERE role LIKE 'vstat%';
RESET ROLE;
SELECT owner FROM lease_status WHERE role = 'vstat other';
-- the views work under any search_path
SET search_path = pg_temp;
SELECT count(*) FROM public.lease_status WHERE role LIKE 'vstat%';
SELECT count(*) FROM public.lease_locks WHERE role LIKE 'vstat%';
SELECT count(*) FROM public.lease_guards WHERE role LIKE 'vstat%';
RESET search_path;

REVOKE ALL ON leader_lease FROM vstat_app;
DROP ROLE vstat_app, vstat_other, vstat_mon;
