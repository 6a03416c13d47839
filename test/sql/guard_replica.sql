-- What a replica session applies passes, unless the guard is on_replica.
CREATE TABLE greplica_job (id int) PARTITION BY LIST (id);
CREATE TABLE greplica_job1 PARTITION OF greplica_job FOR VALUES IN (1);
SELECT lease_protect('greplica_job', 'greplica');
SELECT DISTINCT enabled FROM lease_guards WHERE role = 'greplica';
\set VERBOSITY sqlstate
INSERT INTO greplica_job VALUES (1);
SET session_replication_role = replica;
INSERT INTO greplica_job VALUES (1);
TRUNCATE greplica_job;
SELECT lease_protect('greplica_job', 'greplica', on_replica => true);
SELECT DISTINCT enabled FROM lease_guards WHERE role = 'greplica';
INSERT INTO greplica_job VALUES (1);
INSERT INTO greplica_job1 VALUES (1);
TRUNCATE greplica_job;
TRUNCATE greplica_job1;
-- also for what is added later
CREATE TABLE greplica_job2 PARTITION OF greplica_job FOR VALUES IN (2);
INSERT INTO greplica_job VALUES (2);
RESET session_replication_role;
INSERT INTO greplica_job VALUES (1);
SELECT lease_acquire('greplica', 'a', '1 hour');
SET session_replication_role = replica;
BEGIN;
SELECT lease_require_fence('greplica', 'a', 1);
INSERT INTO greplica_job VALUES (1);
COMMIT;
-- and back
SELECT lease_protect('greplica_job', 'greplica');
SELECT DISTINCT enabled FROM lease_guards WHERE role = 'greplica';
INSERT INTO greplica_job VALUES (1);
RESET session_replication_role;
SELECT count(*) FROM greplica_job;
DROP TABLE greplica_job;
