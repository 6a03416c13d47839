-- one of the worker's 1,000 leases
\set i random(1, 1000)
SELECT lease_renew('shard' || :i, 'worker', 1);
