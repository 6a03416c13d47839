-- What the test sees of the job table from outside: every write of a row, in the order of the commits.  The counter's
-- row is locked until the transaction ends, so that n is that order.
CREATE TABLE audit_counter (n bigint NOT NULL);
INSERT INTO audit_counter VALUES (0);
CREATE TABLE audit (
    n bigint PRIMARY KEY,
    slot bigint, worker text, token bigint, done boolean,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON audit (worker, n);

CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
    number bigint;
BEGIN
    UPDATE audit_counter SET n = n + 1 RETURNING n INTO number;
    INSERT INTO audit (n, slot, worker, token, done)
    VALUES (number, NEW.slot, NEW.worker, NEW.completed_by_token, NEW.completed_at IS NOT NULL);
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON job FOR EACH ROW EXECUTE FUNCTION audit();

SELECT lease_create('mail', 'worker');
GRANT SELECT, UPDATE ON job TO worker;
-- a leader that is stopped inside of a transaction must not hold up the next one for ever
ALTER ROLE worker SET idle_in_transaction_session_timeout = '2s';

-- the adoptions make tables of their own
GRANT CREATE ON SCHEMA public TO worker;
