-- With a key column each row has its own lease: the given name || the column.
CREATE ROLE gkey_app NOLOGIN;
CREATE SCHEMA AUTHORIZATION gkey_app;
SET ROLE gkey_app;
CREATE TABLE job (id int PRIMARY KEY, shard_no int, note text, by_token bigint);
SELECT lease_protect('job', 'gkey/', 'by_token', key_column => 'shard_no');
SELECT "table", role, options, events FROM lease_guards WHERE role = 'gkey/' ORDER BY events;
-- tokens that differ
SELECT lease_acquire('gkey/1', 'a', '1 hour'), lease_acquire('gkey/-2', 'a', '1 hour');
SELECT lease_revoke('gkey/-2', min_token => 5), lease_acquire('gkey/-2', 'a', '1 hour');
SELECT lease_acquire('gkey/3', 'other', '1 hour');

-- the fence of another row's lease, or of a lease with the bare name, is none
SELECT lease_acquire('gkey/', 'a', '1 hour');
BEGIN;
SELECT lease_require_fence('gkey/', 'a', 1);
INSERT INTO job VALUES (1, 1);
ROLLBACK;
BEGIN;
SELECT lease_require_fence('gkey/-2', 'a', 6);
INSERT INTO job VALUES (2, -2) RETURNING *;
\set VERBOSITY sqlstate
SAVEPOINT s;
INSERT INTO job VALUES (3, 2);
ROLLBACK TO s;
INSERT INTO job VALUES (1, 1);
ROLLBACK TO s;
-- in one statement: the whole of it
INSERT INTO job VALUES (3, -2), (4, -2), (1, 1);
ROLLBACK TO s;
SELECT lease_require_fence('gkey/1', 'a', 1);
INSERT INTO job VALUES (1, 1), (3, -2), (4, 1), (5, -2) RETURNING *;
COMMIT;
-- a token of another row's lease is not this one's
INSERT INTO job VALUES (6, 1, 'x', lease_require_fence('gkey/-2', 'a', 6));

-- an UPDATE that leaves the key wants one fence, and one that changes it both
BEGIN;
SELECT lease_require_fence('gkey/1', 'a', 1);
UPDATE job SET note = 'one', shard_no = shard_no WHERE id = 1 RETURNING *;
SAVEPOINT s;
UPDATE job SET shard_no = -2 WHERE id = 1;
ROLLBACK TO s;
UPDATE job SET shard_no = 1 WHERE id = 2;
ROLLBACK TO s;
DELETE FROM job WHERE id = 2;
ROLLBACK TO s;
DELETE FROM job WHERE id = 4 RETURNING *;
-- the stamp is the new lease's token
SELECT lease_require_fence('gkey/-2', 'a', 6);
UPDATE job SET shard_no = -1 - shard_no WHERE id IN (1, 2) RETURNING *;
UPDATE job SET shard_no = 1, by_token = 1 WHERE id = 3 RETURNING *;
SAVEPOINT s;
UPDATE job SET shard_no = -2, by_token = 5 WHERE id = 3;
ROLLBACK TO s;
-- many rows, the keys in turn
UPDATE job SET note = 'all' RETURNING *;
ROLLBACK;

-- no key, no lease
\set VERBOSITY default
INSERT INTO job VALUES (6, NULL);
BEGIN;
SELECT lease_require_fence('gkey/1', 'a', 1);
UPDATE job SET shard_no = NULL WHERE id = 1;
ROLLBACK;
-- no fence covers all rows of a table
BEGIN;
SELECT lease_require_fence('gkey/1', 'a', 1), lease_require_fence('gkey/-2', 'a', 6);
TRUNCATE job;
ROLLBACK;
\set VERBOSITY sqlstate
BEGIN;
SELECT lease_protect('job', 'gkey/', 'by_token', 'insert,update,delete', key_column => 'shard_no');
TRUNCATE job;
ROLLBACK;

