-- the statement knows nothing of leases; leader_lease.fence is set for the connection
\set id random(1, 10000)
UPDATE fence_job SET n = n + 1 WHERE id = :id;
