-- A term: its token, its renewal, its end.
CREATE ROLE lease_app NOLOGIN;
SET ROLE lease_app;

-- the first token is 1, renewal keeps it
SELECT lease_acquire('acq', 'a', '1 hour');
SELECT lease_acquire('acq', 'a');
SELECT token, renewed, ttl, holder_id, retry_after IS NULL AS no_retry, blocked_by FROM lease_attempt('acq', 'a');

-- another is told who leads and when to try again
SELECT lease_acquire('acq', 'b');
SELECT token, renewed, ttl, holder_id, retry_after BETWEEN '59 min' AND '1 hour' AS retry, blocked_by FROM lease_attempt('acq', 'b');

-- release counts up by one, also for the same holder
SELECT lease_release('acq', 'a', 1);
SELECT lease_acquire('acq', 'a', '1 hour');
SELECT lease_release('acq', 'a', 2);
SELECT lease_acquire('acq', 'b', '1 microsecond');

-- so does expiry, also for the same holder
SELECT lease_acquire('acq', 'b', '1 microsecond');
SELECT lease_acquire('acq', 'c', '1 hour');
SELECT token, renewed, ttl, holder_id, retry_after, blocked_by FROM lease_attempt('acq2', 'a', '2 min');

-- a NULL ttl keeps a live term's, else takes the lease's own, else the setting's
SELECT ttl FROM lease_attempt('acq', 'c');
SELECT ttl FROM lease_attempt('acq', 'c', '2 hours');
SELECT ttl FROM lease_attempt('acq', 'c');
SELECT lease_release('acq', 'c', 5);
SELECT ttl FROM lease_attempt('acq', 'c');
SET leader_lease.default_ttl = '7s';
SELECT ttl FROM lease_attempt('acq3', 'c');
RESET leader_lease.default_ttl;
SELECT lease_create('acq4', ttl => '5 min');
SELECT ttl FROM lease_attempt('acq4', 'c');
SELECT ttl FROM lease_attempt('acq4', 'c', '1 min');
SELECT ttl FROM lease_attempt('acq4', 'c');
SELECT lease_release('acq4', 'c', 1);
SELECT ttl FROM lease_attempt('acq4', 'c');

-- in one statement each call sees the one before
SELECT lease_acquire('acq5', 'a'), lease_acquire('acq5', 'b'), lease_release('acq5', 'a', 1), lease_acquire('acq5', 'b');

-- rolled back, nothing happened
BEGIN;
SELECT lease_acquire('acq6', 'a');
SAVEPOINT s;
SELECT lease_release('acq6', 'a', 1);
SELECT lease_acquire('acq6', 'b');
ROLLBACK TO s;
SELECT lease_acquire('acq6', 'b'), lease_acquire('acq6', 'a');
ROLLBACK;
SELECT count(*) FROM lease_status WHERE role = 'acq6';
SELECT lease_acquire('acq6', 'b');

-- a lease that is made beforehand is free
SELECT lease_create('acq7');
SELECT role, holder_id, fencing_token, state, live, remaining FROM lease_status WHERE role = 'acq7';
SELECT lease_create('acq7');
SELECT lease_acquire('acq7', 'a');

-- 100 first grants in one statement
SELECT count(lease_acquire('many' || i, 'a')) FROM generate_series(1, 100) i;
SELECT count(lease_acquire('many' || i, 'b')) FROM generate_series(1, 100) i;

RESET ROLE;
