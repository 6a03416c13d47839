-- Renewing and releasing act for one term alone.
CREATE ROLE lease_app2 NOLOGIN;
SET ROLE lease_app2;
SELECT lease_acquire('ren', 'a', '1 hour');
SELECT lease_renew('ren', 'a', 1), lease_renew('ren', 'a', 1, '2 hours'), lease_renew('ren', 'a', 1);
-- the current token never rises by renewing
SELECT fencing_token, state FROM lease_status WHERE role = 'ren';

-- a stale, future, zero, negative or foreign token does nothing
SELECT lease_release('ren', 'a', 1);
SELECT lease_acquire('ren', 'b', '1 hour');
SELECT t, lease_renew('ren', 'a', t), lease_renew('ren', 'b', t),
       lease_check_fence('ren', 'a', t), lease_check_fence('ren', 'b', t),
       lease_release('ren', 'a', t), lease_release('ren', 'b', t)
  FROM unnest(ARRAY[1, 2, 3, 0, -1, 9223372036854775807]) t WHERE t <> 2;
SELECT lease_renew('ren', 'a', 2), lease_check_fence('ren', 'a', 2), lease_release('ren', 'a', 2);
SELECT lease_renew('ren', 'b', 2), lease_check_fence('ren', 'b', 2);
SELECT lease_renew('none', 'b', 2), lease_check_fence('none', 'b', 2), lease_release('none', 'b', 2);

-- an expired term is not revived
SELECT lease_acquire('exp', 'a', '1 microsecond');
SELECT lease_renew('exp', 'a', 1), lease_check_fence('exp', 'a', 1), lease_release('exp', 'a', 1);
SELECT state, live, remaining FROM lease_status WHERE role = 'exp';

-- a released term is not revived
SELECT lease_release('ren', 'b', 2);
SELECT lease_renew('ren', 'b', 2), lease_check_fence('ren', 'b', 2), lease_release('ren', 'b', 2);
SELECT state, live, remaining, expires_at <= clock_timestamp() AS over FROM lease_status WHERE role = 'ren';

-- requiring says why
SELECT lease_require_fence('none', 'a', 1);
SELECT lease_require_fence('ren', 'b', 1);
SELECT lease_require_fence('ren', 'a', 2);
SELECT lease_require_fence('ren', 'b', 2);
SELECT lease_require_fence('exp', 'a', 1);
\set VERBOSITY sqlstate
SELECT lease_require_fence('exp', 'a', 1);
\set VERBOSITY default

-- and gives the token
SELECT lease_acquire('ren', 'c');
SELECT lease_require_fence('ren', 'c', 3);

-- a transaction that ends the term itself has no fence any more ..
BEGIN;
SELECT lease_check_fence('ren', 'c', 3);
SAVEPOINT s;
SELECT lease_release('ren', 'c', 3);
SELECT lease_check_fence('ren', 'c', 3);
SELECT lease_acquire('ren', 'c');
-- .. and that of the next term is another
SELECT lease_check_fence('ren', 'c', 3), lease_check_fence('ren', 'c', 4);
-- rolled back, the fence is there again
ROLLBACK TO s;
SELECT lease_check_fence('ren', 'c', 3), lease_check_fence('ren', 'c', 4);
COMMIT;
RESET ROLE;
