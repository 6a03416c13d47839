-- Children by inheritance get guards of their own; what is added later shows as open.
CREATE ROLE ginh_app NOLOGIN;
CREATE SCHEMA AUTHORIZATION ginh_app;
SET ROLE ginh_app;
CREATE TABLE job (id int, by_token bigint);
CREATE TABLE job_child (extra text) INHERITS (job);
CREATE TABLE job_grandchild () INHERITS (job_child);
-- a child with columns in another order, and a second parent
CREATE TABLE other (other_id int);
CREATE TABLE job_mixed (by_token bigint, id int);
ALTER TABLE job_mixed INHERIT job;
SELECT lease_protect('job', 'ginh', 'by_token');
SELECT lease_acquire('ginh', 'a', '1 hour');
\set VERBOSITY sqlstate
INSERT INTO job VALUES (1);
INSERT INTO job_child VALUES (1);
INSERT INTO job_grandchild VALUES (1);
INSERT INTO job_mixed VALUES (1);
TRUNCATE ONLY job;
TRUNCATE job_child;
TRUNCATE ONLY job_grandchild;
TRUNCATE job_mixed;
BEGIN;
SELECT lease_require_fence('ginh', 'a', 1);
INSERT INTO job VALUES (1);
INSERT INTO job_child VALUES (2);
INSERT INTO job_grandchild VALUES (3);
INSERT INTO job_mixed (id) VALUES (4);
COMMIT;
SELECT tableoid::regclass, * FROM job ORDER BY id;
UPDATE job SET id = id WHERE id = 3;
UPDATE job SET id = id WHERE id = 4;
DELETE FROM job WHERE id = 2;
-- proof in the row, by the parent
SELECT lease_protect('job', 'ginh', 'by_token', proof => 'row');
UPDATE job SET id = id WHERE id = 4;
UPDATE job SET by_token = 2 WHERE id = 4;
UPDATE job SET by_token = 1;

-- later children
CREATE TABLE job_late () INHERITS (job);
CREATE TABLE job_later () INHERITS (job_grandchild, other);
SELECT "table", events, open_children FROM lease_guards WHERE role = 'ginh' ORDER BY "table"::text COLLATE "C", events;
INSERT INTO job_late VALUES (9);
UPDATE job SET id = 10 WHERE id = 9;
SELECT lease_protect('job', 'ginh', 'by_token', proof => 'row');
SELECT count(*) FROM lease_guards WHERE role = 'ginh' AND open_children <> '{}';
INSERT INTO job_late VALUES (9);
INSERT INTO job_later VALUES (9);
-- a guard of a child that is weaker, or does not fire, leaves it open
ALTER TABLE job_late DISABLE TRIGGER USER;
CREATE FUNCTION no_guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
CREATE TRIGGER no_guard BEFORE INSERT OR UPDATE OR DELETE ON job_late
    FOR EACH ROW EXECUTE FUNCTION no_guard('ginh', 'token_column=by_token', 'proof=row');
SELECT lease_protect('job_later', 'ginh', 'by_token', proof => 'row', mode => 'log');
SELECT lease_protect('job_mixed', 'ginh', 'by_token', 'insert,truncate', proof => 'row');
DO $$
DECLARE
    name name;
BEGIN
    FOR name IN SELECT tgname FROM pg_trigger WHERE tgrelid = 'job_child'::regclass LOOP
        EXECUTE format('ALTER TABLE job_child ENABLE REPLICA TRIGGER %I', name);
    END LOOP;
END $$;
SELECT "table", events, open_children FROM lease_guards WHERE "table" = 'job'::regclass ORDER BY events;
-- one that fires always is more
DROP FUNCTION no_guard CASCADE;
SELECT lease_protect('job', 'ginh', 'by_token');
SELECT lease_protect('job_child', 'ginh', 'by_token', on_replica => true);
SELECT events, enabled, open_children FROM lease_guards WHERE "table" = 'job'::regclass ORDER BY events;
-- nor is a child that does not fire in a replica session enough for a parent that does
SELECT lease_protect('job', 'ginh', 'by_token', on_replica => true);
ALTER TABLE job_child ENABLE TRIGGER USER;
SELECT events, enabled, open_children FROM lease_guards WHERE "table" = 'job'::regclass ORDER BY events;

SELECT lease_unprotect('job');
SELECT count(*) FROM lease_guards WHERE role = 'ginh';
INSERT INTO job_grandchild VALUES (99);

DROP TABLE job, job_child, job_grandchild, job_mixed, job_late, job_later, other;
RESET ROLE;
DROP SCHEMA ginh_app;
DROP ROLE ginh_app;
