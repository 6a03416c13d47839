-- :leases leases, each with a live holder, who renews
\set i random(1, :leases)
SELECT lease_acquire('lease' || :i, 'leader');