-- what is written counts, whatever a trigger makes of it before
CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.shard_no := -2; RETURN NEW; END';
CREATE TRIGGER move BEFORE INSERT OR UPDATE ON job FOR EACH ROW EXECUTE FUNCTION move();
BEGIN;
SELECT lease_require_fence('gkey/1', 'a', 1);
SAVEPOINT s;
INSERT INTO job VALUES (6, 1);
ROLLBACK TO s;
UPDATE job SET note = 'x' WHERE id = 1;
ROLLBACK TO s;
SELECT lease_require_fence('gkey/-2', 'a', 6);
INSERT INTO job VALUES (6, 1) RETURNING *;
UPDATE job SET note = 'x' WHERE id = 1 RETURNING *;
ROLLBACK;
DROP FUNCTION move CASCADE;

-- upsert: the proposed row's lease, and that of the row it meets
BEGIN;
SELECT lease_require_fence('gkey/1', 'a', 1);
INSERT INTO job VALUES (1, 1, 'upsert') ON CONFLICT (id) DO UPDATE SET note = EXCLUDED.note RETURNING *;
SAVEPOINT s;
INSERT INTO job VALUES (2, 1, 'upsert') ON CONFLICT (id) DO UPDATE SET note = EXCLUDED.note RETURNING *;
ROLLBACK TO s;
INSERT INTO job VALUES (1, -2, 'upsert') ON CONFLICT (id) DO UPDATE SET note = EXCLUDED.note RETURNING *;
ROLLBACK TO s;
INSERT INTO job VALUES (1, -2, 'upsert') ON CONFLICT (id) DO NOTHING;
ROLLBACK TO s;
MERGE INTO job USING (VALUES (1, 1), (7, 1)) v (i, s) ON id = i
    WHEN MATCHED THEN UPDATE SET note = 'merged' WHEN NOT MATCHED THEN INSERT VALUES (i, s, 'merged');
MERGE INTO job USING (VALUES (1), (2)) v (i) ON id = i WHEN MATCHED THEN DELETE;
ROLLBACK TO s;
COPY job (id, shard_no) FROM stdin;
8	1
9	1
\.
SAVEPOINT s;
COPY job (id, shard_no) FROM stdin;
10	1
11	-2
\.
ROLLBACK TO s;
SELECT * FROM job ORDER BY id;
ROLLBACK;

-- the setting names many leases
SET leader_lease.fence = '[{"role": "gkey/1", "holder": "a", "token": 1}, {"role": "gkey/-2", "holder": "a", "token": 6},
    {"role": "gkey/3", "holder": "a", "token": 1}, {"role": "unknown", "holder": "a", "token": 1}]';
UPDATE job SET note = 'by the setting' RETURNING *;
UPDATE job SET shard_no = -1 - shard_no WHERE id <= 2 RETURNING *;
UPDATE job SET shard_no = -1 - shard_no WHERE id <= 2 RETURNING *;
INSERT INTO job VALUES (6, 3);
INSERT INTO job VALUES (6, 4);
RESET leader_lease.fence;

-- proof in the row: the token is the new key's, and says nothing of the old one's
SELECT lease_protect('job', 'gkey/', 'by_token', proof => 'row', key_column => 'shard_no');
INSERT INTO job VALUES (6, 1, 'row', 1), (7, -2, 'row', 6) RETURNING *;
INSERT INTO job VALUES (8, 1, 'row', 6);
INSERT INTO job VALUES (8, -2, 'row', 1);
UPDATE job SET note = 'row', by_token = 6 WHERE id = 7;
UPDATE job SET shard_no = 1, by_token = 1 WHERE id = 7;
UPDATE job SET shard_no = 1, by_token = 6 WHERE id = 7;
BEGIN;
SELECT lease_require_fence('gkey/-2', 'a', 6);
UPDATE job SET shard_no = 1, by_token = 1 WHERE id = 7 RETURNING *;
COMMIT;
DELETE FROM job WHERE id = 7;

-- mode log lets through, and refuses nothing for what is wrong with a key
SELECT lease_protect('job', 'gkey/', 'by_token', mode => 'log', key_column => 'shard_no');
INSERT INTO job VALUES (10, NULL), (11, 3), (12, NULL) RETURNING *;
UPDATE job SET shard_no = 4 WHERE shard_no IS NULL RETURNING *;
ALTER TABLE job RENAME shard_no TO shard;
INSERT INTO job VALUES (13, 1, 'no key column') RETURNING *;
DELETE FROM job WHERE id > 9;
-- but with enforce a column that is not there any more lets nothing through
ALTER TABLE job RENAME shard TO shard_no;
SELECT lease_protect('job', 'gkey/', 'by_token', key_column => 'shard_no');
ALTER TABLE job RENAME shard_no TO shard;
BEGIN;
SELECT lease_require_fence('gkey/1', 'a', 1);
\set VERBOSITY default
INSERT INTO job VALUES (10, 1);
\set VERBOSITY sqlstate
ROLLBACK;
ALTER TABLE job RENAME shard TO shard_no;
ALTER TABLE job ALTER shard_no TYPE numeric;
BEGIN;
SELECT lease_require_fence('gkey/1', 'a', 1);
INSERT INTO job VALUES (10, 1);
ROLLBACK;

