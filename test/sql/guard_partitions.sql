-- Partitions: made before and after, of another shape, written directly, moved between, attached and detached.
CREATE ROLE gpart_app NOLOGIN;
CREATE SCHEMA AUTHORIZATION gpart_app;
SET ROLE gpart_app;
CREATE TABLE job (id int, note text, by_token bigint) PARTITION BY LIST (id);
CREATE TABLE job1 PARTITION OF job FOR VALUES IN (1);
-- other columns in another order
CREATE TABLE job2 (by_token bigint, extra text, note text, id int);
ALTER TABLE job2 DROP COLUMN extra;
ALTER TABLE job ATTACH PARTITION job2 FOR VALUES IN (2);
CREATE TABLE job3 PARTITION OF job FOR VALUES IN (3, 4) PARTITION BY LIST (id);
CREATE TABLE job33 PARTITION OF job3 FOR VALUES IN (3);
SELECT lease_protect('job', 'gpart', 'by_token');
SELECT lease_acquire('gpart', 'a', '1 hour');
CREATE TABLE job34 PARTITION OF job3 FOR VALUES IN (4);
CREATE TABLE job5 PARTITION OF job FOR VALUES IN (5);
-- TRUNCATE is not inherited by what is made later
SELECT "table", events, enabled, open_children FROM lease_guards WHERE role = 'gpart' ORDER BY "table"::text COLLATE "C", events;
\set VERBOSITY sqlstate

-- by the parent and directly
INSERT INTO job VALUES (1);
INSERT INTO job VALUES (2);
INSERT INTO job VALUES (3);
INSERT INTO job VALUES (4);
INSERT INTO job VALUES (5);
INSERT INTO job1 VALUES (1);
INSERT INTO job2 (id) VALUES (2);
INSERT INTO job3 VALUES (3);
INSERT INTO job33 VALUES (3);
INSERT INTO job34 VALUES (4);
INSERT INTO job5 VALUES (5);
TRUNCATE job;
TRUNCATE job1;
TRUNCATE job2;
TRUNCATE job3;
TRUNCATE job33;

BEGIN;
SELECT lease_require_fence('gpart', 'a', 1);
INSERT INTO job SELECT generate_series(1, 5), 'by parent';
INSERT INTO job1 VALUES (1, 'direct');
INSERT INTO job2 (id, note) VALUES (2, 'direct');
INSERT INTO job33 VALUES (3, 'direct', 1);
COMMIT;
SELECT tableoid::regclass, id, note, by_token FROM job ORDER BY id, note;
UPDATE job SET note = 'x';
UPDATE job SET id = 5 WHERE id = 1;
UPDATE job2 SET note = 'x';
DELETE FROM job;
DELETE FROM job33;
-- the token column is found by its name, also where a row moves
SELECT lease_release('gpart', 'a', 1), lease_acquire('gpart', 'b', '1 hour');
BEGIN;
SELECT lease_require_fence('gpart', 'b', 2);
UPDATE job SET id = id % 5 + 1, note = 'moved' WHERE note = 'by parent';
SELECT tableoid::regclass, id, note, by_token FROM job ORDER BY id, note;
SAVEPOINT s;
UPDATE job SET id = id % 5 + 1, by_token = 7;
ROLLBACK TO s;
INSERT INTO job VALUES (2, 'x', 7);
ROLLBACK TO s;
INSERT INTO job2 (id, by_token) VALUES (2, 7);
ROLLBACK TO s;
DELETE FROM job WHERE note = 'direct';
COMMIT;
-- proof in the row, with the column's own number in each partition
SELECT lease_protect('job', 'gpart', 'by_token', proof => 'row');
INSERT INTO job SELECT generate_series(1, 5), 'row', 1;
INSERT INTO job SELECT generate_series(1, 5), 'row', 2;
UPDATE job SET note = 'x' WHERE id = 2;
UPDATE job SET id = id WHERE id = 2;
UPDATE job SET note = 'x', by_token = 2 WHERE id = 2;
UPDATE job2 SET note = 'x';
MERGE INTO job USING (VALUES (2)) v (i) ON id = i WHEN MATCHED THEN UPDATE SET note = 'x';
MERGE INTO job USING (VALUES (2)) v (i) ON id = i WHEN MATCHED THEN UPDATE SET note = 'x', by_token = 2;
UPDATE job SET id = 1 WHERE id = 2;
UPDATE job SET id = 1, by_token = 2 WHERE id = 2;
-- calling it again has closed what stood open
SELECT count(*) FROM lease_guards WHERE role = 'gpart' AND open_children <> '{}';
TRUNCATE job34;
TRUNCATE job5;

-- DETACH takes the row guard away, and TRUNCATE's stays; ATTACH brings it again
ALTER TABLE job DETACH PARTITION job5;
SELECT "table", events FROM lease_guards WHERE "table" = 'job5'::regclass;
UPDATE job5 SET note = 'edited while detached';
TRUNCATE job5;
ALTER TABLE job ATTACH PARTITION job5 FOR VALUES IN (5);
UPDATE job5 SET note = 'x';
SELECT count(*) FROM lease_guards WHERE role = 'gpart' AND open_children <> '{}';
-- a table with a guard of the same lease is attached after that is taken off
CREATE TABLE job6 (id int, note text, by_token bigint);
SELECT lease_protect('job6', 'gpart', 'by_token', proof => 'row');
ALTER TABLE job ATTACH PARTITION job6 FOR VALUES IN (6);
BEGIN;
SELECT lease_unprotect('job6', 'gpart');
ALTER TABLE job ATTACH PARTITION job6 FOR VALUES IN (6);
SELECT "table", open_children FROM lease_guards WHERE role = 'gpart' AND open_children <> '{}';
SELECT lease_protect('job', 'gpart', 'by_token');
SELECT "table", open_children FROM lease_guards WHERE role = 'gpart' AND open_children <> '{}';
COMMIT;
INSERT INTO job VALUES (6);
-- a guard for a partition alone
SELECT lease_protect('job1', 'gpart other');
BEGIN;
SELECT lease_require_fence('gpart', 'b', 2);
INSERT INTO job VALUES (2);
INSERT INTO job VALUES (1);
ROLLBACK;
SELECT lease_unprotect('job1', 'gpart other');
-- that of the parent cannot be taken off a partition
SELECT lease_unprotect('job1', 'gpart other');
\set VERBOSITY default
SELECT lease_protect('job', 'gpart', 'by_token', 'insert,update,delete');
SELECT lease_unprotect('job1');
DROP TRIGGER "~lease_fence_x" ON job1;
SELECT lease_unprotect('job');
SELECT count(*) FROM lease_guards WHERE role = 'gpart';
INSERT INTO job VALUES (1), (2), (3), (4), (5), (6);

DROP TABLE job;
RESET ROLE;
DROP SCHEMA gpart_app;
DROP ROLE gpart_app;
