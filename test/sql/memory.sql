-- However many fences a transaction takes, its memory does not grow.
CREATE ROLE mem_app NOLOGIN;
SELECT lease_create('mem', 'mem_app');
SELECT lease_acquire('mem', 'h', '1 hour');
CREATE FUNCTION used() RETURNS bigint LANGUAGE sql AS
    $$ SELECT sum(used_bytes)::bigint FROM pg_backend_memory_contexts WHERE name IN ('TopTransactionContext', 'TopMemoryContext', 'LOCALLOCK hash') $$;

-- in subtransactions that are rolled back
DO $$
DECLARE before bigint; after bigint;
BEGIN
    FOR round IN 1 .. 2 LOOP
        before := used();
        FOR i IN 1 .. 2000 LOOP
            BEGIN
                PERFORM lease_require_fence('mem', 'h', 1);
                RAISE division_by_zero;
            EXCEPTION WHEN division_by_zero THEN NULL;
            END;
        END LOOP;
        after := used();
    END LOOP;
    RAISE NOTICE 'grown: %', after - before > 10000;
END $$;

-- for two users by turns
DO $$
DECLARE before bigint; after bigint;
BEGIN
    FOR round IN 1 .. 2 LOOP
        before := used();
        FOR i IN 1 .. 1000 LOOP
            SET LOCAL ROLE mem_app;
            PERFORM lease_require_fence('mem', 'h', 1);
            RESET ROLE;
            PERFORM lease_require_fence('mem', 'h', 1);
        END LOOP;
        after := used();
    END LOOP;
    RAISE NOTICE 'grown: %', after - before > 10000;
END $$;

-- losing, too
DO $$
DECLARE before bigint; after bigint;
BEGIN
    FOR round IN 1 .. 2 LOOP
        before := used();
        FOR i IN 1 .. 1000 LOOP
            PERFORM lease_acquire('mem', 'other'), lease_renew('mem', 'h', 2), lease_check_fence('mem', 'h', 2);
        END LOOP;
        after := used();
    END LOOP;
    RAISE NOTICE 'grown: %', after - before > 10000;
END $$;
DROP FUNCTION used;
