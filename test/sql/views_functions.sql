-- The functions that the views ask take what anybody may give them.
CREATE ROLE vfun_app NOLOGIN;
SET ROLE vfun_app;
SELECT lease_term(NULL);
SELECT (lease_term(NULL)).state IS NULL AS null_state;
SELECT state, live, remaining FROM lease_term(NULL::leader_lease);
CREATE FUNCTION pg_temp.term(VARIADIC text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    l leader_lease;
BEGIN
    l := jsonb_populate_record(NULL::leader_lease, jsonb_object($1));
    RETURN (SELECT concat_ws(' ', state, live, remaining IS NOT NULL) FROM lease_term(l));
END $$;
-- rows of one's own making are no leases, and do no harm
SELECT pg_temp.term('role', 'x');
SELECT pg_temp.term('role', 'x', 'holder_id', 'a', 'expires_at', '2100-01-01', 'ttl', '1 day', 'renewed_at', now()::text);
SELECT pg_temp.term('role', 'x', 'holder_id', 'a', 'origin', '1', 'expires_at', '2100-01-01', 'ttl', '1 day', 'renewed_at', now()::text);
SELECT pg_temp.term('holder_id', 'a', 'expires_at', 'infinity', 'ttl', '178000000 years', 'renewed_at', now()::text);
SELECT pg_temp.term('holder_id', 'a', 'expires_at', '-infinity', 'ttl', '-178000000 years', 'renewed_at', 'infinity');
SELECT pg_temp.term('holder_id', 'a', 'ended', 'revoked'), pg_temp.term('holder_id', 'a', 'ended', 'revoked or so'),
    pg_temp.term('ended', ''), pg_temp.term('holder_id', 'a', 'boot', '1', 'deadline', '9223372036854775807');
-- nobody keeps others out in a lease without holder, or with a mark that it ended
SELECT pg_temp.term('expires_at', '2100-01-01', 'ttl', '1 day', 'renewed_at', now()::text),
    pg_temp.term('holder_id', 'a', 'ended', 'released', 'expires_at', '2100-01-01', 'ttl', '1 day', 'renewed_at', now()::text);
-- a term that began in the time to come is not live, and none lives longer than its ttl
SELECT pg_temp.term('holder_id', 'a', 'expires_at', '2100-01-01', 'ttl', '1 day', 'renewed_at', (now() + interval '1 hour')::text),
    pg_temp.term('holder_id', 'a', 'expires_at', '2100-01-01', 'ttl', '1 hour', 'renewed_at', '2001-01-01');
-- a row with long values, as the views never have
SELECT pg_temp.term('role', repeat('x', 1000000), 'holder_id', repeat('y', 1000000));
DROP FUNCTION pg_temp.term;

SELECT b, lease_guard_arguments(b) FROM unnest(ARRAY['', '\x00', '\x0000', 'a', 'a\000', 'a\000b', 'a\000\000b\000', NULL]::bytea[]) WITH ORDINALITY u(b, n) ORDER BY n;
SELECT array_length(lease_guard_arguments(decode(repeat('00', 100000), 'hex')), 1);
SELECT lease_guard_arguments('\xc3a4006200') = ARRAY[E'\303\244', 'b'];
-- bytes that are no text in this encoding
CREATE FUNCTION pg_temp.try(tgargs bytea) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN lease_guard_arguments(tgargs);
EXCEPTION WHEN character_not_in_repertoire THEN
    RETURN 'refused';
END $$;
SELECT pg_temp.try(b) = 'refused' OR getdatabaseencoding() <> 'UTF8' FROM unnest(ARRAY['\xff00', '\xc300a400']::bytea[]) b;
DROP FUNCTION pg_temp.try;
RESET ROLE;
DROP ROLE vfun_app;
