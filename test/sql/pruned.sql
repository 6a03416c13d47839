-- Who alone renews a lease prunes its page as he goes: no update that is not HOT, no page more.
SELECT lease_acquire('pruned', 'a', '1 hour');
SELECT pg_relation_size('leader_lease') AS before \gset
DO $$ BEGIN FOR i IN 1..3000 LOOP PERFORM lease_renew('pruned', 'a', 1); COMMIT; END LOOP; END $$;
SELECT pg_relation_size('leader_lease') - :before < 10 * 8192 AS small;
-- nor who takes and gives it back
DO $$ BEGIN
    FOR i IN 1..3000 LOOP
        PERFORM lease_release('pruned', 'a', i), lease_acquire('pruned', 'a', '1 hour');
        COMMIT;
    END LOOP;
END $$;
SELECT pg_relation_size('leader_lease') - :before < 20 * 8192 AS small;
