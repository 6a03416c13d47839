-- 100 of 1,000 leases that are free, and all back
SELECT count(*) FROM lease_acquire_any((SELECT array_agg('free' || i) FROM generate_series(1, 1000) i), 'taker', 100);
SELECT lease_release_all('taker');
