-- :leases leases, each with a live holder; :asked of them are asked for
\set i random(1, :asked) * (:leases / :asked)
SELECT lease_acquire('lease' || :i, 'somebody else');
