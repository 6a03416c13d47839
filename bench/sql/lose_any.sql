-- :leases leases, each with a live holder
\set i random(1, :leases)
SELECT lease_acquire('lease' || :i, 'somebody else');
