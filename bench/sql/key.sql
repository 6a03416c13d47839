-- rows of eight leases in one table
\set id random(1, 10000)
\set shard :id % 8
UPDATE key_job SET n = n + 1, completed_by_token = lease_require_fence('shard/' || :shard::text, 'leader', 1) WHERE id = :id;
