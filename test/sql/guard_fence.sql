-- A protected table is written only by a transaction that holds the fence.
CREATE ROLE gf_app NOLOGIN;
CREATE SCHEMA AUTHORIZATION gf_app;
SET ROLE gf_app;
CREATE TABLE job (id int PRIMARY KEY, note text);
SELECT lease_protect('job', 'gf');

-- nobody ever led
INSERT INTO job VALUES (1, 'a');
-- to lead is not enough, and a fence ends with its transaction
SELECT lease_acquire('gf', 'a', '1 hour');
INSERT INTO job VALUES (1, 'a');
SELECT lease_require_fence('gf', 'a', 1);
INSERT INTO job VALUES (1, 'a');
-- nor is a check that said no, nor the fence of another lease
SELECT lease_acquire('gf other', 'a', '1 hour');
BEGIN;
SELECT lease_check_fence('gf', 'a', 2), lease_check_fence('gf', 'b', 1), lease_require_fence('gf other', 'a', 1);
SELECT role, mode FROM lease_locks WHERE role LIKE 'gf%';
INSERT INTO job VALUES (1, 'a');
ROLLBACK;

BEGIN;
SELECT lease_require_fence('gf', 'a', 1);
INSERT INTO job VALUES (1, 'a'), (2, 'a');
UPDATE job SET note = 'b' WHERE id = 1;
DELETE FROM job WHERE id = 2;
COMMIT;
BEGIN;
SELECT lease_check_fence('gf', 'a', 1);
UPDATE job SET note = 'c';
COMMIT;
SELECT * FROM job;

\set VERBOSITY sqlstate
UPDATE job SET note = 'd';
DELETE FROM job;
TRUNCATE job;
SELECT * FROM job FOR UPDATE;
\set VERBOSITY default

-- fence and write in one statement
INSERT INTO job VALUES (3, lease_require_fence('gf', 'a', 1));
INSERT INTO job VALUES (3, lease_require_fence('gf', 'a', 1))
    ON CONFLICT (id) DO UPDATE SET note = 'again';
UPDATE job SET note = lease_require_fence('gf', 'a', 1) WHERE id = 1;
DELETE FROM job WHERE id = 1 AND lease_check_fence('gf', 'a', 1);
SELECT * FROM job;
-- a stale one writes nothing, by either function
UPDATE job SET note = lease_require_fence('gf', 'a', 2);
DELETE FROM job WHERE lease_check_fence('gf', 'a', 2);
SELECT * FROM job;

-- a statement that writes no row needs no fence, one that would have written does
UPDATE job SET note = 'x' WHERE false;
DELETE FROM job WHERE id = 99;
INSERT INTO job VALUES (3, 'x') ON CONFLICT DO NOTHING;

-- the error names the table for programs too
DO $$
DECLARE
    s text;
    t text;
BEGIN
    DELETE FROM job;
EXCEPTION WHEN SQLSTATE 'LF002' THEN
    GET STACKED DIAGNOSTICS s = SCHEMA_NAME, t = TABLE_NAME;
    RAISE NOTICE '% %', s, t;
END $$;

-- a term of this very transaction counts, one of this very statement does not
BEGIN;
SELECT lease_acquire('gf new', 'a', '1 hour');
SELECT lease_check_fence('gf new', 'a', 1);
ROLLBACK;
CREATE TABLE late (id bigint);
SELECT lease_protect('late', 'gf late');
SET leader_lease.fence = '{"role": "gf late", "holder": "a", "token": 1}';
INSERT INTO late VALUES (lease_acquire('gf late', 'a', '1 hour'));
SELECT count(*) FROM late;
BEGIN;
SELECT lease_acquire('gf late', 'a', '1 hour');
INSERT INTO late VALUES (2);
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT lease_release('gf late', 'a', 1), lease_acquire('gf late', 'a', '1 hour');
SET leader_lease.fence = '{"role": "gf late", "holder": "a", "token": 2}';
INSERT INTO late VALUES (3);
ROLLBACK;
RESET leader_lease.fence;
-- asked at each row: a function inside the statement may know a later snapshot than the statement
CREATE FUNCTION lead_and_fence(token bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lease_release('gf late', 'a', token - 1), lease_acquire('gf late', 'a', '1 hour');
    RETURN lease_require_fence('gf late', 'a', token);
END $$;
INSERT INTO late VALUES (lead_and_fence(2));
UPDATE late SET id = lead_and_fence(2);
BEGIN;
SELECT lead_and_fence(2);
INSERT INTO late VALUES (4);
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT lease_require_fence('gf late', 'a', 1);
INSERT INTO late VALUES (3);
COMMIT;
SELECT * FROM late;

-- the old holder after a takeover, and after the release of his own term
SELECT lease_acquire('gf takeover', 'a', '1 microsecond');
SELECT lease_acquire('gf takeover', 'b', '1 hour');
CREATE TABLE taken (id int);
SELECT lease_protect('taken', 'gf takeover');
BEGIN;
SELECT lease_require_fence('gf takeover', 'a', 1);
ROLLBACK;
BEGIN;
SELECT lease_require_fence('gf takeover', 'b', 2);
INSERT INTO taken VALUES (1);
SELECT lease_release('gf takeover', 'b', 2);
INSERT INTO taken VALUES (2);
COMMIT;
SELECT * FROM taken;

DROP FUNCTION lead_and_fence;
DROP TABLE job, late, taken;
RESET ROLE;
DROP SCHEMA gf_app;
DROP ROLE gf_app;
