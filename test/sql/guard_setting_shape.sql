-- What leader_lease.fence may look like.  Syntax is refused when it is set, shape at the first use.
CREATE ROLE gshape_app NOLOGIN;
CREATE SCHEMA AUTHORIZATION gshape_app;
SET ROLE gshape_app;
CREATE TABLE job (id int);
SELECT lease_protect('job', 'gshape');
SELECT lease_acquire('gshape', 'a', '1 hour');

-- tries a claim and takes everything back, the fence too
CREATE FUNCTION write_with(claim text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    detail text;
BEGIN
    PERFORM set_config('leader_lease.fence', claim, true);
    INSERT INTO gshape_app.job VALUES (1);
    RAISE SQLSTATE 'ZZZZZ';
EXCEPTION WHEN SQLSTATE 'ZZZZZ' THEN
    RETURN 'written';
WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
    RETURN SQLSTATE || ' ' || detail;
END $$;

-- no JSON: refused by SET itself
SET leader_lease.fence = 'gshape:a:1';
SELECT left(claim, 40) AS claim, write_with(claim) FROM unnest(ARRAY[
    ' ', '{', '{}}', '{"role": gshape}', '{"role": "gshape", "holder": "a", "token": 01}', '"', '{"a": "\u0000"}',
    '[[[]]]', '{"role": {"a": {}}}', repeat('[', 100000), repeat('{"a":', 100000), repeat('[', 100000) || repeat(']', 100000),
    ']]]]' || repeat('[', 100000), '"' || repeat('[', 100000), '"\"' || repeat('[', 100000)])
    WITH ORDINALITY u(claim, n) ORDER BY n;
SHOW leader_lease.fence;

-- JSON of another shape: set, and refused when it is used
SELECT claim, write_with(claim) FROM unnest(ARRAY[
    'null', 'true', '1', '"gshape"', '["gshape"]', '[1, null]', '[[]]', '[{}]', '{}', '{"role": "gshape"}',
    '{"role": "gshape", "holder": "a"}',
    '{"role": "gshape", "token": 1}',
    '{"holder": "a", "token": 1}',
    '{"role": null, "holder": "a", "token": 1}',
    '{"role": "gshape", "holder": null, "token": 1}',
    '{"role": "gshape", "holder": "a", "token": null}',
    '{"role": "", "holder": "a", "token": 1}',
    '{"role": "gshape", "holder": "", "token": 1}',
    '{"role": ["gshape"], "holder": "a", "token": 1}',
    '{"role": "gshape", "holder": {"id": "a"}, "token": 1}',
    '{"role": "gshape", "holder": "a", "token": [1]}',
    '{"role": "gshape", "holder": 1, "token": 1}',
    '{"role": 1, "holder": "a", "token": 1}',
    '{"role": {"role": "gshape", "holder": "a", "token": 1}, "holder": "a", "token": 1}',
    '{"role": "gshape", "holder": "a", "token": true}',
    '{"role": "gshape", "holder": "a", "token": 0}',
    '{"role": "gshape", "holder": "a", "token": -1}',
    '{"role": "gshape", "holder": "a", "token": 1.0}',
    '{"role": "gshape", "holder": "a", "token": 1e0}',
    '{"role": "gshape", "holder": "a", "token": "1 "}',
    '{"role": "gshape", "holder": "a", "token": " 1"}',
    '{"role": "gshape", "holder": "a", "token": "+1"}',
    '{"role": "gshape", "holder": "a", "token": "0x1"}',
    '{"role": "gshape", "holder": "a", "token": ""}',
    '{"role": "gshape", "holder": "a", "token": 9223372036854775808}',
    '{"role": "gshape", "holder": "a", "token": 18446744073709551617}',
    '{"role": "gshape", "holder": "a", "token": 1, "ttl": 1}',
    '{"Role": "gshape", "holder": "a", "token": 1}',
    '{"role": "gshape", "role": "gshape", "holder": "a", "token": 1}',
    '{"role": "gshape", "holder": "a", "token": 2, "token": 1}',
    -- half a claim is none, wherever the fault is
    '[{"role": "gshape", "holder": "a", "token": 1}, {"role": "other"}]',
    '[{"role": "other", "holder": "a", "token": "x"}, {"role": "gshape", "holder": "a", "token": 1}]',
    '[{"role": "gshape", "holder": "a", "token": 1}, {"role": "gshape", "holder": "b", "token": 2}]',
    '[{"role": "gshape", "holder": "a", "token": 1}, 1]'])
    WITH ORDINALITY u(claim, n) ORDER BY n;
SELECT write_with(format('{"role": %s, "holder": "a", "token": 1}', to_json(repeat('x', 256)))),
       write_with(format('{"role": "gshape", "holder": %s, "token": 1}', to_json(repeat('x', 256)))),
       write_with(format('{"role": "gshape", "holder": %s, "token": 1}', to_json(repeat('x', 255))));

-- what is good
SELECT claim, write_with(claim) FROM unnest(ARRAY[
    '{"role": "gshape", "holder": "a", "token": 1}',
    '{"role":"gshape","holder":"a","token":"1"}',
    '{"role": "gshape", "holder": "a", "token": "0001"}',
    '{"role": "\u0067shape", "holder": "\u0061", "token": 1}',
    E' \n\t[ { "token" : 1 , "holder" : "a" , "role" : "gshape" } ] \n',
    '[{"role": "{[{[{", "holder": "\"[[[\\", "token": 1}, {"role": "gshape", "holder": "a", "token": 1}]'])
    WITH ORDINALITY u(claim, n) ORDER BY n;
SELECT write_with('') ~ '^LF002 *$' AS empty;

-- the problem is told with the error
SET leader_lease.fence = '{"role": "gshape"}';
INSERT INTO job VALUES (1);

RESET leader_lease.fence;
DROP TABLE job;
DROP FUNCTION write_with;
RESET ROLE;
DROP SCHEMA gshape_app;
DROP ROLE gshape_app;
