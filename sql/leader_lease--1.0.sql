/* leader_lease 1.0 */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION leader_lease" to load this file. \quit

-- Numbers name the heavyweight locks of leases; pg_locks shows them as objid.
CREATE SEQUENCE @extschema@.leader_lease_number
    MINVALUE 1 MAXVALUE 4294967295 NO CYCLE;
REVOKE ALL ON SEQUENCE @extschema@.leader_lease_number FROM PUBLIC;
GRANT ALL ON SEQUENCE @extschema@.leader_lease_number TO @extowner@ WITH GRANT OPTION;
SELECT pg_catalog.pg_extension_config_dump('@extschema@.leader_lease_number', '');
COMMENT ON SEQUENCE @extschema@.leader_lease_number IS 'numbers of leases';

CREATE TABLE @extschema@.leader_lease (
    role          text COLLATE pg_catalog."C" NOT NULL PRIMARY KEY,
    holder_id     text COLLATE pg_catalog."C",
    fencing_token bigint NOT NULL DEFAULT 0,
    expires_at    timestamptz NOT NULL DEFAULT '-infinity',
    number        bigint NOT NULL UNIQUE,
    owner         text COLLATE pg_catalog."C" NOT NULL,
    usual_ttl     interval,
    ttl           interval,
    acquired_at   timestamptz,
    renewed_at    timestamptz,
    deadline      bigint,
    boot          bigint,
    origin        bigint NOT NULL,
    granted_xid   xid8,
    granted_cid   bigint,
    ended         text COLLATE pg_catalog."C",
    session       bigint
) WITH (fillfactor = 50);
-- a holder's leases in the order in which they are renewed; a renewal changes
-- neither column, so it stays a HOT update
CREATE INDEX ON @extschema@.leader_lease (holder_id, role);
REVOKE ALL ON TABLE @extschema@.leader_lease FROM PUBLIC;
GRANT SELECT, INSERT, UPDATE ON TABLE @extschema@.leader_lease TO @extowner@ WITH GRANT OPTION;
SELECT pg_catalog.pg_extension_config_dump('@extschema@.leader_lease', '');
COMMENT ON TABLE @extschema@.leader_lease IS 'one row a lease; its row is its token history';
COMMENT ON COLUMN @extschema@.leader_lease.number IS 'objid of the lease''s locks in pg_locks';
COMMENT ON COLUMN @extschema@.leader_lease.owner IS 'name of the database role whose members may use the lease';
COMMENT ON COLUMN @extschema@.leader_lease.usual_ttl IS 'ttl of a term whose acquisition names none';
COMMENT ON COLUMN @extschema@.leader_lease.ttl IS 'ttl granted last';
COMMENT ON COLUMN @extschema@.leader_lease.renewed_at IS 'the ttl counts from here';
COMMENT ON COLUMN @extschema@.leader_lease.deadline IS 'end of the term on the boot-time clock, in microseconds, valid in the same boot';
COMMENT ON COLUMN @extschema@.leader_lease.boot IS 'which boot the deadline belongs to';
COMMENT ON COLUMN @extschema@.leader_lease.origin IS 'system, timeline, database and table that granted the term; 0 before the first';
COMMENT ON COLUMN @extschema@.leader_lease.granted_xid IS 'transaction that granted the term';
COMMENT ON COLUMN @extschema@.leader_lease.granted_cid IS 'command of that transaction';
COMMENT ON COLUMN @extschema@.leader_lease.ended IS 'how the term was ended before it ran out: released or revoked';
COMMENT ON COLUMN @extschema@.leader_lease.session IS 'key of the session lock that the term depends on';

-- Keys of session leases; pg_locks shows them as objid with objsubid 3.
CREATE SEQUENCE @extschema@.leader_lease_session
    MINVALUE 1 MAXVALUE 4294967295 CYCLE;
REVOKE ALL ON SEQUENCE @extschema@.leader_lease_session FROM PUBLIC;
GRANT ALL ON SEQUENCE @extschema@.leader_lease_session TO @extowner@ WITH GRANT OPTION;
COMMENT ON SEQUENCE @extschema@.leader_lease_session IS 'keys of sessions that terms are bound to';

