-- With a token column, what is written under a fence carries the current token.
CREATE ROLE gs_app NOLOGIN;
CREATE SCHEMA AUTHORIZATION gs_app;
SET ROLE gs_app;
CREATE TABLE job (id int PRIMARY KEY, note text, by_token bigint NOT NULL);
SELECT lease_protect('job', 'gs', 'by_token');
SELECT lease_acquire('gs', 'a', '1 hour');

-- left out, NULL, and the current token given
BEGIN;
SELECT lease_require_fence('gs', 'a', 1);
INSERT INTO job VALUES (1, 'left out') RETURNING *;
INSERT INTO job VALUES (2, 'null', NULL), (3, 'given', 1) RETURNING *;
COMMIT;
INSERT INTO job VALUES (4, 'stamped', lease_require_fence('gs', 'a', 1)) RETURNING *;
-- any other value means another term
\set VERBOSITY default
BEGIN;
SELECT lease_require_fence('gs', 'a', 1);
INSERT INTO job VALUES (5, 'other', 2);
ROLLBACK;
\set VERBOSITY sqlstate
BEGIN;
SELECT lease_require_fence('gs', 'a', 1);
SAVEPOINT s;
INSERT INTO job VALUES (5, 'other', -1);
ROLLBACK TO s;
UPDATE job SET by_token = 2 WHERE id = 1;
ROLLBACK TO s;
-- the refused ones have not cost the fence
UPDATE job SET by_token = NULL WHERE id = 1 RETURNING *;
UPDATE job SET by_token = 1 WHERE id = 1 RETURNING *;
COMMIT;

-- 0, the usual default of a column that was added later, is no token but none, like NULL
ALTER TABLE job ALTER by_token SET DEFAULT 0;
BEGIN;
SELECT lease_require_fence('gs', 'a', 1);
INSERT INTO job (id, note) VALUES (5, 'default') RETURNING *;
UPDATE job SET by_token = 0 WHERE id = 5 RETURNING *;
ROLLBACK;
INSERT INTO job (id, note) VALUES (5, 'default');
UPDATE job SET by_token = 0;

-- without a fence a token in the row is none: neither the current one, nor the row's own left in place or written
-- back; another one is told as such
INSERT INTO job VALUES (6, 'no fence', 1);
UPDATE job SET note = 'no fence';
UPDATE job SET by_token = by_token;
UPDATE job SET by_token = 1;
UPDATE job SET by_token = 7;

-- the next term: rows stamped by the one before are taken over as they are written
SELECT lease_release('gs', 'a', 1), lease_acquire('gs', 'b', '1 hour');
BEGIN;
SELECT lease_require_fence('gs', 'b', 2);
SELECT * FROM job WHERE id = 1;
UPDATE job SET note = 'left in place' WHERE id = 1 RETURNING *;
UPDATE job SET note = 'written back', by_token = 1 WHERE id = 2 RETURNING *;
UPDATE job SET note = 'by function', by_token = lease_require_fence('gs', 'b', 2) WHERE id = 3 RETURNING *;
SAVEPOINT s;
-- only the row's own old value is one that was written back
UPDATE job SET by_token = 1 WHERE id = 1;
ROLLBACK TO s;
-- rows that are deleted are not looked at
DELETE FROM job WHERE id = 4 RETURNING *;
COMMIT;
-- the former leader, who writes every column back as he read it
BEGIN;
SELECT lease_check_fence('gs', 'a', 1);
UPDATE job SET id = 1, note = 'stale', by_token = 2 WHERE id = 1;
ROLLBACK;
SELECT * FROM job ORDER BY id;

-- an upsert stamps the row that is proposed and the one that is updated
BEGIN;
SELECT lease_require_fence('gs', 'b', 2);
INSERT INTO job (id, note) VALUES (1, 'upsert') ON CONFLICT (id) DO UPDATE
    SET note = EXCLUDED.note || ' ' || EXCLUDED.by_token RETURNING *;
INSERT INTO job (id, note) VALUES (7, 'upsert') ON CONFLICT (id) DO UPDATE SET note = 'x' RETURNING *;
COMMIT;

-- rows from before the guard
CREATE TABLE old_job (id int, by_token bigint);
INSERT INTO old_job VALUES (1), (2);
SELECT lease_protect('old_job', 'gs', 'by_token');
BEGIN;
SELECT lease_require_fence('gs', 'b', 2);
UPDATE old_job SET id = 3 WHERE id = 1 RETURNING *;
UPDATE old_job SET by_token = 0 WHERE id = 2 RETURNING *;
UPDATE old_job SET by_token = 1 WHERE id = 2;
ROLLBACK;
DROP TABLE old_job;

-- a column that is not there any more lets nothing through
ALTER TABLE job RENAME by_token TO token;
BEGIN;
SELECT lease_require_fence('gs', 'b', 2);
INSERT INTO job VALUES (8, 'renamed', 2);
ROLLBACK;
ALTER TABLE job ALTER token TYPE int;
ALTER TABLE job RENAME token TO by_token;
BEGIN;
SELECT lease_require_fence('gs', 'b', 2);
INSERT INTO job VALUES (8, 'integer', 2);
ROLLBACK;
SELECT count(*) FROM job;

DROP TABLE job;
RESET ROLE;
DROP SCHEMA gs_app;
DROP ROLE gs_app;
