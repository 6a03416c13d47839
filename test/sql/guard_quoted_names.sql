-- Names with quotes, backslashes, spaces and letters of other scripts, up to 255 bytes for a lease.
CREATE ROLE "gq ""app' \" NOLOGIN;
CREATE SCHEMA "gq ""schema' \" AUTHORIZATION "gq ""app' \";
SET ROLE "gq ""app' \";
SET search_path = "gq ""schema' \", public;
CREATE TABLE names (n int, lease text);
INSERT INTO names VALUES (1, 'gq ''quoted'''), (2, 'gq "double"'), (3, 'gq back\slash'), (4, 'gq \000 \x41 \\'), (5, '\x4142'),
    (6, 'gq Größe 指導者 🙂'), (7, E'gq line\nbreak\ttab'), (8, ' gq '), (9, 'gq%s%n{}[]$1'), (10, 'GQ'), (11, 'gq'),
    (12, repeat('''', 255)), (13, repeat('\', 255)), (14, repeat('é', 127) || 'x');
CREATE TABLE "a ""job' \" (id int, "by ""token' \" bigint);

CREATE FUNCTION try(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE command;
    RETURN 'written';
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE;
END $$;

-- each guard alone: refused without a fence, and the fence of just that lease is the one
CREATE PROCEDURE each(INOUT report text DEFAULT '') LANGUAGE plpgsql AS $$
DECLARE
    r names;
    token bigint;
    refused text;
    other text;
    passed text;
    shown text[];
BEGIN
    FOR r IN SELECT * FROM names ORDER BY n LOOP
        PERFORM lease_protect('"a ""job'' \"', r.lease, 'by "token'' \');
        SELECT array_agg(DISTINCT g.role) INTO shown FROM lease_guards g WHERE "table" = '"a ""job'' \"'::regclass;
        token := lease_acquire(r.lease, r.lease, '1 hour');
        COMMIT;
        refused := try('INSERT INTO "a ""job'' \" VALUES (1)');
        PERFORM lease_acquire('gq other', 'a', '1 hour');
        PERFORM set_config('leader_lease.fence', '{"role": "gq other", "holder": "a", "token": 1}', true);
        other := try('INSERT INTO "a ""job'' \" VALUES (1)');
        PERFORM set_config('leader_lease.fence', json_build_object('role', r.lease, 'holder', r.lease, 'token', token)::text, true);
        passed := try('INSERT INTO "a ""job'' \" VALUES (1)');
        COMMIT;
        report := report || format(E'\n%s %s %s %s %s %s', r.n, token, refused, other, passed, shown = ARRAY[r.lease]);
        PERFORM lease_unprotect('"a ""job'' \"', r.lease);
        COMMIT;
    END LOOP;
END $$;
CALL each();
SELECT count(*), max("by ""token' \") FROM "a ""job' \";

-- all of them at once, on partitions too
CREATE TABLE "p ""job' \" (id int, "by ""token' \" bigint) PARTITION BY LIST (id);
CREATE TABLE "p ""one' \" PARTITION OF "p ""job' \" FOR VALUES IN (1);
SELECT count(lease_protect('"p ""job'' \"', lease)::text) FROM names;
SELECT count(*), count(DISTINCT role), bool_and(open_children = '{}') FROM lease_guards WHERE "table" = '"p ""one'' \"'::regclass;
-- one after the other is taken off, and no other
SELECT lease_unprotect('"p ""job'' \"', lease) FROM names WHERE n IN (3, 10, 13);
SELECT n FROM lease_guards JOIN names ON lease = role WHERE "table" = '"p ""job'' \"'::regclass AND events = 'truncate' ORDER BY n;
SELECT lease_unprotect('"p ""job'' \"');
SELECT count(*) FROM lease_guards WHERE "table" = '"p ""one'' \"'::regclass;

-- the error tells the names as they are
SELECT lease_protect('"a ""job'' \"', 'gq "double"', 'by "token'' \', 'insert,update,delete', 'row');
INSERT INTO "a ""job' \" VALUES (1);
INSERT INTO "a ""job' \" VALUES (1, 7);
SELECT options FROM lease_guards WHERE "table" = '"a ""job'' \"'::regclass;

DROP FUNCTION try;
DROP PROCEDURE each;
DROP TABLE names, "a ""job' \", "p ""job' \";
RESET ROLE;
DROP SCHEMA "gq ""schema' \";
DROP ROLE "gq ""app' \";