-- calling it again takes the key away; taking off goes by the name
SELECT lease_protect('job', 'gkey/', 'by_token');
SELECT options FROM lease_guards WHERE role = 'gkey/';
BEGIN;
SELECT lease_require_fence('gkey/', 'a', 1);
INSERT INTO job VALUES (10, 1) RETURNING *;
ROLLBACK;
SELECT lease_unprotect('job', 'gkey/');
DROP TABLE job;

-- the types whose text is always the same
CREATE DOMAIN gkey_domain AS int;
CREATE DOMAIN gkey_domain2 AS gkey_domain CHECK (VALUE < 100);
CREATE TABLE typed (i2 int2, i8 int8, t text, v varchar(10), u uuid, d gkey_domain2);
SELECT lease_acquire('k' || k, 'a', '1 hour') FROM unnest(ARRAY['7', '-9223372036854775808', 'x y', '',
    '00000000-0000-0000-0000-00000000000a', '8']) k;
CREATE FUNCTION try(col name, value text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lease_protect('typed', 'k', key_column => col);
    EXECUTE format('INSERT INTO typed (%I) VALUES (%s)', col, value);
    RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE || ' ' || SQLERRM;
END $$;
SET leader_lease.fence = '[{"role": "k7", "holder": "a", "token": 1}, {"role": "k-9223372036854775808", "holder": "a", "token": 1},
    {"role": "kx y", "holder": "a", "token": 1}, {"role": "k", "holder": "a", "token": 1},
    {"role": "k00000000-0000-0000-0000-00000000000a", "holder": "a", "token": 1}, {"role": "k8", "holder": "a", "token": 1}]';
SELECT c, v, left(try(c, v), 60) FROM (VALUES ('i2', '7'), ('i2', '-7'), ('i8', '-9223372036854775808'), ('t', '''x y'''), ('t', ''''''),
    ('t', '''x y '''), ('t', 'repeat(''x'', 254)'), ('t', 'repeat(''x'', 255)'), ('t', 'repeat(''x'', 100000)'), ('v', '''7'''),
    ('u', '''00000000-0000-0000-0000-00000000000A'''), ('d', '8'), ('d', '9')) x (c, v);
RESET leader_lease.fence;
DROP FUNCTION try;
DROP TABLE typed;
DROP DOMAIN gkey_domain2, gkey_domain;

-- a row that moves to another partition leaves one lease and enters another; the column is found by its name
CREATE TABLE part (id int, shard_no int, by_token bigint) PARTITION BY LIST (shard_no);
CREATE TABLE part1 PARTITION OF part FOR VALUES IN (1);
CREATE TABLE part2 (by_token bigint, shard_no int, id int);
ALTER TABLE part ATTACH PARTITION part2 FOR VALUES IN (-2);
SELECT lease_protect('part', 'gkey/', 'by_token', key_column => 'shard_no');
BEGIN;
SELECT lease_require_fence('gkey/1', 'a', 1);
INSERT INTO part VALUES (1, 1);
SAVEPOINT s;
INSERT INTO part VALUES (1, -2);
ROLLBACK TO s;
UPDATE part SET shard_no = -2;
ROLLBACK TO s;
TRUNCATE part2;
ROLLBACK TO s;
SELECT lease_require_fence('gkey/-2', 'a', 6);
UPDATE part SET shard_no = -2;
SELECT tableoid::regclass, * FROM part;
COMMIT;
BEGIN;
SELECT lease_require_fence('gkey/1', 'a', 1);
UPDATE part SET shard_no = 1;
ROLLBACK;
DROP TABLE part;

RESET ROLE;
DROP SCHEMA gkey_app;
DROP ROLE gkey_app;
