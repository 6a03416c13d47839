-- mode 'log' lets through what would be refused, and says so once a statement.
CREATE ROLE glog_app NOLOGIN;
CREATE SCHEMA AUTHORIZATION glog_app;
SET ROLE glog_app;
CREATE TABLE job (id int PRIMARY KEY, by_token bigint);
SELECT lease_protect('job', 'glog', 'by_token', mode => 'log');
SELECT lease_acquire('glog', 'a', '1 hour');
SET client_min_messages = log;

-- what is let through is not stamped: nobody has proved the token
INSERT INTO job VALUES (1, NULL), (2, 99), (3, 1);
UPDATE job SET id = id + 10 WHERE id = 3;
DELETE FROM job WHERE id = 13;
SELECT * FROM job ORDER BY id;
TRUNCATE job;
-- each reason
SET leader_lease.fence = '{"role": "glog", "holder": "a", "token": 9}';
INSERT INTO job SELECT generate_series(1, 1000);
-- whose fence is not held, and holds nothing up
BEGIN;
DELETE FROM job WHERE id > 900;
SELECT count(*) FROM lease_locks WHERE role = 'glog';
COMMIT;
SET leader_lease.fence = '{"role": "glog"}';
DELETE FROM job;
RESET leader_lease.fence;

-- with a fence there is nothing to say, but for a wrong token
BEGIN;
SELECT lease_require_fence('glog', 'a', 1);
INSERT INTO job VALUES (1);
INSERT INTO job VALUES (2, 99);
UPDATE job SET id = 3 WHERE id = 2;
DELETE FROM job WHERE id = 3;
COMMIT;
SELECT * FROM job;
-- proof in the row
SELECT lease_protect('job', 'glog', 'by_token', mode => 'log', proof => 'row');
INSERT INTO job VALUES (4, 1);
INSERT INTO job VALUES (5, 2);
SELECT * FROM job ORDER BY id;
-- a stranger writes on, and takes no fence
RESET ROLE;
CREATE ROLE glog_other NOLOGIN;
GRANT USAGE ON SCHEMA glog_app TO glog_other;
GRANT INSERT ON glog_app.job TO glog_other;
SET ROLE glog_other;
BEGIN;
INSERT INTO glog_app.job VALUES (6, 1);
SET ROLE glog_app;
SELECT open_fences FROM lease_status WHERE role = 'glog';
COMMIT;

-- the same statements when it is enforced
RESET client_min_messages;
SELECT lease_protect('job', 'glog', 'by_token');
\set VERBOSITY sqlstate
INSERT INTO job VALUES (7, 1);
UPDATE job SET id = 8;
DELETE FROM job;
TRUNCATE job;
SELECT * FROM job ORDER BY id;

DROP TABLE job;
RESET ROLE;
DROP SCHEMA glog_app;
DROP ROLE glog_app, glog_other;
