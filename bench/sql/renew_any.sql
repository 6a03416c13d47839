-- :leases leases, each with a live holder; one of :asked of them renews
\set i random(1, :asked) * (:leases / :asked)
SELECT lease_acquire('lease' || :i, 'leader');
