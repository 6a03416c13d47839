-- lease_locks: the fences and takeovers that are held.
CREATE ROLE vlock_app NOLOGIN;
CREATE ROLE vlock_other NOLOGIN;
CREATE ROLE vlock_mon NOLOGIN IN ROLE pg_monitor;
SET ROLE vlock_app;
SELECT lease_acquire('vlock a', 'a', '1 hour'), lease_acquire('vlock b', 'a', '1 hour');
CREATE TEMP VIEW locks AS SELECT role, mode, granted, position, pid = pg_backend_pid() AS mine, gid
  FROM lease_locks WHERE role LIKE 'vlock%' ORDER BY role, mode;
TABLE locks;
BEGIN;
SELECT lease_require_fence('vlock a', 'a', 1);
TABLE locks;
SELECT lease_release('vlock b', 'a', 1), lease_acquire('vlock b', 'c', '1 hour');
TABLE locks;
SELECT role, open_fences, waiters FROM lease_status WHERE role LIKE 'vlock%' ORDER BY role;
-- a renewal and a release hold none
SELECT lease_renew('vlock a', 'a', 1), lease_release('vlock a', 'a', 1);
TABLE locks;
-- others see their own, monitors everything
SET LOCAL ROLE vlock_other;
SELECT count(*) FROM lease_locks WHERE role LIKE 'vlock%';
SET LOCAL ROLE vlock_mon;
SELECT role, mode, since = now() AS since_begin FROM lease_locks WHERE role LIKE 'vlock%' ORDER BY role;
RESET ROLE;
SELECT count(*) FROM lease_locks WHERE role LIKE 'vlock%';
COMMIT;
SELECT count(*) FROM lease_locks WHERE role LIKE 'vlock%';
DROP VIEW locks;
DROP ROLE vlock_app, vlock_other, vlock_mon;