CREATE TABLE @extschema@.leader_lease_history (
    role             text COLLATE pg_catalog."C" NOT NULL,
    fencing_token    bigint NOT NULL,
    holder_id        text COLLATE pg_catalog."C" NOT NULL,
    db_user          text NOT NULL,
    application_name text,
    client_addr      inet,
    pid              integer,
    acquired_at      timestamptz NOT NULL,
    ended_at         timestamptz,
    end_reason       text
);
-- not unique: what an older history says must never refuse a grant
CREATE INDEX ON @extschema@.leader_lease_history (role, fencing_token);
CREATE INDEX ON @extschema@.leader_lease_history (ended_at);
REVOKE ALL ON TABLE @extschema@.leader_lease_history FROM PUBLIC;
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE @extschema@.leader_lease_history TO @extowner@ WITH GRANT OPTION;
SELECT pg_catalog.pg_extension_config_dump('@extschema@.leader_lease_history', '');
COMMENT ON TABLE @extschema@.leader_lease_history IS 'one row a term';

CREATE TABLE @extschema@.leader_lease_slot (
    role          text COLLATE pg_catalog."C" NOT NULL,
    slot          text COLLATE pg_catalog."C" NOT NULL,
    fencing_token bigint NOT NULL,
    holder_id     text COLLATE pg_catalog."C" NOT NULL,
    claimed_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (role, slot)
);
CREATE INDEX ON @extschema@.leader_lease_slot (role, claimed_at);
REVOKE ALL ON TABLE @extschema@.leader_lease_slot FROM PUBLIC;
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE @extschema@.leader_lease_slot TO @extowner@ WITH GRANT OPTION;
SELECT pg_catalog.pg_extension_config_dump('@extschema@.leader_lease_slot', '');
COMMENT ON TABLE @extschema@.leader_lease_slot IS 'one row a slot that a lease''s leader has claimed';

-- What was seen of tokens whose lease lives elsewhere.  Its numbers come from
-- the same sequence; its locks have this table as classid.
CREATE TABLE @extschema@.leader_lease_observed (
    resource      text COLLATE pg_catalog."C" NOT NULL PRIMARY KEY,
    fencing_token bigint NOT NULL DEFAULT 0,
    observed_at   timestamptz,
    number        bigint NOT NULL UNIQUE,
    owner         text COLLATE pg_catalog."C" NOT NULL,
    origin        bigint NOT NULL,
    raised_xid    xid8,
    raised_cid    bigint
) WITH (fillfactor = 50);
REVOKE ALL ON TABLE @extschema@.leader_lease_observed FROM PUBLIC;
GRANT SELECT, INSERT, UPDATE ON TABLE @extschema@.leader_lease_observed TO @extowner@ WITH GRANT OPTION;
SELECT pg_catalog.pg_extension_config_dump('@extschema@.leader_lease_observed', '');
COMMENT ON TABLE @extschema@.leader_lease_observed IS 'one row a resource: the highest token that was seen of it';
COMMENT ON COLUMN @extschema@.leader_lease_observed.number IS 'objid of the resource''s locks in pg_locks';
COMMENT ON COLUMN @extschema@.leader_lease_observed.owner IS 'name of the database role whose members may use the resource';
COMMENT ON COLUMN @extschema@.leader_lease_observed.origin IS 'system, timeline, database and table where the token was raised';
COMMENT ON COLUMN @extschema@.leader_lease_observed.raised_xid IS 'transaction that raised the token';
COMMENT ON COLUMN @extschema@.leader_lease_observed.raised_cid IS 'command of that transaction';

