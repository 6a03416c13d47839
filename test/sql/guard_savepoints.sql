-- A fence goes with the (sub)transaction that took it, and with nothing else.
CREATE ROLE gsave_app NOLOGIN;
CREATE SCHEMA AUTHORIZATION gsave_app;
SET ROLE gsave_app;
CREATE TABLE job (id int PRIMARY KEY, by_token bigint);
SELECT lease_protect('job', 'gsave', 'by_token');
SELECT lease_acquire('gsave', 'a', '1 hour');
CREATE VIEW fences AS SELECT count(*) FROM lease_locks WHERE role = 'gsave' AND mode = 'fence';
\set VERBOSITY sqlstate

-- an unrelated rollback leaves it, as drivers do that set a savepoint around each statement
BEGIN;
SELECT lease_require_fence('gsave', 'a', 1);
SAVEPOINT s;
SELECT 1 / 0;
ROLLBACK TO s;
RELEASE s;
INSERT INTO job VALUES (1);
SAVEPOINT s;
INSERT INTO job VALUES (1);
ROLLBACK TO s;
INSERT INTO job VALUES (2);
SAVEPOINT t;
INSERT INTO job VALUES (3);
ROLLBACK TO s;
INSERT INTO job VALUES (4);
COMMIT;
-- taken in a savepoint, it passes up when that is released ..
BEGIN;
SAVEPOINT s;
SAVEPOINT t;
SELECT lease_require_fence('gsave', 'a', 1);
INSERT INTO job VALUES (5);
RELEASE t;
RELEASE s;
INSERT INTO job VALUES (6);
COMMIT;
-- .. and goes when that is rolled back, or one around it
BEGIN;
SAVEPOINT s;
SELECT lease_require_fence('gsave', 'a', 1);
ROLLBACK TO s;
TABLE fences;
INSERT INTO job VALUES (7);
ROLLBACK;
BEGIN;
SAVEPOINT s;
SAVEPOINT t;
SELECT lease_require_fence('gsave', 'a', 1);
RELEASE t;
INSERT INTO job VALUES (7);
ROLLBACK TO s;
TABLE fences;
INSERT INTO job VALUES (7);
ROLLBACK;
-- the guard's own fence does the same: the next write takes it again
SET leader_lease.fence = '{"role": "gsave", "holder": "a", "token": 1}';
BEGIN;
SAVEPOINT s;
INSERT INTO job VALUES (8);
TABLE fences;
ROLLBACK TO s;
TABLE fences;
INSERT INTO job VALUES (9);
TABLE fences;
COMMIT;
RESET leader_lease.fence;
-- a write that fails in a block with EXCEPTION takes its fence along
DO $$
BEGIN
    BEGIN
        PERFORM lease_require_fence('gsave', 'a', 1);
        INSERT INTO job VALUES (9);
    EXCEPTION WHEN unique_violation THEN
        RAISE NOTICE 'duplicate';
    END;
    INSERT INTO job VALUES (10);
