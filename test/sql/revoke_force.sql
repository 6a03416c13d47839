-- lease_revoke with force terminates those whose fences are in the way, as far as pg_terminate_backend would.
CREATE EXTENSION dblink;
CREATE ROLE force_app LOGIN;
CREATE ROLE force_super LOGIN SUPERUSER;
-- a leader in a session of its own
CREATE FUNCTION leader(name text, usename text, VARIADIC commands text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM dblink_connect(name, format('host=%s port=%s user=%s dbname=%s application_name=%s', split_part(current_setting('unix_socket_directories'), ',', 1),
                                        current_setting('port'), usename, current_database(), name));
    PERFORM dblink_exec(name, 'BEGIN');
    FOR i IN 1 .. cardinality(commands) LOOP
        PERFORM * FROM dblink(name, commands[i]) d(x text);
    END LOOP;
END $$;
CREATE FUNCTION lives(name text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT x FROM dblink(name, 'SELECT true') d(x boolean));
EXCEPTION WHEN connection_failure OR admin_shutdown THEN
    RETURN false;
END $$;
SET ROLE force_app;
SELECT lease_acquire('force', 'a', '1 hour'), lease_acquire('force2', 'a', '1 hour');
RESET ROLE;

-- all fences of the lease, of its present term or not, and of no other lease
SELECT leader('a', 'force_app', 'SELECT lease_require_fence(''force'', ''a'', 1)');
SELECT leader('b', 'force_app', 'SELECT lease_require_fence(''force'', ''a'', 1)', 'SELECT lease_require_fence(''force2'', ''a'', 1)');
SELECT leader('c', 'force_app', 'SELECT lease_require_fence(''force2'', ''a'', 1)');
SELECT leader('d', 'force_app', 'SELECT lease_check_fence(''force'', ''a'', 2)', 'SELECT lease_acquire(''force'', ''d'')');
SET ROLE force_app;
-- not without being asked
SET leader_lease.takeover_timeout = '10ms';
\set VERBOSITY sqlstate
SELECT lease_revoke('force', 'x');
\set VERBOSITY default
RESET ROLE;
SELECT lives('a'), lives('b');
SET ROLE force_app;
SELECT lease_revoke('force', 'e', force => true);
RESET ROLE;
SELECT lives('a'), lives('b'), lives('c'), lives('d');
SELECT holder_id, fencing_token, state, open_fences FROM lease_status WHERE role LIKE 'force%' ORDER BY role;
SELECT dblink_disconnect(name) FROM unnest(ARRAY['a', 'b', 'c', 'd']) name;

-- not a superuser's, and then nothing has changed
SELECT leader('s', 'force_super', 'SELECT lease_require_fence(''force'', ''e'', 2)');
SET ROLE force_app;
\set VERBOSITY sqlstate
SELECT lease_revoke('force', 'f', force => true);
\set VERBOSITY default
RESET ROLE;
SELECT lives('s');
SELECT holder_id, fencing_token, state, open_fences FROM lease_status WHERE role = 'force';
-- a superuser may
SELECT lease_revoke('force', force => true);
SELECT lives('s');
SELECT holder_id, fencing_token, state, open_fences FROM lease_status WHERE role = 'force';
SELECT dblink_disconnect('s');
DROP FUNCTION leader, lives;
DROP EXTENSION dblink;
RESET leader_lease.takeover_timeout;
DROP ROLE force_super;
