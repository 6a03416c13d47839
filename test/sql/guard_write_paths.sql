-- Whatever writes a row meets the guard: without a fence LF002, under one it passes and is stamped.
CREATE ROLE gpath_app NOLOGIN;
CREATE SCHEMA AUTHORIZATION gpath_app;
SET ROLE gpath_app;
CREATE TABLE job (id int PRIMARY KEY, note text, by_token bigint);
CREATE TABLE src (id int, note text);
INSERT INTO src VALUES (1, 'x'), (2, 'x'), (7, 'x');
SELECT lease_protect('job', 'gpath', 'by_token');
SELECT lease_acquire('gpath', 'a', '1 hour');
BEGIN;
SELECT lease_require_fence('gpath', 'a', 1);
INSERT INTO job VALUES (1, 'seed'), (2, 'seed');
COMMIT;
CREATE VIEW job_view AS SELECT * FROM job;
CREATE TABLE old_job (id int, note text);
CREATE RULE old_job_insert AS ON INSERT TO old_job DO INSTEAD INSERT INTO job VALUES (NEW.id, NEW.note);
CREATE FUNCTION job_fun() RETURNS void LANGUAGE sql BEGIN ATOMIC
    UPDATE job SET note = 'sql';
END;
CREATE FUNCTION note_of(i int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    UPDATE gpath_app.job SET note = 'called' WHERE id = i;
    RETURN 'read';
END $$;
PREPARE del(int) AS DELETE FROM job WHERE id = $1;
\set VERBOSITY sqlstate

-- without
COPY job (id, note) FROM stdin;
3	copied
\.
INSERT INTO job SELECT id + 10, note FROM src;
INSERT INTO job VALUES (1, 'y') ON CONFLICT (id) DO UPDATE SET note = 'conflict';
INSERT INTO job VALUES (1, 'y') ON CONFLICT DO NOTHING;
MERGE INTO job USING src ON job.id = src.id WHEN NOT MATCHED THEN INSERT VALUES (src.id, src.note);
MERGE INTO job USING src ON job.id = src.id WHEN MATCHED THEN UPDATE SET note = 'merged';
MERGE INTO job USING src ON job.id = src.id WHEN MATCHED THEN DELETE;
WITH w AS (INSERT INTO job VALUES (20, 'cte') RETURNING id) SELECT 1;
WITH w AS (UPDATE job SET note = 'cte') SELECT 1;
WITH w AS (DELETE FROM job) SELECT 1;
UPDATE job SET note = src.note FROM src WHERE src.id = job.id;
DELETE FROM job USING src WHERE src.id = job.id;
INSERT INTO job_view VALUES (30, 'view');
UPDATE job_view SET note = 'view';
DELETE FROM job_view;
INSERT INTO old_job VALUES (40, 'rule');
SELECT job_fun();
SELECT note_of(1);
DO $$ BEGIN DELETE FROM job; END $$;
EXECUTE del(1);
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM job FOR UPDATE;
FETCH c;
UPDATE job SET note = 'current' WHERE CURRENT OF c;
ROLLBACK;
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM job FOR UPDATE;
FETCH c;
DELETE FROM job WHERE CURRENT OF c;
ROLLBACK;
SELECT * FROM job ORDER BY id;

-- under one
BEGIN;
SELECT lease_require_fence('gpath', 'a', 1);
COPY job (id, note) FROM stdin;
3	copied
4	copied
\.
COPY job FROM stdin WITH (FORMAT csv);
5,copied,1
\.
INSERT INTO job SELECT id + 10, note FROM src;
INSERT INTO job VALUES (1, 'y') ON CONFLICT (id) DO UPDATE SET note = 'conflict';
MERGE INTO job USING src ON job.id = src.id
    WHEN MATCHED AND src.id = 1 THEN DELETE
    WHEN MATCHED THEN UPDATE SET note = 'merged'
    WHEN NOT MATCHED THEN INSERT VALUES (src.id, src.note);
WITH w AS (INSERT INTO job VALUES (20, 'cte') RETURNING *) SELECT * FROM w;
INSERT INTO job_view VALUES (30, 'view');
INSERT INTO old_job VALUES (40, 'rule');
SELECT note_of(3);
EXECUTE del(4);
COMMIT;
SELECT * FROM job ORDER BY id;
BEGIN;
SELECT lease_require_fence('gpath', 'a', 1);
SELECT job_fun();
COMMIT;
SELECT DISTINCT note FROM job;

-- a wrong token in any of them, without and under the fence
COPY job FROM stdin;
99	copied	2
\.
BEGIN;
SELECT lease_require_fence('gpath', 'a', 1);
COPY job FROM stdin;
98	copied	1
99	copied	2
\.
ROLLBACK;
BEGIN;
SELECT lease_require_fence('gpath', 'a', 1);
MERGE INTO job USING src ON job.id = src.id WHEN MATCHED THEN UPDATE SET by_token = 2;
ROLLBACK;
BEGIN;
SELECT lease_require_fence('gpath', 'a', 1);
INSERT INTO job VALUES (2, 'y') ON CONFLICT (id) DO UPDATE SET by_token = 2;
ROLLBACK;

-- with the fence in the statement's own WITH, which is not sure to run before the write
WITH f AS MATERIALIZED (SELECT lease_require_fence('gpath', 'a', 1) AS token)
UPDATE job SET note = 'with' FROM f WHERE job.id = 2 AND f.token > 0;
-- MERGE, proof in the row: one action, which assigns the column
SELECT lease_protect('job', 'gpath', 'by_token', proof => 'row');
MERGE INTO job USING src ON job.id = src.id WHEN MATCHED THEN UPDATE SET note = 'y';
MERGE INTO job USING src ON job.id = src.id WHEN MATCHED THEN UPDATE SET by_token = 2;
MERGE INTO job USING src ON job.id = src.id WHEN MATCHED THEN UPDATE SET by_token = 1;
MERGE INTO job USING src ON job.id = src.id + 50 WHEN NOT MATCHED THEN INSERT VALUES (src.id + 50, 'y');
MERGE INTO job USING src ON job.id = src.id + 50 WHEN NOT MATCHED THEN INSERT VALUES (src.id + 50, 'y', 1);
MERGE INTO job USING src ON job.id = src.id WHEN MATCHED THEN DELETE;
SELECT * FROM job WHERE id > 50 ORDER BY id;

DROP RULE old_job_insert ON old_job;
DROP FUNCTION job_fun, note_of;
DROP VIEW job_view;
DROP TABLE job, old_job, src;
RESET ROLE;
DROP SCHEMA gpath_app;
DROP ROLE gpath_app;