END $$;
-- within one statement, whose guard remembers its fence from row to row
CREATE FUNCTION fence_and_fail(i int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    IF i = 10 THEN
        PERFORM lease_require_fence('gsave', 'a', 1);
    END IF;
    IF i = 11 THEN
        RAISE division_by_zero;
    END IF;
    RETURN i;
EXCEPTION WHEN division_by_zero THEN
    RETURN i;
END $$;
CREATE FUNCTION fence_in_part(i int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    IF i = 20 THEN
        PERFORM lease_require_fence('gsave', 'a', 1);
        INSERT INTO job VALUES (i + 10);
        RAISE division_by_zero;
    END IF;
    RETURN i;
EXCEPTION WHEN division_by_zero THEN
    RETURN i;
END $$;
INSERT INTO job SELECT fence_and_fail(i) FROM generate_series(10, 13) i;
INSERT INTO job SELECT fence_in_part(i) FROM generate_series(20, 22) i;
SELECT array_agg(id ORDER BY id) FROM job;
-- or that ends while the statement goes on
CREATE FUNCTION release_at(i int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    IF i = 32 THEN
        PERFORM lease_release('gsave', 'a', 1);
    END IF;
    RETURN i;
END $$;
BEGIN;
SELECT lease_require_fence('gsave', 'a', 1);
SAVEPOINT s;
INSERT INTO job SELECT release_at(i) FROM generate_series(30, 34) i;
ROLLBACK TO s;
INSERT INTO job SELECT release_at(i) FROM generate_series(30, 31) i;
COMMIT;

-- the term's end, by this transaction itself, ends the fence ..
BEGIN;
SELECT lease_require_fence('gsave', 'a', 1);
INSERT INTO job VALUES (40);
SAVEPOINT s;
SELECT lease_release('gsave', 'a', 1);
SAVEPOINT t;
INSERT INTO job VALUES (41);
ROLLBACK TO t;
SELECT lease_check_fence('gsave', 'a', 1);
-- .. and with its rollback the fence counts again
ROLLBACK TO s;
INSERT INTO job VALUES (42);
SAVEPOINT s;
SAVEPOINT t;
SELECT lease_release('gsave', 'a', 1);
RELEASE t;
SAVEPOINT u;
INSERT INTO job VALUES (43);
ROLLBACK TO s;
INSERT INTO job VALUES (44);
COMMIT;
-- the same when a statement by hand ends it, or begins the next
RESET ROLE;
GRANT SELECT, UPDATE ON leader_lease TO gsave_app;
SET ROLE gsave_app;
BEGIN;
SELECT lease_require_fence('gsave', 'a', 1);
SAVEPOINT s;
UPDATE leader_lease SET expires_at = clock_timestamp() WHERE role = 'gsave';
SAVEPOINT t;
INSERT INTO job VALUES (45);
ROLLBACK TO s;
INSERT INTO job VALUES (46);
UPDATE leader_lease SET fencing_token = fencing_token + 1 WHERE role = 'gsave' RETURNING fencing_token;
SAVEPOINT t;
INSERT INTO job VALUES (47);
ROLLBACK TO s;
INSERT INTO job VALUES (48);
-- and by a new term in the same transaction: the old token is none any more, the new one is
SELECT lease_release('gsave', 'a', 1), lease_acquire('gsave', 'a', '1 hour');
SELECT lease_check_fence('gsave', 'a', 1), lease_check_fence('gsave', 'a', 2);
INSERT INTO job VALUES (49) RETURNING *;
ROLLBACK TO s;
INSERT INTO job VALUES (50) RETURNING *;
COMMIT;
SELECT array_agg(id ORDER BY id) FROM job WHERE id >= 40;
-- while a statement ends the term by hand, no fence is taken for it any more
SET leader_lease.fence = '{"role": "gsave", "holder": "a", "token": 1}';
WITH u AS (UPDATE leader_lease SET fencing_token = fencing_token + 1 WHERE role = 'gsave' RETURNING fencing_token)
INSERT INTO job SELECT 60 + fencing_token FROM u;
BEGIN;
SELECT lease_require_fence('gsave', 'a', 1);
WITH u AS (UPDATE leader_lease SET fencing_token = fencing_token + 1 WHERE role = 'gsave' RETURNING fencing_token)
INSERT INTO job SELECT 60 + fencing_token FROM u;
ROLLBACK;
RESET leader_lease.fence;
-- nothing is left for the next transaction
BEGIN;
TABLE fences;
INSERT INTO job VALUES (60);
ROLLBACK;

DROP VIEW fences;
DROP FUNCTION fence_and_fail, fence_in_part, release_at;
DROP TABLE job;
RESET ROLE;
REVOKE SELECT, UPDATE ON leader_lease FROM gsave_app;
DROP SCHEMA gsave_app;
DROP ROLE gsave_app;