-- Rows are only ever added: the highest of them counts, so that two first
-- grants after a failover never wait for each other.
CREATE TABLE @extschema@.leader_lease_origin (
    origin bigint NOT NULL,
    high   bigint NOT NULL
);
REVOKE ALL ON TABLE @extschema@.leader_lease_origin FROM PUBLIC;
GRANT SELECT, INSERT ON TABLE @extschema@.leader_lease_origin TO @extowner@ WITH GRANT OPTION;
SELECT pg_catalog.pg_extension_config_dump('@extschema@.leader_lease_origin', '');
COMMENT ON TABLE @extschema@.leader_lease_origin IS 'where tokens were granted, and the high part that new tokens start with there';

CREATE FUNCTION @extschema@.lease_table_guard() RETURNS trigger
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION @extschema@.lease_table_guard() FROM PUBLIC;
COMMENT ON FUNCTION @extschema@.lease_table_guard() IS 'keeps hand-written statements on leader_lease safe';

CREATE TRIGGER "~lease_table_guard"
    BEFORE INSERT OR UPDATE OR DELETE ON @extschema@.leader_lease
    FOR EACH ROW EXECUTE FUNCTION @extschema@.lease_table_guard();
CREATE TRIGGER "~lease_table_guard_after"
    AFTER INSERT OR UPDATE ON @extschema@.leader_lease
    FOR EACH ROW EXECUTE FUNCTION @extschema@.lease_table_guard();
CREATE TRIGGER "~lease_table_guard_truncate"
    BEFORE TRUNCATE ON @extschema@.leader_lease
    FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.lease_table_guard();

CREATE FUNCTION @extschema@.lease_observed_guard() RETURNS trigger
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION @extschema@.lease_observed_guard() FROM PUBLIC;
COMMENT ON FUNCTION @extschema@.lease_observed_guard() IS 'keeps hand-written statements on leader_lease_observed safe';

CREATE TRIGGER "~lease_observed_guard"
    BEFORE INSERT OR UPDATE OR DELETE ON @extschema@.leader_lease_observed
    FOR EACH ROW EXECUTE FUNCTION @extschema@.lease_observed_guard();
CREATE TRIGGER "~lease_observed_guard_truncate"
    BEFORE TRUNCATE ON @extschema@.leader_lease_observed
    FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.lease_observed_guard();

CREATE FUNCTION @extschema@.lease_acquire(role text, holder text, ttl interval DEFAULT NULL)
    RETURNS bigint
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_acquire(text, text, interval) IS 'acquires or renews a lease: its fencing token, or NULL when another holder is live';

CREATE FUNCTION @extschema@.lease_attempt(role text, holder text, ttl interval DEFAULT NULL,
    OUT token bigint, OUT renewed boolean, OUT ttl interval, OUT holder_id text,
    OUT retry_after interval, OUT blocked_by integer[])
    RETURNS record
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_attempt(text, text, interval) IS 'lease_acquire, told in full';

CREATE FUNCTION @extschema@.lease_renew(role text, holder text, token bigint, ttl interval DEFAULT NULL)
    RETURNS interval
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_renew(text, text, bigint, interval) IS 'prolongs a term: the ttl granted, or NULL when the term is over';

CREATE FUNCTION @extschema@.lease_check_fence(role text, holder text, token bigint)
    RETURNS boolean
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_check_fence(text, text, bigint) IS 'true: this transaction holds the fence of the current term';

CREATE FUNCTION @extschema@.lease_require_fence(role text, holder text, token bigint)
    RETURNS bigint
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_require_fence(text, text, bigint) IS 'the token, with the fence held; error LF001 when the term is over';

CREATE FUNCTION @extschema@.lease_release(role text, holder text, token bigint)
    RETURNS boolean
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_release(text, text, bigint) IS 'ends the term now; false when it is not the current one';

CREATE FUNCTION @extschema@.lease_acquire_any(roles text[], holder text, max_n integer, ttl interval DEFAULT NULL,
    OUT role text, OUT token bigint, OUT ttl interval)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_acquire_any(text[], text, integer, interval) IS 'acquires at most max_n of those leases that are free, without waiting';

CREATE FUNCTION @extschema@.lease_renew_all(holder text, ttl interval DEFAULT NULL,
    OUT role text, OUT token bigint, OUT ttl interval)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_renew_all(text, interval) IS 'prolongs all live terms of a holder: what is missing is lost';

