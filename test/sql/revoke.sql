-- lease_revoke: ends whatever term there is, and burns its token.
CREATE ROLE rev_app NOLOGIN;
CREATE ROLE rev_other NOLOGIN;
CREATE ROLE rev_mon NOLOGIN IN ROLE pg_monitor;
SET ROLE rev_app;
CREATE TEMP VIEW term AS SELECT holder_id, fencing_token AS token, state, ttl, remaining IS NOT NULL AS keeps_out
  FROM lease_status WHERE role = 'rev';

-- a lease that nobody has held
SELECT lease_create('rev', ttl => '5 min');
SELECT lease_revoke('rev');
TABLE term;
SELECT lease_acquire('rev', 'a');
-- a live one
SELECT lease_revoke('rev');
TABLE term;
-- a revoked one
SELECT lease_revoke('rev');
TABLE term;
-- one that ran out
SELECT lease_acquire('rev', 'a', '1 microsecond');
SELECT lease_revoke('rev');
TABLE term;
-- a released one
SELECT lease_acquire('rev', 'a', '1 hour'), lease_release('rev', 'a', 7);
SELECT lease_revoke('rev');
TABLE term;
-- nobody is kept out
SELECT lease_acquire('rev', 'b', '1 hour');

-- with a successor: of a live term its ttl, of one that is over the lease's, or the one given
SELECT lease_revoke('rev', 'c');
TABLE term;
SELECT lease_revoke('rev', 'd', '2 hours');
TABLE term;
SELECT lease_release('rev', 'd', 11), lease_revoke('rev', 'e');
TABLE term;
SELECT remaining > '4 min' AS full_ttl, acquired_at = renewed_at AS new_term FROM lease_status WHERE role = 'rev';
-- the same holder: a new term all the same
SELECT lease_revoke('rev', 'e');
SELECT lease_check_fence('rev', 'e', 12), lease_check_fence('rev', 'e', 13), lease_renew('rev', 'e', 13);
SELECT lease_create('rev2');
SET leader_lease.default_ttl = '7s';
SELECT lease_revoke('rev2', 'a');
RESET leader_lease.default_ttl;
SELECT holder_id, fencing_token, ttl FROM lease_status WHERE role = 'rev2';

-- min_token raises, and never lowers
SELECT lease_revoke('rev', min_token => 20), lease_revoke('rev', min_token => 20), lease_revoke('rev', min_token => 1);
SELECT lease_revoke('rev', 'a', min_token => 100), lease_revoke('rev', 'b', min_token => 101), lease_revoke('rev', 'c', min_token => NULL);
SELECT lease_release('rev', 'c', 102), lease_acquire('rev', 'd', '1 hour');
SELECT lease_revoke('rev', min_token => 0);
SELECT lease_revoke('rev', min_token => -1);
TABLE term;
-- up to the last, and none after it
SELECT lease_revoke('rev2', 'a', min_token => 9223372036854775807);
SELECT lease_revoke('rev2');
SELECT lease_revoke('rev2', 'b');
SELECT lease_check_fence('rev2', 'a', 9223372036854775807), lease_release('rev2', 'a', 9223372036854775807);
SELECT lease_acquire('rev2', 'b');

-- afterwards nothing goes for the old holder, in any way
CREATE TEMP TABLE rev_job (id int, token bigint);
CREATE TEMP TABLE rev_row (id int, token bigint);
SELECT lease_protect('rev_job', 'rev', 'token'), lease_protect('rev_row', 'rev', 'token', proof => 'row');
INSERT INTO rev_row VALUES (1, 103);
SELECT lease_bind_session('rev', 'd', 103);
SELECT lease_revoke('rev');
SELECT lease_check_fence('rev', 'd', 103), lease_check_fence('rev', 'd', 104), lease_renew('rev', 'd', 103), lease_renew('rev', 'd', 104),
       lease_release('rev', 'd', 103), lease_release('rev', 'd', 104), lease_transfer('rev', 'd', 103, 'x'),
       lease_bind_session('rev', 'd', 103), lease_bind_session('rev', 'd', 104);
\set VERBOSITY sqlstate
SELECT lease_require_fence('rev', 'd', 103);
SELECT lease_require_fence('rev', 'd', 104);
INSERT INTO rev_job VALUES (1, 103);
INSERT INTO rev_job VALUES (1);
INSERT INTO rev_row VALUES (2, 103);
INSERT INTO rev_row VALUES (2, 104);
UPDATE rev_row SET token = 103;
DELETE FROM rev_row;
SET leader_lease.fence = '{"role": "rev", "holder": "d", "token": 103}';
INSERT INTO rev_job VALUES (1);
INSERT INTO rev_row VALUES (2);
RESET leader_lease.fence;
\set VERBOSITY default
TABLE rev_job;
TABLE rev_row;
-- he acquires like anybody
SELECT lease_acquire('rev', 'd', '1 hour');
RESET ROLE;
SELECT session IS NULL AS unbound FROM leader_lease WHERE role = 'rev';
SET ROLE rev_app;

