-- Bad input is an error, changes nothing, and says what to do.
CREATE FUNCTION state_of(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE command;
    RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE || ' ' || SQLERRM;
END $$;

-- a NULL where none is meant never slips through
SELECT c, state_of('SELECT ' || c) FROM unnest(ARRAY[
    'lease_acquire(NULL, ''h'')', 'lease_acquire(''l'', NULL)',
    'lease_attempt(NULL, ''h'')', 'lease_attempt(''l'', NULL)',
    'lease_renew(NULL, ''h'', 1)', 'lease_renew(''l'', NULL, 1)', 'lease_renew(''l'', ''h'', NULL)',
    'lease_check_fence(NULL, ''h'', 1)', 'lease_check_fence(''l'', NULL, 1)', 'lease_check_fence(''l'', ''h'', NULL)',
    'lease_require_fence(NULL, ''h'', 1)', 'lease_require_fence(''l'', NULL, 1)', 'lease_require_fence(''l'', ''h'', NULL)',
    'lease_release(NULL, ''h'', 1)', 'lease_release(''l'', NULL, 1)', 'lease_release(''l'', ''h'', NULL)',
    'lease_create(NULL)', 'lease_create(''l'', NULL)',
    'lease_set_owner(NULL, ''x'')', 'lease_set_owner(''l'', NULL)']) WITH ORDINALITY u(c, n) ORDER BY n;

-- names
SELECT state_of(format('SELECT lease_acquire(%L, %L)', r, h)) FROM (VALUES
    ('', 'h'), ('l', ''), (repeat('x', 256), 'h'), ('l', repeat('y', 256)),
    (repeat('x', 255), repeat('y', 255))) v(r, h);
SELECT length(role), length(holder_id) FROM lease_status WHERE role LIKE 'xxx%';

-- ttl: positive, finite, at most max_ttl; months and days count from now
SELECT t, state_of(format('SELECT lease_acquire(''ttl'', ''h'', %L)', t)) FROM unnest(ARRAY[
    '0', '-1 s', '1 month -40 days', '1 day 1 microsecond', '1 month', '-1 month',
    '178000000 years', '-178000000 years', '1 day', '1 month -27 days -100 hours',
    '1 microsecond']) WITH ORDINALITY u(t, n) ORDER BY n;
SELECT state_of('SELECT lease_renew(''ttl'', ''h'', 1, ''-1 s'')');
SELECT state_of('SELECT lease_create(''ttl2'', ttl => ''2 days'')');
SELECT count(*) FROM lease_status WHERE role = 'ttl2';
SET leader_lease.max_ttl = '40d';
SET TimeZone = 'America/New_York';
SELECT ttl = (now() AT TIME ZONE 'UTC' + '1 month') - (now() AT TIME ZONE 'UTC') AS a_month_in_utc
  FROM lease_attempt('month', 'h', '1 month');
RESET TimeZone;
SELECT lease_create('long', ttl => '30 days');
RESET leader_lease.max_ttl;
-- a default that is too long is refused like any other
SET leader_lease.default_ttl = '2d';
SELECT state_of('SELECT lease_acquire(''longer'', ''h'')');
RESET leader_lease.default_ttl;
SELECT state_of('SELECT lease_acquire(''long'', ''h'')');

-- tokens end somewhere
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at)
    VALUES ('last', 'h', 9223372036854775806, now() - interval '1 hour');
SELECT lease_acquire('last', 'h', '1 microsecond');
SELECT state_of('SELECT lease_acquire(''last'', ''h'')');
SELECT fencing_token FROM lease_status WHERE role = 'last';

-- unknown leases
SELECT state_of('SELECT lease_set_owner(''unknown'', current_user)');
SET leader_lease.auto_create = off;
SELECT state_of('SELECT lease_acquire(''unknown'', ''h'')');
SELECT lease_create('known');
SELECT lease_acquire('known', 'h');
RESET leader_lease.auto_create;

-- a read-only transaction changes nothing, but may take a fence
BEGIN READ ONLY;
SELECT lease_check_fence('known', 'h', 1), lease_require_fence('known', 'h', 1);
SELECT state_of('SELECT lease_acquire(''known'', ''h'')');
SELECT state_of('SELECT lease_attempt(''known'', ''x'')');
SELECT state_of('SELECT lease_renew(''known'', ''h'', 1)');
SELECT state_of('SELECT lease_release(''known'', ''h'', 1)');
SELECT state_of('SELECT lease_create(''k2'')');
SELECT state_of('SELECT lease_set_owner(''known'', current_user)');
COMMIT;

-- PREPARE TRANSACTION: not after a change, unless it was rolled back; a fence is no change
BEGIN;
SELECT lease_renew('known', 'h', 1, '1 hour');
PREPARE TRANSACTION 'p1';
BEGIN;
SAVEPOINT a;
SELECT lease_renew('known', 'h', 1, '1 hour');
SAVEPOINT b;
SELECT lease_renew('known', 'h', 1, '1 hour');
RELEASE b;
ROLLBACK TO a;
SELECT lease_require_fence('known', 'h', 1);
PREPARE TRANSACTION 'p2';
SELECT mode, granted, pid, gid FROM lease_locks WHERE role = 'known';
SET leader_lease.takeover_timeout = 0;
SELECT lease_release('known', 'h', 1);
SELECT token, holder_id, retry_after, blocked_by FROM lease_attempt('known', 'x');
ROLLBACK PREPARED 'p2';
SELECT lease_acquire('known', 'x');
DROP FUNCTION state_of;
