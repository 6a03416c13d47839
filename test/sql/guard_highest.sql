-- proof 'highest': the lease lives elsewhere, and no write by a lower token than was seen passes.
CREATE ROLE high_app NOLOGIN;
CREATE ROLE high_other NOLOGIN;
CREATE SCHEMA AUTHORIZATION high_app;
SET ROLE high_app;
CREATE TABLE job (id int PRIMARY KEY, note text, by_token bigint);
SELECT lease_protect('job', 'high', proof => 'highest');
SELECT lease_protect('job', 'high', 'by_token', proof => 'highest');
SELECT options, events FROM lease_guards WHERE role = 'high' ORDER BY events;

-- by the token in the row: INSERT, and UPDATE that assigns it
INSERT INTO job VALUES (1, 'first', 33), (2, 'first', 33);
INSERT INTO job VALUES (3, 'equal', 33);
SELECT resource, fencing_token FROM lease_observed;
\set VERBOSITY default
INSERT INTO job VALUES (4, 'below', 32);
INSERT INTO job VALUES (4, 'none');
\set VERBOSITY sqlstate
INSERT INTO job VALUES (4, 'none', 0);
INSERT INTO job VALUES (4, 'nobody''s', -1);
UPDATE job SET note = 'not assigned';
UPDATE job SET note = 'below', by_token = 32;
UPDATE job SET note = 'equal', by_token = 33 WHERE id = 2 RETURNING *;
-- the next leader
UPDATE job SET note = 'next', by_token = 34 WHERE id = 1 RETURNING *;
UPDATE job SET note = 'written back', by_token = by_token WHERE id = 2;
UPDATE job SET note = 'below', by_token = 33 WHERE id = 1;
INSERT INTO job VALUES (4, 'below', 33);
-- in one statement, some rows are below what others raised: all of it is refused
INSERT INTO job VALUES (4, 'raised', 35), (5, 'below', 34);
SELECT fencing_token FROM lease_observed;
INSERT INTO job VALUES (4, 'equal', 34), (5, 'raised', 36), (6, 'raised', 36) RETURNING *;
DELETE FROM job WHERE id > 3;
TRUNCATE job;

-- by an observation earlier in the transaction: also DELETE and what assigns nothing, stamped
BEGIN;
SELECT lease_observe('high', 36);
UPDATE job SET note = 'observed' WHERE id = 1 RETURNING *;
INSERT INTO job VALUES (7, 'observed') RETURNING *;
DELETE FROM job WHERE id > 4 RETURNING id;
-- a row's old token written back is no other token
UPDATE job SET note = 'written back', by_token = 34 WHERE id = 4 RETURNING *;
SAVEPOINT s;
UPDATE job SET by_token = 35 WHERE id = 4;
ROLLBACK TO s;
INSERT INTO job VALUES (8, 'below', 35);
ROLLBACK TO s;
-- a higher one is, and is observed
INSERT INTO job VALUES (8, 'higher', 37) RETURNING *;
UPDATE job SET note = 'observed' WHERE id = 2 RETURNING *;
SELECT fencing_token FROM lease_observed;
ROLLBACK TO s;
UPDATE job SET note = 'back' WHERE id = 2 RETURNING *;
TRUNCATE job;
ROLLBACK;
-- an observation that is rolled back is none
BEGIN;
SAVEPOINT s;
SELECT lease_observe('high', 36);
ROLLBACK TO s;
DELETE FROM job;
ROLLBACK;
-- nor is a fence of a lease of that name, or an observation of another resource
SELECT lease_acquire('high', 'a', '1 hour');
BEGIN;
SELECT lease_require_fence('high', 'a', 1), lease_observe('higher', 36);
DELETE FROM job;
ROLLBACK;
-- nor a false one
BEGIN;
SELECT lease_observe('high', 35);
DELETE FROM job;
ROLLBACK;

-- by the setting; its holder means nothing
SET leader_lease.fence = '{"role": "high", "holder": "whoever", "token": 36}';
UPDATE job SET note = 'by the setting' WHERE id = 3 RETURNING *;
INSERT INTO job VALUES (9, 'by the setting') RETURNING *;
DELETE FROM job WHERE id = 9;
INSERT INTO job VALUES (9, 'below', 35);
INSERT INTO job VALUES (9, 'above', 37) RETURNING *;
-- now the setting is stale
INSERT INTO job VALUES (10, 'above', 37);
DELETE FROM job;
SET leader_lease.fence = '{"role": "high", "holder": "whoever", "token": 38}';
DELETE FROM job WHERE id = 9;
SELECT fencing_token FROM lease_observed WHERE resource = 'high';
SET leader_lease.fence = '{"role": "high", "token": 38}';
INSERT INTO job VALUES (9, 'bad setting', 38);
RESET leader_lease.fence;