CREATE FUNCTION @extschema@.lease_release_all(holder text)
    RETURNS bigint
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_release_all(text) IS 'ends all live terms of a holder: how many';

CREATE FUNCTION @extschema@.lease_transfer(role text, holder text, token bigint, new_holder text, ttl interval DEFAULT NULL)
    RETURNS bigint
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_transfer(text, text, bigint, text, interval) IS 'hands a live lease over: the new token, or NULL when the giver''s term is over';

CREATE FUNCTION @extschema@.lease_revoke(role text, successor text DEFAULT NULL, ttl interval DEFAULT NULL,
    force boolean DEFAULT false, min_token bigint DEFAULT NULL)
    RETURNS bigint
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_revoke(text, text, interval, boolean, bigint) IS 'ends whatever term there is and burns its token';

CREATE PROCEDURE @extschema@.lease_campaign(role text, holder text, ttl interval DEFAULT NULL,
    max_wait interval DEFAULT NULL, INOUT token bigint DEFAULT NULL)
    AS 'MODULE_PATHNAME' LANGUAGE C;
COMMENT ON PROCEDURE @extschema@.lease_campaign(text, text, interval, interval, bigint) IS 'waits in turn until it leads';

CREATE FUNCTION @extschema@.lease_bind_session(role text, holder text, token bigint)
    RETURNS boolean
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_bind_session(text, text, bigint) IS 'ties the live term to this connection';

CREATE FUNCTION @extschema@.lease_prune_history(older_than interval)
    RETURNS bigint
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_prune_history(interval) IS 'deletes what the history has of terms that ended longer ago';

CREATE FUNCTION @extschema@.lease_claim_slot(role text, holder text, token bigint, slot text)
    RETURNS boolean
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_claim_slot(text, text, bigint, text) IS 'true for the first to claim a slot, with the fence held; false after';

CREATE FUNCTION @extschema@.lease_prune_slots(older_than interval)
    RETURNS bigint
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_prune_slots(interval) IS 'forgets slots that were claimed longer ago';

CREATE FUNCTION @extschema@.lease_observe(resource text, token bigint)
    RETURNS boolean
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_observe(text, bigint) IS 'true: no higher token of the resource was seen, nor will be until this transaction ends';

CREATE FUNCTION @extschema@.lease_create(role text, owner text DEFAULT current_user, ttl interval DEFAULT NULL)
    RETURNS void
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_create(text, text, interval) IS 'makes a lease that nobody holds yet';

CREATE FUNCTION @extschema@.lease_set_owner(role text, owner text)
    RETURNS void
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_set_owner(text, text) IS 'gives a lease to another database role';

CREATE FUNCTION @extschema@.lease_fence() RETURNS trigger
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_fence() IS 'trigger: refuses a write without the fence of the current term';

CREATE FUNCTION @extschema@.lease_protect(tbl regclass, role text, token_column name DEFAULT NULL,
    events text DEFAULT 'insert,update,delete,truncate', proof text DEFAULT 'fence',
    mode text DEFAULT 'enforce', on_replica boolean DEFAULT false, key_column name DEFAULT NULL)
    RETURNS void
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_protect(regclass, text, name, text, text, text, boolean, name) IS 'puts the guard on a table, or changes it';

CREATE FUNCTION @extschema@.lease_unprotect(tbl regclass, role text DEFAULT NULL)
    RETURNS void
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_unprotect(regclass, text) IS 'takes the guard of one lease, or of all, off a table';

CREATE FUNCTION @extschema@.lease_term(lease @extschema@.leader_lease,
    OUT state text, OUT live boolean, OUT remaining interval)
    RETURNS record
    AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_term(@extschema@.leader_lease) IS 'the state of a lease by the database''s clock';

CREATE FUNCTION @extschema@.lease_guard_arguments(tgargs bytea)
    RETURNS text[]
    AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.lease_guard_arguments(bytea) IS 'the arguments of a trigger, as pg_trigger.tgargs keeps them';

