-- In a security-restricted operation, where code of strangers runs in somebody's name, the guard takes no fence.
CREATE ROLE gres_lead NOLOGIN;
CREATE ROLE gres_other NOLOGIN;
CREATE SCHEMA gres;
GRANT ALL ON SCHEMA gres TO gres_lead, gres_other;
SELECT lease_create('gres', 'gres_lead');
SET ROLE gres_lead;
SELECT lease_acquire('gres', 'a', '1 hour');
RESET ROLE;
SET ROLE gres_other;
CREATE TABLE gres.part (id int PRIMARY KEY);
INSERT INTO gres.part SELECT generate_series(1, 9);
GRANT REFERENCES ON gres.part TO gres_lead;
SET ROLE gres_lead;
CREATE TABLE gres.job (id int PRIMARY KEY, part int REFERENCES gres.part ON DELETE CASCADE);
GRANT INSERT, DELETE, SELECT ON gres.job TO gres_other;
INSERT INTO gres.job SELECT i, i FROM generate_series(1, 9) i;
SELECT lease_protect('gres.job', 'gres');

-- the stranger's code: it writes the protected table directly, or by a cascade
SET ROLE gres_other;
CREATE TABLE gres.what (armed boolean, direct boolean);
INSERT INTO gres.what VALUES (false, false);
CREATE FUNCTION gres.trap(i int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    armed boolean;
    direct boolean;
BEGIN
    SELECT w.armed, w.direct INTO armed, direct FROM gres.what w;
    IF armed THEN
        PERFORM set_config('leader_lease.fence', '{"role": "gres", "holder": "a", "token": 1}', true);
        IF direct THEN
            DELETE FROM gres.job WHERE id = i;
        ELSE
            DELETE FROM gres.part WHERE id = i;
        END IF;
        RAISE NOTICE 'the trap has written';
    END IF;
    RETURN i;
EXCEPTION WHEN OTHERS THEN
    RAISE NOTICE '% %', SQLSTATE, SQLERRM;
    RETURN i;
END $$;
CREATE FUNCTION gres.innocent(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN gres.trap(i); END $$;
CREATE TABLE gres.bait (id int);
INSERT INTO gres.bait VALUES (1);
CREATE MATERIALIZED VIEW gres.view AS SELECT gres.trap(1) AS i;
CREATE INDEX bait_trap ON gres.bait (gres.innocent(id));
-- called by himself it has no right
UPDATE gres.what SET armed = true;
SELECT gres.trap(1);
UPDATE gres.what SET direct = true;
SELECT gres.trap(1);
UPDATE gres.what SET direct = false;

-- the superuser and the leader run into it
RESET ROLE;
REFRESH MATERIALIZED VIEW gres.view;
REINDEX INDEX gres.bait_trap;
ANALYZE gres.bait;
UPDATE gres.what SET direct = true;
REFRESH MATERIALIZED VIEW gres.view;
REINDEX INDEX gres.bait_trap;
GRANT gres_other TO gres_lead;
SET ROLE gres_lead;
REFRESH MATERIALIZED VIEW gres.view;
UPDATE gres.what SET direct = false;
REFRESH MATERIALIZED VIEW gres.view;
REINDEX INDEX gres.bait_trap;
SELECT count(*) FROM gres.job;
-- a plain call runs in the caller's own name, and always could do what he can
SELECT gres.trap(1);
SELECT count(*) FROM gres.job;

RESET ROLE;
DROP MATERIALIZED VIEW gres.view;
DROP TABLE gres.job, gres.part, gres.bait, gres.what;
DROP FUNCTION gres.trap, gres.innocent;
DROP SCHEMA gres;
DROP ROLE gres_lead, gres_other;
