-- A fence taken through a cursor stands, whatever becomes of the cursor: writes rely on it.
CREATE ROLE gcur_app NOLOGIN;
CREATE SCHEMA AUTHORIZATION gcur_app;
SET ROLE gcur_app;
CREATE TABLE job (id int PRIMARY KEY);
SELECT lease_protect('job', 'gcur');
SELECT lease_acquire('gcur', 'a', '1 hour');
CREATE VIEW fences AS SELECT count(*) FROM lease_locks WHERE role = 'gcur' AND mode = 'fence';
CREATE FUNCTION write_job(i int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO job VALUES (i);
    RETURN i;
END $$;
\set VERBOSITY sqlstate

-- by the function; the cursor fails later, in a savepoint
BEGIN;
DECLARE c CURSOR FOR SELECT CASE i WHEN 1 THEN lease_require_fence('gcur', 'a', 1) ELSE 1 / (i - 3) END FROM generate_series(1, 5) i;
FETCH c;
INSERT INTO job VALUES (1);
SAVEPOINT s;
MOVE FORWARD ALL c;
ROLLBACK TO s;
TABLE fences;
INSERT INTO job VALUES (2);
COMMIT;
-- by the guard
SET leader_lease.fence = '{"role": "gcur", "holder": "a", "token": 1}';
BEGIN;
DECLARE c CURSOR FOR SELECT CASE i WHEN 1 THEN write_job(3) ELSE 1 / (i - 3) END FROM generate_series(1, 5) i;
FETCH c;
RESET leader_lease.fence;
SAVEPOINT s;
MOVE FORWARD ALL c;
ROLLBACK TO s;
TABLE fences;
INSERT INTO job VALUES (4);
COMMIT;
-- closed
BEGIN;
DECLARE c CURSOR FOR SELECT lease_require_fence('gcur', 'a', 1);
FETCH c;
CLOSE c;
TABLE fences;
INSERT INTO job VALUES (5);
COMMIT;
-- fetched in a savepoint that is rolled back, the cursor stays and the fence goes
BEGIN;
DECLARE c CURSOR FOR SELECT lease_require_fence('gcur', 'a', 1) FROM generate_series(1, 3);
SAVEPOINT s;
FETCH c;
ROLLBACK TO s;
TABLE fences;
SAVEPOINT s;
INSERT INTO job VALUES (6);
ROLLBACK TO s;
FETCH c;
INSERT INTO job VALUES (6);
COMMIT;
-- a holdable one is run at commit, and what it takes goes with the transaction
BEGIN;
DECLARE c CURSOR WITH HOLD FOR SELECT lease_require_fence('gcur', 'a', 1);
COMMIT;
FETCH c;
TABLE fences;
INSERT INTO job VALUES (7);
CLOSE c;
-- loops of PL/pgSQL go through cursors
DO $$
DECLARE
    r record;
BEGIN
    FOR r IN SELECT i, CASE i WHEN 1 THEN lease_require_fence('gcur', 'a', 1) END FROM generate_series(1, 3) i LOOP
        INSERT INTO job VALUES (10 + r.i);
    END LOOP;
    INSERT INTO job VALUES (20);
END $$;
-- each transaction of a procedure needs its own
DO $$
BEGIN
    PERFORM lease_require_fence('gcur', 'a', 1);
    INSERT INTO job VALUES (21);
    COMMIT;
    INSERT INTO job VALUES (22);
END $$;
SELECT array_agg(id ORDER BY id) FROM job;

DROP VIEW fences;
DROP FUNCTION write_job;
DROP TABLE job;
RESET ROLE;
DROP SCHEMA gcur_app;
DROP ROLE gcur_app;
