-- one of 1,000 leases that are free, and back
\set i random(1, 1000)
SELECT lease_acquire('free' || :i, 'taker') AS token \gset
SELECT lease_release('free' || :i, 'taker', :token);
