-- fences and stamps in one statement
\set id random(1, 10000)
UPDATE fence_job SET n = n + 1, completed_by_token = lease_require_fence('job', 'leader', 1) WHERE id = :id;
