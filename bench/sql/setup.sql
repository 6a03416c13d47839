-- The leases and tables that all lines share.  Every table of jobs has the same shape; pgbench writes one row of it.
CREATE EXTENSION leader_lease;

CREATE FUNCTION empty_function(text, text, bigint) RETURNS boolean AS '$libdir/empty' LANGUAGE C VOLATILE;
CREATE FUNCTION empty_trigger() RETURNS trigger AS '$libdir/empty' LANGUAGE C;

-- the leader of everything that is protected, and leases to renew
SELECT lease_acquire('job', 'leader', '20 hours');
SELECT count(lease_acquire('renew' || i, 'leader', '20 hours')) FROM generate_series(0, 63) i;

-- a worker's many leases, and as many that are free
SELECT count(lease_acquire('shard' || i, 'worker', '20 hours')) FROM generate_series(1, 1000) i;
SELECT count(*) FROM generate_series(1, 1000) i, LATERAL lease_create('free' || i);

-- what people write by hand: the same in SQL
CREATE TABLE hand_lease (
    role          text PRIMARY KEY,
    holder_id     text NOT NULL,
    fencing_token bigint NOT NULL,
    expires_at    timestamptz NOT NULL
) WITH (fillfactor = 50);
INSERT INTO hand_lease VALUES ('job', 'leader', 1, now() + '20 hours');
INSERT INTO hand_lease SELECT 'renew' || i, 'leader', 1, now() + '20 hours' FROM generate_series(0, 63) i;

CREATE FUNCTION hand_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM hand_lease
      WHERE role = 'job' AND fencing_token = NEW.completed_by_token AND expires_at > clock_timestamp()
        FOR UPDATE;
    IF NOT FOUND THEN
        RAISE 'stale fence';
    END IF;
    RETURN NEW;
END $$;

CREATE TABLE plain_job (id int PRIMARY KEY, n int NOT NULL, completed_by_token bigint) WITH (fillfactor = 50);
INSERT INTO plain_job SELECT i, 0, 1 FROM generate_series(1, 10000) i;
CREATE TABLE fence_job (LIKE plain_job INCLUDING ALL) WITH (fillfactor = 50);
CREATE TABLE row_job (LIKE plain_job INCLUDING ALL) WITH (fillfactor = 50);
CREATE TABLE hand_job (LIKE plain_job INCLUDING ALL) WITH (fillfactor = 50);
CREATE TABLE empty_job (LIKE plain_job INCLUDING ALL) WITH (fillfactor = 50);
INSERT INTO fence_job TABLE plain_job;
INSERT INTO row_job TABLE plain_job;
INSERT INTO hand_job TABLE plain_job;
INSERT INTO empty_job TABLE plain_job;
SELECT lease_protect('fence_job', 'job', 'completed_by_token');
SELECT lease_protect('row_job', 'job', 'completed_by_token', proof => 'row');
CREATE TRIGGER hand_guard BEFORE UPDATE ON hand_job FOR EACH ROW EXECUTE FUNCTION hand_guard();
CREATE TRIGGER empty_trigger BEFORE UPDATE ON empty_job FOR EACH ROW EXECUTE FUNCTION empty_trigger();

-- rows of eight leases in one table
CREATE TABLE key_job (LIKE plain_job INCLUDING ALL, shard_no int NOT NULL) WITH (fillfactor = 50);
INSERT INTO key_job SELECT *, id % 8 FROM plain_job;
SELECT lease_protect('key_job', 'shard/', 'completed_by_token', key_column => 'shard_no');
SELECT count(lease_acquire('shard/' || i, 'leader', '20 hours')) FROM generate_series(0, 7) i;

-- one run a slot: claimed, and by hand
CREATE SEQUENCE slots;
CREATE TABLE hand_slot (role text, slot text, token bigint, claimed_at timestamptz DEFAULT clock_timestamp(), PRIMARY KEY (role, slot));

-- a resource whose lease is elsewhere
CREATE TABLE observe_job (LIKE plain_job INCLUDING ALL) WITH (fillfactor = 50);
INSERT INTO observe_job TABLE plain_job;
SELECT lease_protect('observe_job', 'job', 'completed_by_token', proof => 'highest');
SELECT lease_observe('job', 33);

-- many rows in one transaction: no guard, a trigger that does nothing, the guard
CREATE TABLE plain_rows (id int PRIMARY KEY, n int NOT NULL, completed_by_token bigint) WITH (fillfactor = 40);
INSERT INTO plain_rows SELECT i, 0, 1 FROM generate_series(1, 100000) i;
CREATE TABLE empty_rows (LIKE plain_rows INCLUDING ALL) WITH (fillfactor = 40);
CREATE TABLE fence_rows (LIKE plain_rows INCLUDING ALL) WITH (fillfactor = 40);
INSERT INTO empty_rows TABLE plain_rows;
INSERT INTO fence_rows TABLE plain_rows;
CREATE TRIGGER empty_trigger BEFORE UPDATE ON empty_rows FOR EACH ROW EXECUTE FUNCTION empty_trigger();
SELECT lease_protect('fence_rows', 'job', 'completed_by_token');
CREATE TABLE one_rows (LIKE plain_rows INCLUDING ALL, key text NOT NULL DEFAULT 'b') WITH (fillfactor = 40);
CREATE TABLE key_rows (LIKE one_rows INCLUDING ALL) WITH (fillfactor = 40);
INSERT INTO one_rows TABLE plain_rows;
INSERT INTO key_rows TABLE one_rows;
SELECT lease_protect('one_rows', 'job', 'completed_by_token');
SELECT lease_protect('key_rows', 'jo', 'completed_by_token', key_column => 'key');

VACUUM ANALYZE;
CHECKPOINT;