-- whose resource it is not
GRANT ALL ON SCHEMA high_app TO high_other;
GRANT ALL ON job TO high_other;
RESET ROLE;
SET ROLE high_other;
INSERT INTO high_app.job VALUES (9, 'other', 38);
INSERT INTO high_app.job VALUES (9, 'other', 39);
INSERT INTO high_app.job VALUES (9, 'other', 1);
SET ROLE high_app;

-- REPEATABLE READ: a token that is known
BEGIN ISOLATION LEVEL REPEATABLE READ;
INSERT INTO job VALUES (9, 'known', 38) RETURNING *;
SAVEPOINT s;
INSERT INTO job VALUES (10, 'below', 37);
ROLLBACK TO s;
-- one that is not has to be observed and committed first
INSERT INTO job VALUES (10, 'new', 39);
ROLLBACK TO s;
SELECT lease_observe('high', 39);
INSERT INTO job VALUES (10, 'new', 39);
ROLLBACK;
-- READ COMMITTED: the next statement may write, and where nobody has committed since it began, this one
BEGIN;
SELECT lease_observe('high', 39);
INSERT INTO job VALUES (10, 'new', 39) RETURNING *;
ROLLBACK;
BEGIN;
WITH o AS MATERIALIZED (SELECT lease_observe('high', 39)) INSERT INTO job SELECT 10, 'new' FROM o RETURNING *;
ROLLBACK;
-- but not where a function raises it whose snapshot is another than the statement's
CREATE FUNCTION inner_observe(t bigint) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN lease_observe(''high'', t); END';
WITH o AS MATERIALIZED (SELECT inner_observe(39)) INSERT INTO job SELECT 10, 'new' FROM o RETURNING *;

-- COPY and upsert
COPY job FROM stdin;
20	copied	38
21	copied	38
\.
COPY job FROM stdin;
22	copied	38
23	copied	37
\.
INSERT INTO job VALUES (20, 'upsert', 38) ON CONFLICT (id) DO UPDATE SET note = EXCLUDED.note, by_token = EXCLUDED.by_token RETURNING *;
INSERT INTO job VALUES (20, 'upsert', 37) ON CONFLICT (id) DO UPDATE SET note = EXCLUDED.note, by_token = EXCLUDED.by_token;

-- mode log lets through
SELECT lease_protect('job', 'high', 'by_token', proof => 'highest', mode => 'log');
INSERT INTO job VALUES (30, 'below', 37), (31, 'none', NULL), (32, 'equal', 38);
DELETE FROM job WHERE id >= 30;
-- also a resource that may not be made
RESET ROLE;
SET leader_lease.auto_create = off;
SET ROLE high_app;
SELECT lease_protect('job', 'high unknown', 'by_token', proof => 'highest', mode => 'log');
INSERT INTO job VALUES (30, 'unknown', 38);
\set VERBOSITY default
SELECT lease_protect('job', 'high unknown', 'by_token', proof => 'highest');
INSERT INTO job VALUES (31, 'unknown', 38);
\set VERBOSITY sqlstate
RESET ROLE;
RESET leader_lease.auto_create;
SET ROLE high_app;
SELECT lease_unprotect('job');
DROP TABLE job;

-- a resource a row
CREATE TABLE part (shard text, n int, by_token bigint) PARTITION BY LIST (shard);
CREATE TABLE part1 PARTITION OF part FOR VALUES IN ('1');
CREATE TABLE part2 (by_token bigint, n int, shard text);
ALTER TABLE part ATTACH PARTITION part2 FOR VALUES IN ('2');
SELECT lease_protect('part', 'high/', 'by_token', proof => 'highest', key_column => 'shard');
INSERT INTO part VALUES ('1', 1, 5), ('2', 1, 7);
INSERT INTO part VALUES ('2', 2, 6);
INSERT INTO part VALUES (NULL, 2, 6);
UPDATE part SET n = 3, by_token = 6 WHERE shard = '1';
SELECT resource, fencing_token FROM lease_observed WHERE resource LIKE 'high/%' ORDER BY 1;
-- by its key a row goes from one to another: its token is the new one's
UPDATE part SET shard = '2', by_token = 7 WHERE shard = '1';
BEGIN;
SELECT lease_observe('high/1', 6);
UPDATE part SET shard = '2', by_token = 7 WHERE shard = '1';
SELECT lease_observe('high/2', 8);
UPDATE part SET n = 4;
SELECT * FROM part ORDER BY n;
TRUNCATE part;
ROLLBACK;
DROP TABLE part;

DROP FUNCTION inner_observe;
RESET ROLE;
DROP SCHEMA high_app;
DROP ROLE high_app, high_other;
