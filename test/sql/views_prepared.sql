-- A fence outlives PREPARE TRANSACTION: it shows by its gid and holds the takeover back.
SELECT current_setting('max_prepared_transactions')::int = 0 AS skip \gset
\if :skip
\quit
\endif
CREATE TABLE vprep_job (id int);
SELECT lease_protect('vprep_job', 'vprep');
SELECT lease_acquire('vprep', 'a', '1 hour');
BEGIN;
SELECT lease_require_fence('vprep', 'a', 1);
INSERT INTO vprep_job VALUES (1);
PREPARE TRANSACTION 'vprep ''x''';
SELECT role, mode, granted, position, pid, gid, since = prepared AS since_prepared
  FROM lease_locks JOIN pg_prepared_xacts USING (gid) WHERE role = 'vprep';
SELECT open_fences FROM lease_status WHERE role = 'vprep';
-- this session itself holds nothing
INSERT INTO vprep_job VALUES (2);
SELECT lease_release('vprep', 'a', 1);
SET leader_lease.takeover_timeout = 0;
SELECT token, renewed, holder_id, retry_after, blocked_by FROM lease_attempt('vprep', 'b', '1 hour');
COMMIT PREPARED 'vprep ''x''';
SELECT token, renewed, holder_id, retry_after, blocked_by FROM lease_attempt('vprep', 'b', '1 hour');
SELECT count(*) FROM lease_locks WHERE role = 'vprep';
SELECT * FROM vprep_job;
-- rolled back
BEGIN;
SELECT lease_require_fence('vprep', 'b', 2);
PREPARE TRANSACTION 'vprep';
SELECT mode, gid FROM lease_locks WHERE role = 'vprep';
ROLLBACK PREPARED 'vprep';
SELECT mode, gid FROM lease_locks WHERE role = 'vprep';
-- a fence that the guard took
SET leader_lease.fence = '{"role": "vprep", "holder": "b", "token": 2}';
BEGIN;
INSERT INTO vprep_job VALUES (3);
PREPARE TRANSACTION 'vprep';
RESET leader_lease.fence;
SELECT mode, gid FROM lease_locks WHERE role = 'vprep';
INSERT INTO vprep_job VALUES (4);
COMMIT PREPARED 'vprep';
SELECT * FROM vprep_job;
DROP TABLE vprep_job;
