-- lease_release_all: what a holder has is free for others.
CREATE ROLE rel_app NOLOGIN;
-- what only time and a failover do otherwise
CREATE FUNCTION rel_set(lease text, what text, value text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET session_replication_role = replica AS $$
BEGIN
    EXECUTE format('UPDATE leader_lease SET %I = %s WHERE role = %L', what, value, lease);
END $$;
SET ROLE rel_app;
SELECT lease_release_all('a');
SELECT count(*) FROM lease_acquire_any(ARRAY['rel1', 'rel2', 'rel3', 'rel4', 'rel5', 'rel6'], 'a', 6, '1 hour');
SELECT lease_acquire('rel of b', 'b', '1 hour');
SELECT lease_release('rel4', 'a', 1), rel_set('rel5', 'deadline', '1'), rel_set('rel6', 'origin', 'origin + 1');
-- the live ones, and them alone
SELECT lease_release_all('a');
SELECT lease_release_all('a');
SELECT role, holder_id, state FROM lease_status WHERE role LIKE 'rel%' ORDER BY role;
SELECT * FROM lease_renew_all('a');
SELECT role, fencing_token, end_reason FROM lease_history WHERE role LIKE 'rel%' ORDER BY role;
SELECT * FROM lease_acquire_any(ARRAY['rel1', 'rel2', 'rel3'], 'c', 3, '1 hour') ORDER BY role;

-- fences of the transaction end with the terms; rolled back, they are there again
BEGIN;
SELECT lease_check_fence('rel1', 'c', 2);
SAVEPOINT s;
SELECT lease_release_all('c');
SELECT lease_check_fence('rel1', 'c', 2), lease_check_fence('rel2', 'c', 2);
ROLLBACK TO s;
SELECT lease_check_fence('rel1', 'c', 2), lease_check_fence('rel2', 'c', 2);
COMMIT;
SELECT * FROM lease_renew_all('c');

-- errors
SELECT lease_release_all(NULL);
SELECT lease_release_all('');
\set VERBOSITY sqlstate
SELECT lease_release_all(NULL);
BEGIN READ ONLY;
SELECT lease_release_all('c');
ROLLBACK;
\set VERBOSITY default
RESET ROLE;
DROP FUNCTION rel_set;
