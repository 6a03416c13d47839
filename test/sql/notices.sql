-- LISTEN leader_lease: one notice a transition, of those that are committed.
CREATE EXTENSION dblink;
SELECT dblink_connect('listener', format('host=%s port=%s user=%s dbname=%s', split_part(current_setting('unix_socket_directories'), ',', 1),
                                         current_setting('port'), current_user, current_database()));
SELECT dblink_exec('listener', 'LISTEN leader_lease');
-- notices come in the order of commits: a last one of the listener's own comes after all that is looked for
CREATE FUNCTION heard() RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM dblink_exec('listener', 'NOTIFY leader_lease, ''end''');
    RETURN QUERY SELECT extra FROM dblink_get_notify('listener') WHERE extra <> 'end';
END $$;
CREATE ROLE note_app NOLOGIN;
GRANT SELECT, INSERT, UPDATE ON leader_lease TO note_app;

-- each transition
SET ROLE note_app;
SELECT lease_acquire('note', 'a', '1 hour');
RESET ROLE;
SELECT * FROM heard();
SELECT lease_transfer('note', 'a', 1, 'b');
SELECT * FROM heard();
SELECT lease_release('note', 'b', 2);
SELECT * FROM heard();
SELECT lease_acquire('note', 'c', '1 hour');
SELECT lease_revoke('note');
SELECT lease_revoke('note', 'd', '1 microsecond');
SELECT lease_acquire('note', 'e', '1 hour');
SELECT lease_revoke('note', 'f');
SELECT * FROM heard();
-- a lease that nobody has held
SELECT lease_create('note2');
SELECT * FROM heard();
SELECT lease_revoke('note2');
SELECT * FROM heard();

-- many at once: one notice each, a renewal none
SELECT count(*) FROM lease_acquire_any(ARRAY['note3', 'note4'], 'note_m', 2, '1 hour');
SELECT * FROM heard() h ORDER BY h COLLATE "C";
SELECT count(*) FROM lease_renew_all('note_m');
SELECT lease_release_all('note_m');
SELECT * FROM heard();

-- what is no transition
SELECT lease_acquire('note', 'f') IS NOT NULL, lease_renew('note', 'f', 7), lease_acquire('note', 'x'), lease_release('note', 'f', 6),
       lease_transfer('note', 'f', 6, 'x'), lease_check_fence('note', 'f', 7), lease_bind_session('note', 'f', 7);
SELECT lease_set_owner('note', 'note_app');
SELECT * FROM heard();

-- rolled back, nothing is told; nor of what a savepoint undid
BEGIN;
SELECT lease_release('note', 'f', 7), lease_acquire('note', 'g', '1 hour');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT lease_release('note', 'f', 7), lease_acquire('note', 'g', '1 hour');
ROLLBACK TO s;
SELECT lease_transfer('note', 'f', 7, 'h');
COMMIT;
SELECT * FROM heard();
-- all of a transaction, in order
BEGIN;
SELECT lease_release('note', 'h', 8), lease_acquire('note', 'i', '1 hour'), lease_transfer('note', 'i', 9, 'j');
SELECT * FROM heard();
COMMIT;
SELECT * FROM heard();

-- by hand too
SET ROLE note_app;
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at) VALUES ('hand note', 'a', 5, clock_timestamp() + interval '1 hour');
UPDATE leader_lease SET expires_at = clock_timestamp() + interval '2 hours' WHERE role = 'hand note';
UPDATE leader_lease SET holder_id = 'b', fencing_token = 6 WHERE role = 'hand note';
UPDATE leader_lease SET expires_at = clock_timestamp() WHERE role = 'hand note';
UPDATE leader_lease SET expires_at = clock_timestamp() WHERE role = 'hand note';
UPDATE leader_lease SET expires_at = clock_timestamp() + interval '1 hour' WHERE role = 'hand note';
UPDATE leader_lease SET fencing_token = 20, expires_at = clock_timestamp() WHERE role = 'hand note';
UPDATE leader_lease SET usual_ttl = '1 min' WHERE role = 'hand note';
-- an upsert that meets a row that is there, and wins, or loses
INSERT INTO leader_lease AS l (role, holder_id, fencing_token, expires_at) VALUES ('hand note', 'c', 1, clock_timestamp() + interval '1 hour')
    ON CONFLICT (role) DO UPDATE SET holder_id = 'c', fencing_token = l.fencing_token + 1, expires_at = EXCLUDED.expires_at;
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at) VALUES ('hand note', 'd', 1, clock_timestamp() + interval '1 hour')
    ON CONFLICT DO NOTHING;
-- a row of a table of old that is over
INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at) VALUES ('old note', 'a', 5, now() - interval '1 hour');
RESET ROLE;
SELECT * FROM heard();

-- switched off
SET leader_lease.notify = off;
SELECT lease_transfer('note', 'j', 10, 'k'), lease_release('note', 'k', 11), lease_acquire('note', 'l', '1 hour'), lease_revoke('note');
RESET leader_lease.notify;
SELECT * FROM heard();

-- valid JSON whatever the names contain, and short enough
CREATE TEMP TABLE names AS
SELECT n, 'n' || name AS name FROM unnest(ARRAY[
    '"', E'\\', E'\\u0041', E'''"\\"', E'\n\r\t\b\f', chr(1) || chr(31) || chr(127), '{"role": "x"}', 'null', ' ',
    repeat(chr(1), 254), repeat(E'\\', 254), repeat('"', 254), repeat(chr(233), 126), repeat(chr(233), 127),
    repeat(chr(8364), 84)]) WITH ORDINALITY u(name, n);
SELECT lease_acquire(name, reverse(name), '1 hour') FROM names ORDER BY n;
CREATE TEMP TABLE told AS SELECT json.extra::json AS j, octet_length(json.extra) AS length FROM heard() json(extra);
SELECT n, j->>'event' AS event, j->'token' AS token, j->>'holder' = reverse(name) AS holder,
       ARRAY(SELECT json_object_keys(j)) AS keys
  FROM names LEFT JOIN told ON j->>'role' = name ORDER BY n;
SELECT max(length) BETWEEN 3060 AND 7999 AS short_enough FROM told;
SELECT lease_revoke(name, reverse(name)) FROM names ORDER BY n;
SELECT j->>'event' AS event, count(*), count(DISTINCT j->>'role') FROM (SELECT heard()::json AS j) h GROUP BY 1 ORDER BY 1;

SELECT dblink_disconnect('listener');
DROP FUNCTION heard();
DROP EXTENSION dblink;
REVOKE ALL ON leader_lease FROM note_app;