-- one's own fence does not block; rolled back to a savepoint, the term and its fences are there again
BEGIN;
INSERT INTO rev_job VALUES (1, lease_require_fence('rev', 'd', 105));
SAVEPOINT s;
SELECT lease_revoke('rev', 'e');
SELECT lease_check_fence('rev', 'd', 105), lease_check_fence('rev', 'e', 106);
ROLLBACK TO s;
SELECT lease_check_fence('rev', 'd', 105), lease_check_fence('rev', 'e', 106);
INSERT INTO rev_job VALUES (2);
SAVEPOINT s;
SELECT lease_revoke('rev'), lease_revoke('rev'), lease_revoke('rev', 'd');
SAVEPOINT t;
SELECT lease_check_fence('rev', 'd', 105), lease_check_fence('rev', 'd', 108);
ROLLBACK TO s;
SELECT mode, granted FROM lease_locks WHERE role = 'rev';
INSERT INTO rev_job VALUES (3);
RELEASE s;
SELECT lease_revoke('rev');
SAVEPOINT s;
INSERT INTO rev_job VALUES (4);
ROLLBACK TO s;
COMMIT;
TABLE rev_job;
TABLE term;
SELECT lease_acquire('rev', 'd', '1 hour');

-- a prepared transaction in the way is named, and no force ends it; nothing has changed then
BEGIN;
SELECT lease_require_fence('rev', 'd', 107);
PREPARE TRANSACTION 'rev';
SET leader_lease.takeover_timeout = '10ms';
SELECT lease_revoke('rev');
\set VERBOSITY sqlstate
SELECT lease_revoke('rev', 'e', force => true);
\set VERBOSITY default
TABLE term;
SELECT lease_check_fence('rev', 'd', 107);
COMMIT PREPARED 'rev';
SELECT lease_revoke('rev', force => true);
RESET leader_lease.takeover_timeout;
-- force with nothing in the way but oneself
SELECT lease_acquire('rev', 'd', '1 hour');
BEGIN;
SELECT lease_require_fence('rev', 'd', 109);
SELECT lease_revoke('rev', 'e', force => true);
COMMIT;
TABLE term;

-- after a failover
RESET ROLE;
SET session_replication_role = replica;
UPDATE leader_lease SET origin = 1 WHERE role = 'rev';
SET session_replication_role = origin;
SET ROLE rev_app;
TABLE term;
SELECT lease_revoke('rev') AS anew \gset
SELECT :anew > 2199023255552 AS above_what_was_lost;
SELECT state FROM lease_status WHERE role = 'rev';
SELECT lease_acquire('rev', 'f', '1 hour') - :anew AS one;

-- a monitor and a stranger may not
SET ROLE rev_other;
SELECT lease_revoke('rev');
SELECT lease_revoke('rev', force => true);
SELECT lease_revoke('rev unknown');
SET ROLE rev_mon;
SELECT lease_revoke('rev');
SET ROLE rev_app;

-- arguments
SELECT lease_revoke('rev unknown');
SELECT lease_revoke('rev unknown', 'a');
SELECT lease_revoke(NULL);
SELECT lease_revoke('rev', force => NULL);
SELECT lease_revoke('rev', '');
SELECT lease_revoke('rev', repeat('x', 256));
SELECT lease_revoke('rev', 'x', '0');
SELECT lease_revoke('rev', 'x', '2 days');
BEGIN READ ONLY;
SELECT lease_revoke('rev');
ROLLBACK;
BEGIN;
SELECT lease_revoke('rev') - :anew AS two;
PREPARE TRANSACTION 'rev';
SELECT holder_id, state FROM term;

-- statements by hand and a revocation
SELECT lease_revoke('rev', 'f', '1 hour') - :anew AS two;
RESET ROLE;
UPDATE leader_lease SET expires_at = clock_timestamp() + interval '1 hour' WHERE role = 'rev';
SELECT lease_revoke('rev') - :anew AS three;
SELECT holder_id, state FROM lease_status WHERE role = 'rev';
UPDATE leader_lease SET expires_at = clock_timestamp() + interval '1 hour' WHERE role = 'rev' RETURNING fencing_token - :anew AS four;
SELECT state FROM lease_status WHERE role = 'rev';

DROP TABLE rev_job, rev_row;
DROP VIEW term;
DROP ROLE rev_other, rev_mon;
