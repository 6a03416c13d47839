-- lease_claim_slot: true for the first to claim a slot of a lease, false after.
CREATE ROLE slot_app LOGIN;
CREATE ROLE slot_other LOGIN;
CREATE FUNCTION state_of(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE command;
    RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE || ' ' || SQLERRM;
END $$;
SET ROLE slot_app;
SELECT lease_acquire('slot', 'a', '1 hour'), lease_acquire('slot2', 'a', '1 hour');
SELECT lease_claim_slot('slot', 'a', 1, '2026-01-01 10:00');
SELECT lease_claim_slot('slot', 'a', 1, '2026-01-01 10:00'), lease_claim_slot('slot', 'a', 1, '2026-01-01 10:01');
-- a slot is a lease's
SELECT lease_claim_slot('slot2', 'a', 1, '2026-01-01 10:00');
-- of its bytes: case and blanks count
SELECT lease_claim_slot('slot', 'a', 1, s) FROM unnest(ARRAY['x', 'X', 'x ', 'x']) WITH ORDINALITY u(s, n) ORDER BY n;
SELECT role, slot, fencing_token, holder_id, claimed_at BETWEEN now() - interval '1 min' AND clock_timestamp() AS just_now
  FROM lease_slots WHERE role LIKE 'slot%' ORDER BY role, slot;

-- it takes the fence: the work of the same transaction may follow
RESET ROLE;
GRANT CREATE ON SCHEMA public TO slot_app;
SET ROLE slot_app;
CREATE TABLE run (slot text, by_token bigint);
SELECT lease_protect('run', 'slot', 'by_token');
BEGIN;
INSERT INTO run SELECT s FROM unnest(ARRAY['x', 'y']) s WHERE lease_claim_slot('slot', 'a', 1, s) RETURNING *;
SELECT mode FROM lease_locks WHERE role = 'slot';
COMMIT;
-- and where it is rolled back, the slot is free
BEGIN;
SELECT lease_claim_slot('slot', 'a', 1, 'z');
SAVEPOINT s;
SELECT lease_claim_slot('slot', 'a', 1, 'w');
ROLLBACK TO s;
SELECT lease_claim_slot('slot', 'a', 1, 'w'), lease_claim_slot('slot', 'a', 1, 'z');
ROLLBACK;
SELECT lease_claim_slot('slot', 'a', 1, 'w'), lease_claim_slot('slot', 'a', 1, 'z');

-- a stale claim is an error, and claims nothing
\set VERBOSITY default
SELECT lease_claim_slot('slot', 'a', 2, 'new');
\set VERBOSITY terse
SELECT c, state_of('SELECT lease_claim_slot(' || c || ')') FROM unnest(ARRAY[
    $$'slot', 'b', 1, 'new'$$, $$'slot', 'a', 0, 'new'$$, $$'slot', 'a', -1, 'new'$$, $$'no such', 'a', 1, 'new'$$,
    $$NULL, 'a', 1, 'new'$$, $$'slot', NULL, 1, 'new'$$, $$'slot', 'a', NULL, 'new'$$, $$'slot', 'a', 1, NULL$$,
    $$'', 'a', 1, 'new'$$, $$'slot', '', 1, 'new'$$, $$'slot', 'a', 1, ''$$, $$'slot', 'a', 1, repeat('x', 256)$$,
    $$'slot', 'a', 1, repeat('x', 255)$$]) WITH ORDINALITY u(c, n) ORDER BY n;
SELECT count(*) FROM lease_slots WHERE slot = 'new';
-- the next leader finds what the one before has done
SELECT lease_release('slot', 'a', 1), lease_acquire('slot', 'b', '1 hour');
SELECT lease_claim_slot('slot', 'b', 2, 'w'), lease_claim_slot('slot', 'b', 2, 'b');
BEGIN READ ONLY;
SELECT state_of($$SELECT lease_claim_slot('slot', 'b', 2, 'ro')$$), state_of($$SELECT lease_prune_slots('1 day')$$);
COMMIT;

-- in SERIALIZABLE
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT lease_claim_slot('slot', 'b', 2, 'w'), lease_claim_slot('slot', 'b', 2, 'serializable');
SELECT lease_claim_slot('slot', 'b', 2, 'serializable');
-- no page is locked, on which others put their rows; newer minor versions lock the row that said no
SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' AND pid = pg_backend_pid() AND locktype <> 'tuple'
   AND relation::regclass::text LIKE 'leader_lease_slot%';
COMMIT;
-- it may be prepared, with the work
BEGIN;
SELECT lease_claim_slot('slot', 'b', 2, 'prepared');
PREPARE TRANSACTION 'slot';
BEGIN;
SET LOCAL lock_timeout = '1ms';
SELECT state_of($$SELECT lease_claim_slot('slot', 'b', 2, 'prepared')$$);
COMMIT;
COMMIT PREPARED 'slot';
SELECT lease_claim_slot('slot', 'b', 2, 'prepared');

-- whose lease it is not may neither claim nor see
SET ROLE slot_other;
SELECT state_of($$SELECT lease_claim_slot('slot', 'b', 2, 'other')$$);
SELECT count(*) FROM lease_slots;
SELECT state_of('SELECT * FROM leader_lease_slot');
SELECT state_of('DELETE FROM leader_lease_slot');
SELECT lease_prune_slots('0');
SELECT lease_acquire('slot other', 'a', '1 hour');
SELECT lease_claim_slot('slot other', 'a', 1, 'x');
SELECT role, slot FROM lease_slots;
RESET ROLE;
SELECT count(*) > 5 AS all_of_it FROM lease_slots;
GRANT pg_monitor TO slot_other;
SET ROLE slot_other;
SELECT count(DISTINCT role) FROM lease_slots;
RESET ROLE;

-- retention: a few of the same lease go with each claim, the oldest first
DELETE FROM leader_lease_slot;
INSERT INTO leader_lease_slot SELECT 'slot', 'old ' || i, 1, 'a', now() - interval '31 days' - i * interval '1 hour'
  FROM generate_series(1, 6) i;
INSERT INTO leader_lease_slot SELECT 'slot', 'recent ' || i, 1, 'a', now() - interval '29 days' FROM generate_series(1, 2) i;
INSERT INTO leader_lease_slot VALUES ('slot2', 'of another lease', 1, 'a', '-infinity');
SET ROLE slot_app;
SELECT lease_claim_slot('slot', 'b', 2, 'one');
RESET ROLE;
SELECT slot FROM lease_slots ORDER BY slot;
-- one that was forgotten is claimed again
SET ROLE slot_app;
SELECT lease_claim_slot('slot', 'b', 2, 'old 1'), lease_claim_slot('slot', 'b', 2, 'old 6');
RESET ROLE;
SELECT slot FROM lease_slots ORDER BY slot;
SET leader_lease.slot_retention = 0;
UPDATE leader_lease_slot SET claimed_at = '-infinity' WHERE slot LIKE 'recent%';
SELECT lease_claim_slot('slot', 'b', 2, 'two');
SET leader_lease.slot_retention = -1;
SELECT lease_claim_slot('slot', 'b', 2, 'three');
SELECT count(*) FROM lease_slots WHERE slot LIKE 'recent%';
SET leader_lease.slot_retention = '1d';
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT lease_claim_slot('slot', 'b', 2, 'four');
COMMIT;
SELECT count(*) FROM lease_slots WHERE slot LIKE 'recent%';
SELECT lease_claim_slot('slot', 'b', 2, 'five');
SELECT count(*) FROM lease_slots WHERE slot LIKE 'recent%';
RESET leader_lease.slot_retention;
SET ROLE slot_app;
SELECT state_of('SET leader_lease.slot_retention = 1');
-- by hand
SELECT state_of('SELECT lease_prune_slots(NULL)');
SELECT lease_prune_slots('1 day');
SELECT lease_prune_slots('0') > 3 AS pruned;
SELECT count(*) FROM lease_slots;
RESET ROLE;
SELECT role, slot FROM lease_slots;

-- nothing is found through search_path
CREATE SCHEMA slot_trap;
CREATE TABLE slot_trap.leader_lease_slot (LIKE leader_lease_slot);
SET search_path = slot_trap, public;
SELECT lease_claim_slot('slot', 'b', 2, 'trap');
SELECT count(*) FROM slot_trap.leader_lease_slot;
RESET search_path;
DROP TABLE slot_trap.leader_lease_slot;
DROP SCHEMA slot_trap;

DELETE FROM leader_lease_slot;
DROP TABLE run;
DROP FUNCTION state_of;
REVOKE CREATE ON SCHEMA public FROM slot_app;
DROP ROLE slot_app, slot_other;
