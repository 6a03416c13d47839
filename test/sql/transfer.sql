-- lease_transfer: the holder hands its lease over.
CREATE ROLE tr_app NOLOGIN;
CREATE ROLE tr_other NOLOGIN;
SET ROLE tr_app;
CREATE TEMP VIEW term AS SELECT holder_id, fencing_token AS token, state, ttl FROM lease_status WHERE role = 'tr';

-- the token rises by one, the ttl is the live term's and not the lease's own
SELECT lease_create('tr', ttl => '5 min');
SELECT lease_acquire('tr', 'a', '1 hour');
SELECT lease_transfer('tr', 'a', 1, 'b');
TABLE term;
SELECT remaining > '59 min' AS full_ttl, acquired_at = renewed_at AS new_term FROM lease_status WHERE role = 'tr';
SELECT lease_transfer('tr', 'b', 2, 'c', '2 hours');
TABLE term;
-- to oneself: a new term all the same
SELECT lease_transfer('tr', 'c', 3, 'c');
SELECT lease_check_fence('tr', 'c', 3), lease_check_fence('tr', 'c', 4);

-- only the current holder gives, and only what is his
SELECT lease_transfer('tr', 'c', 3, 'x'), lease_transfer('tr', 'a', 4, 'x'), lease_transfer('tr', 'c', 5, 'x'),
       lease_transfer('tr', 'c', 0, 'x'), lease_transfer('tr unknown', 'c', 4, 'x');
TABLE term;
-- not what he has released, what ran out, what was taken from him
SELECT lease_release('tr', 'c', 4), lease_transfer('tr', 'c', 4, 'x');
SELECT lease_acquire('tr', 'd', '1 microsecond');
SELECT lease_transfer('tr', 'd', 5, 'x');
SELECT lease_acquire('tr', 'e', '1 hour'), lease_revoke('tr'), lease_transfer('tr', 'e', 6, 'x'), lease_transfer('tr', 'e', 7, 'x');
TABLE term;

-- a holder that never shows up: the term ends with its ttl
SELECT lease_acquire('tr', 'f', '1 hour');
SELECT lease_transfer('tr', 'f', 8, 'nobody', '1 microsecond');
SELECT state FROM lease_status WHERE role = 'tr';
SELECT lease_check_fence('tr', 'f', 8), lease_check_fence('tr', 'nobody', 9), lease_acquire('tr', 'f', '1 hour');

-- one's own fence does not block, and ends with the term
CREATE TEMP TABLE tr_job (id int, token bigint);
SELECT lease_protect('tr_job', 'tr', 'token');
BEGIN;
INSERT INTO tr_job VALUES (1, lease_require_fence('tr', 'f', 10));
SELECT lease_transfer('tr', 'f', 10, 'g');
SELECT lease_check_fence('tr', 'f', 10);
SAVEPOINT s;
INSERT INTO tr_job VALUES (2);
ROLLBACK TO s;
-- the new one's works in the same transaction
INSERT INTO tr_job VALUES (3, lease_require_fence('tr', 'g', 11));
COMMIT;
TABLE tr_job;

-- rolled back to a savepoint, the old term and its fence are there again
BEGIN;
SELECT lease_require_fence('tr', 'g', 11);
SAVEPOINT s;
SELECT lease_transfer('tr', 'g', 11, 'h');
SELECT lease_check_fence('tr', 'g', 11), lease_check_fence('tr', 'h', 12);
ROLLBACK TO s;
SELECT lease_check_fence('tr', 'g', 11), lease_check_fence('tr', 'h', 12);
INSERT INTO tr_job VALUES (4);
SELECT mode FROM lease_locks WHERE role = 'tr';
COMMIT;
SELECT * FROM tr_job WHERE id = 4;
TABLE term;

-- afterwards nothing goes for the giver
SELECT lease_transfer('tr', 'g', 11, 'h');
SELECT lease_renew('tr', 'g', 11), lease_release('tr', 'g', 11), lease_check_fence('tr', 'g', 11),
       lease_transfer('tr', 'g', 11, 'g'), lease_bind_session('tr', 'g', 11), lease_acquire('tr', 'g');
SELECT lease_require_fence('tr', 'g', 11);
UPDATE tr_job SET token = 11;
SET leader_lease.fence = '{"role": "tr", "holder": "g", "token": 11}';
UPDATE tr_job SET id = 5;
RESET leader_lease.fence;
SELECT lease_protect('tr_job', 'tr', 'token', proof => 'row');
INSERT INTO tr_job VALUES (5, 11);
-- the receiver's goes
SELECT lease_renew('tr', 'h', 12, '1 hour'), lease_check_fence('tr', 'h', 12);

-- a prepared transaction in the way is named; nothing has changed then
BEGIN;
SELECT lease_require_fence('tr', 'h', 12);
PREPARE TRANSACTION 'tr "quoted"';
SET leader_lease.takeover_timeout = 0;
SELECT lease_transfer('tr', 'h', 12, 'i');
\set VERBOSITY sqlstate
SET leader_lease.takeover_timeout = '10ms';
SELECT lease_transfer('tr', 'h', 12, 'i');
\set VERBOSITY default
TABLE term;
-- who is told NULL does not wait for it
SET leader_lease.takeover_timeout = -1;
SELECT lease_transfer('tr', 'h', 11, 'i'), lease_transfer('tr', 'i', 12, 'i');
ROLLBACK PREPARED 'tr "quoted"';
SELECT lease_transfer('tr', 'h', 12, 'i');
RESET leader_lease.takeover_timeout;

-- others may not
SET ROLE tr_other;
SELECT lease_transfer('tr', 'i', 13, 'x');
SELECT lease_transfer('tr', 'i', 1, 'x');
SET ROLE tr_app;

-- arguments
SELECT lease_transfer(NULL, 'i', 13, 'x');
SELECT lease_transfer('tr', NULL, 13, 'x');
SELECT lease_transfer('tr', 'i', NULL, 'x');
SELECT lease_transfer('tr', 'i', 13, NULL);
SELECT lease_transfer('tr', 'i', 13, '');
SELECT lease_transfer('tr', 'i', 13, repeat('x', 256));
SELECT lease_transfer('tr', 'i', 13, 'x', '0');
SELECT lease_transfer('tr', 'i', 13, 'x', '2 days');
BEGIN READ ONLY;
SELECT lease_transfer('tr', 'i', 13, 'x');
ROLLBACK;
BEGIN;
SELECT lease_transfer('tr', 'i', 13, 'x');
PREPARE TRANSACTION 'tr';
TABLE term;

-- a term of before a failover is not given away
RESET ROLE;
SET session_replication_role = replica;
UPDATE leader_lease SET origin = 1 WHERE role = 'tr';
SET session_replication_role = origin;
SET ROLE tr_app;
TABLE term;
SELECT lease_transfer('tr', 'i', 13, 'x');
-- its holder acquires anew, and gives that
SELECT lease_acquire('tr', 'i') AS anew \gset
SELECT lease_transfer('tr', 'i', :anew, 'x') - :anew AS one;

-- tokens end somewhere
SELECT lease_revoke('tr', 'last', min_token => 9223372036854775807);
SELECT lease_transfer('tr', 'last', 9223372036854775807, 'x');
SELECT lease_check_fence('tr', 'last', 9223372036854775807);

DROP TABLE tr_job;
DROP VIEW term;
RESET ROLE;
DROP ROLE tr_other;
