-- The trigger made by hand: what it takes and what it refuses.
CREATE ROLE garg_app NOLOGIN;
CREATE SCHEMA AUTHORIZATION garg_app;
SET ROLE garg_app;
CREATE TABLE job (id int PRIMARY KEY, by_token bigint, small int, made bigint GENERATED ALWAYS AS (id) STORED);
CREATE VIEW job_view AS SELECT id, by_token FROM job;
SELECT lease_acquire('garg', 'a', '1 hour');

SELECT lease_fence();
CREATE FUNCTION try(args text, spec text DEFAULT 'BEFORE INSERT ON job FOR EACH ROW', command text DEFAULT 'INSERT INTO job VALUES (1)')
RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TRIGGER guard %s EXECUTE FUNCTION lease_fence(%s)', spec, args);
    EXECUTE command;
    RAISE SQLSTATE 'ZZZZZ' USING MESSAGE = 'written';
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE || ' ' || SQLERRM;
END $$;
SELECT args, try(args) FROM unnest(ARRAY[
    '', $$''$$, $$'garg'$$, 'garg', $$'garg', 'token_column=by_token'$$,
    $$'garg', 'proof=fence', 'mode=enforce'$$, $$'garg', 'mode=log'$$,
    -- the last one counts
    $$'garg', 'mode=log', 'mode=enforce'$$, $$'garg', 'mode=enforce', 'mode=log'$$,
    $$'garg', 'proof=row', 'proof=fence'$$, $$'garg', 'proof=fence', 'proof=row'$$,
    -- misspelt options let nothing through, the same in the other order
    $$'garg', ''$$, $$'garg', 'mode'$$, $$'garg', 'mode='$$, $$'garg', 'mode=logs'$$, $$'garg', 'mode=LOG'$$, $$'garg', 'Mode=log'$$,
    $$'garg', ' mode=log'$$, $$'garg', 'mode = log'$$, $$'garg', 'mode=log '$$, $$'garg', 'mode_=log'$$, $$'garg', 'log'$$,
    $$'garg', 'proof=rows'$$, $$'garg', 'proof=none'$$, $$'garg', 'events=insert'$$, $$'garg', 'garg2'$$,
    $$'garg', 'mode=log', 'typo=1'$$, $$'garg', 'typo=1', 'mode=log'$$,
    $$'garg', 'token_column'$$, $$'garg', 'token_column='$$, $$'garg', 'token_column=nowhere'$$, $$'garg', 'token_column=BY_TOKEN'$$,
    $$'garg', 'token_column=small'$$, $$'garg', 'token_column=made'$$, $$'garg', 'token_column=ctid'$$, $$'garg', 'token_column=tableoid'$$,
    $$'garg', 'token_column= by_token'$$, $$'garg', 'proof=row'$$, $$'garg', 'proof=row', 'token_column=by_token'$$])
    WITH ORDINALITY u(args, n) ORDER BY n;
-- only BEFORE each row, and BEFORE TRUNCATE
SELECT spec, try($$'garg'$$, spec, command) FROM (VALUES
    (1, 'AFTER INSERT ON job FOR EACH ROW', 'INSERT INTO job VALUES (1)'),
    (2, 'BEFORE INSERT ON job FOR EACH STATEMENT', 'INSERT INTO job VALUES (1)'),
    (3, 'BEFORE UPDATE ON job FOR EACH STATEMENT', 'UPDATE job SET id = 1'),
    (4, 'BEFORE DELETE ON job', 'DELETE FROM job'),
    (5, 'AFTER TRUNCATE ON job', 'TRUNCATE job'),
    (6, 'INSTEAD OF INSERT ON job_view FOR EACH ROW', 'INSERT INTO job_view VALUES (1)'),
    (7, 'BEFORE TRUNCATE ON job', 'TRUNCATE job'),
    (8, 'BEFORE UPDATE OF id ON job FOR EACH ROW', 'INSERT INTO job VALUES (1); UPDATE job SET by_token = 1'),
    (9, 'BEFORE UPDATE OF id ON job FOR EACH ROW', 'INSERT INTO job VALUES (1); UPDATE job SET id = 2'))
    v(n, spec, command) ORDER BY n;

-- lease_protect puts its own in the place of one made by hand for the same lease, and lease_unprotect takes it off
CREATE TRIGGER guard BEFORE INSERT ON job FOR EACH ROW EXECUTE FUNCTION lease_fence('garg', 'mode=log');
CREATE TRIGGER guard2 BEFORE INSERT ON job FOR EACH ROW EXECUTE FUNCTION lease_fence('garg 2', 'mode=log');
SELECT role, options, events FROM lease_guards WHERE "table" = 'job'::regclass ORDER BY role;
SELECT lease_protect('job', 'garg', events => 'insert');
SELECT role, options, events FROM lease_guards WHERE "table" = 'job'::regclass ORDER BY role;
SELECT lease_unprotect('job', 'garg 2'), lease_unprotect('job', 'garg');
CREATE TRIGGER guard BEFORE INSERT ON job FOR EACH ROW EXECUTE FUNCTION lease_fence();
SELECT role, options FROM lease_guards WHERE "table" = 'job'::regclass;
SELECT lease_unprotect('job');

DROP FUNCTION try;
DROP VIEW job_view;
DROP TABLE job;
RESET ROLE;
DROP SCHEMA garg_app;
DROP ROLE garg_app;