-- The views find their operators when the extension is created, with
-- pg_catalog first in search_path and the exact types on both sides.
-- objsubid is the kind of the lock (lease_lock.c).
CREATE VIEW @extschema@.lease_locks WITH (security_barrier) AS
    WITH locks AS MATERIALIZED (SELECT * FROM pg_catalog.pg_locks)
    SELECT l.role,
           CASE WHEN k.objsubid = 2::smallint THEN 'queue'
                WHEN k.objsubid = 3::smallint THEN 'session'
                WHEN k.mode = 'ShareLock' THEN 'fence'
                ELSE 'takeover' END AS mode,
           k.granted,
           CASE WHEN NOT k.granted THEN
               pg_catalog.row_number() OVER (PARTITION BY k.objid, k.objsubid, k.granted
                                             ORDER BY k.waitstart, k.pid)
           END AS position,
           k.pid,
           p.gid,
           COALESCE(k.waitstart, a.xact_start, a.backend_start, p.prepared) AS since
      FROM locks k
      JOIN @extschema@.leader_lease l
        ON CASE WHEN k.objsubid = 3::smallint THEN l.session ELSE l.number END = k.objid::bigint
      LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = k.pid
      -- a prepared transaction has no pid, and the lock of its own id
      LEFT JOIN locks x ON k.pid IS NULL AND x.pid IS NULL
                       AND x.locktype = 'transactionid'
                       AND x.virtualtransaction = k.virtualtransaction
      LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = x.transactionid
     WHERE k.locktype = 'object'
       AND k.database = (SELECT d.oid FROM pg_catalog.pg_database d
                          WHERE d.datname = pg_catalog.current_database())
       AND k.classid = '@extschema@.leader_lease'::pg_catalog.regclass::pg_catalog.oid
       AND k.objsubid <= 3::smallint
       AND (pg_catalog.pg_has_role('pg_monitor'::name, 'USAGE'::text)
            OR EXISTS (SELECT FROM pg_catalog.pg_roles r
                        WHERE r.rolname::text = l.owner
                          AND pg_catalog.pg_has_role(r.oid, 'USAGE'::text)));
GRANT SELECT ON @extschema@.lease_locks TO PUBLIC;
COMMENT ON VIEW @extschema@.lease_locks IS 'fences, takeovers, campaigns and bound sessions';

CREATE VIEW @extschema@.lease_status WITH (security_barrier) AS
    SELECT l.role, l.holder_id, l.fencing_token, t.state, t.live, t.remaining,
           l.expires_at, l.acquired_at, l.renewed_at, l.ttl, l.owner,
           COALESCE(k.open_fences, 0::bigint) AS open_fences,
           COALESCE(k.waiters, 0::bigint) AS waiters
      FROM @extschema@.leader_lease l
      CROSS JOIN LATERAL @extschema@.lease_term(l) t
      LEFT JOIN (SELECT role,
                        pg_catalog.count(*) FILTER (WHERE granted AND mode = 'fence') AS open_fences,
                        -- the head of a queue has its lock, and waits for the term
                        pg_catalog.count(DISTINCT pid) FILTER (WHERE mode = 'queue' OR mode = 'takeover' AND NOT granted) AS waiters
                   FROM @extschema@.lease_locks GROUP BY role) k ON k.role = l.role
     WHERE pg_catalog.pg_has_role('pg_monitor'::name, 'USAGE'::text)
        OR EXISTS (SELECT FROM pg_catalog.pg_roles r
                    WHERE r.rolname::text = l.owner
                      AND pg_catalog.pg_has_role(r.oid, 'USAGE'::text));
GRANT SELECT ON @extschema@.lease_status TO PUBLIC;
COMMENT ON VIEW @extschema@.lease_status IS 'who leads, since when, until when';

CREATE VIEW @extschema@.lease_history WITH (security_barrier) AS
    SELECT h.*
      FROM @extschema@.leader_lease_history h
     WHERE pg_catalog.pg_has_role('pg_monitor'::name, 'USAGE'::text)
        OR EXISTS (SELECT FROM @extschema@.leader_lease l
                     JOIN pg_catalog.pg_roles r ON r.rolname::text = l.owner
                    WHERE l.role = h.role
                      AND pg_catalog.pg_has_role(r.oid, 'USAGE'::text));
