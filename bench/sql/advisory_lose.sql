-- somebody else has the advisory lock
SELECT pg_try_advisory_lock(1);
