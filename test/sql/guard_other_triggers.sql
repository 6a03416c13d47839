-- Other BEFORE triggers: the guard sorts after ordinary ones and sees what they made of the row.
CREATE ROLE gtrig_app NOLOGIN;
CREATE SCHEMA AUTHORIZATION gtrig_app;
SET ROLE gtrig_app;
CREATE TABLE job (id int PRIMARY KEY, note text, by_token bigint);
SELECT lease_protect('job', 'gtrig', 'by_token');
SELECT lease_acquire('gtrig', 'a', '1 hour');
CREATE TABLE plan (token bigint, skip boolean);
INSERT INTO plan VALUES (NULL, false);
CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    p plan;
BEGIN
    SELECT * INTO p FROM plan;
    IF p.skip THEN
        RETURN NULL;
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    NEW.by_token := coalesce(p.token, NEW.by_token);
    NEW.note := coalesce(NEW.by_token::text, 'none') || ' seen by ' || TG_NAME;
    RETURN NEW;
END $$;
\set VERBOSITY sqlstate

-- names that sort before "~": whatever people use
CREATE TRIGGER zzz BEFORE INSERT OR UPDATE OR DELETE ON job FOR EACH ROW EXECUTE FUNCTION meddle();
SELECT role, events FROM lease_guards WHERE "table" = 'job'::regclass ORDER BY events;
INSERT INTO job VALUES (1);
BEGIN;
SELECT lease_require_fence('gtrig', 'a', 1);
INSERT INTO job VALUES (1) RETURNING *;
UPDATE plan SET token = 9;
-- a token that a trigger writes is one that is given
SAVEPOINT s;
INSERT INTO job VALUES (2);
ROLLBACK TO s;
UPDATE job SET id = 2;
ROLLBACK TO s;
UPDATE plan SET token = 1;
UPDATE job SET id = 2 RETURNING *;
-- a row that a trigger skips is not written, and needs no fence
UPDATE plan SET token = NULL, skip = true;
COMMIT;
INSERT INTO job VALUES (3);
DELETE FROM job;
UPDATE plan SET skip = false;
SELECT * FROM job;
-- proof in the row: what a trigger assigns, the statement has not
SELECT lease_protect('job', 'gtrig', 'by_token', proof => 'row');
UPDATE plan SET token = 1;
UPDATE job SET id = 3;
UPDATE job SET id = 3, by_token = 9 RETURNING *;
-- an inserted row is what it has become
INSERT INTO job VALUES (4, '', 9) RETURNING *;
UPDATE plan SET token = 9;
INSERT INTO job VALUES (5, '', 1);
UPDATE job SET by_token = 1;

-- a name that sorts later, which begins with "~~" or with a letter outside ASCII, sees the stamp and can spoil it
DROP TRIGGER zzz ON job;
SELECT lease_protect('job', 'gtrig', 'by_token');
UPDATE plan SET token = NULL;
CREATE TRIGGER "überprüfung" BEFORE INSERT OR UPDATE OR DELETE ON job FOR EACH ROW EXECUTE FUNCTION meddle();
BEGIN;
SELECT lease_require_fence('gtrig', 'a', 1);
INSERT INTO job VALUES (6) RETURNING id, note LIKE '1 seen by %', by_token;
UPDATE plan SET token = 9;
INSERT INTO job VALUES (7) RETURNING id, by_token;
ROLLBACK;
DROP TRIGGER "überprüfung" ON job;

-- a trigger that takes the fence, so that the application need not
CREATE FUNCTION fence_first() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lease_require_fence('gtrig', 'a', 1);
    RETURN coalesce(NEW, OLD);
END $$;
CREATE TRIGGER fence_first BEFORE INSERT ON job FOR EACH ROW EXECUTE FUNCTION fence_first();
INSERT INTO job VALUES (8) RETURNING id, by_token;
-- and AFTER triggers that write a protected table go by the transaction's fence
CREATE TABLE log (id int);
SELECT lease_protect('log', 'gtrig');
CREATE FUNCTION log_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO log VALUES (NEW.id); RETURN NULL; END $$;
CREATE TRIGGER log_it AFTER INSERT ON job FOR EACH ROW EXECUTE FUNCTION log_it();
INSERT INTO job VALUES (9);
SELECT * FROM log;
-- which is that of one lease only
SELECT lease_unprotect('log'), lease_protect('log', 'gtrig other');
INSERT INTO job VALUES (10);
SELECT count(*) FROM job;

-- a WHEN of one's own is one's own affair
SELECT lease_unprotect('job');
DROP TRIGGER fence_first ON job;
DROP TRIGGER log_it ON job;
CREATE TRIGGER "~part" BEFORE INSERT ON job FOR EACH ROW WHEN (NEW.id > 100)
    EXECUTE FUNCTION lease_fence('gtrig', 'token_column=by_token');
INSERT INTO job VALUES (100);
INSERT INTO job VALUES (101);

DROP TABLE job, plan, log;
DROP FUNCTION meddle, fence_first, log_it;
RESET ROLE;
DROP SCHEMA gtrig_app;
DROP ROLE gtrig_app;