GRANT SELECT ON @extschema@.lease_history TO PUBLIC;
COMMENT ON VIEW @extschema@.lease_history IS 'one row a term: who, since when, until when, and why it ended';

CREATE VIEW @extschema@.lease_slots WITH (security_barrier) AS
    SELECT s.*
      FROM @extschema@.leader_lease_slot s
     WHERE pg_catalog.pg_has_role('pg_monitor'::name, 'USAGE'::text)
        OR EXISTS (SELECT FROM @extschema@.leader_lease l
                     JOIN pg_catalog.pg_roles r ON r.rolname::text = l.owner
                    WHERE l.role = s.role
                      AND pg_catalog.pg_has_role(r.oid, 'USAGE'::text));
GRANT SELECT ON @extschema@.lease_slots TO PUBLIC;
COMMENT ON VIEW @extschema@.lease_slots IS 'one row a slot: which lease''s, who claimed it, when';

CREATE VIEW @extschema@.lease_observed WITH (security_barrier) AS
    SELECT o.resource, o.fencing_token, o.observed_at, o.owner
      FROM @extschema@.leader_lease_observed o
     WHERE pg_catalog.pg_has_role('pg_monitor'::name, 'USAGE'::text)
        OR EXISTS (SELECT FROM pg_catalog.pg_roles r
                    WHERE r.rolname::text = o.owner
                      AND pg_catalog.pg_has_role(r.oid, 'USAGE'::text));
GRANT SELECT ON @extschema@.lease_observed TO PUBLIC;
COMMENT ON VIEW @extschema@.lease_observed IS 'one row a resource: the highest token that was seen of it, and when';

CREATE VIEW @extschema@.lease_guards AS
    SELECT g.tgrelid::pg_catalog.regclass AS "table",
           a.args[1] AS role,
           a.args[2:] AS options,
           pg_catalog.concat_ws(',',
               CASE WHEN g.tgtype & 4::smallint <> 0::smallint THEN 'insert' END,
               CASE WHEN g.tgtype & 16::smallint <> 0::smallint THEN 'update' END,
               CASE WHEN g.tgtype & 8::smallint <> 0::smallint THEN 'delete' END,
               CASE WHEN g.tgtype & 32::smallint <> 0::smallint THEN 'truncate' END) AS events,
           CASE g.tgenabled WHEN 'O' THEN 'origin' WHEN 'A' THEN 'always'
                            WHEN 'R' THEN 'replica' ELSE 'disabled' END AS enabled,
           ARRAY(
               WITH RECURSIVE below (oid) AS (
                   SELECT i.inhrelid FROM pg_catalog.pg_inherits i WHERE i.inhparent = g.tgrelid
                   UNION
                   SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN below b ON i.inhparent = b.oid)
               SELECT b.oid::pg_catalog.regclass
                 FROM below b
                WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_trigger c
                                   WHERE c.tgrelid = b.oid
                                     AND c.tgfoid = g.tgfoid
                                     AND c.tgargs = g.tgargs
                                     AND c.tgtype & g.tgtype = g.tgtype
                                     AND (c.tgenabled = 'A' OR c.tgenabled =
                                          CASE g.tgenabled WHEN 'D' THEN 'O' ELSE g.tgenabled END))
                ORDER BY b.oid::pg_catalog.regclass::pg_catalog.text COLLATE pg_catalog."C"
           ) AS open_children
      FROM pg_catalog.pg_trigger g
      CROSS JOIN LATERAL (SELECT @extschema@.lease_guard_arguments(g.tgargs) AS args) a
     WHERE g.tgfoid = '@extschema@.lease_fence'::pg_catalog.regproc;
GRANT SELECT ON @extschema@.lease_guards TO PUBLIC;
COMMENT ON VIEW @extschema@.lease_guards IS 'guards on tables, and the partitions or children that stand open below them';
