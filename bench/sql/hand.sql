-- the common protocol: lock the lease's row, look, write, commit
\set id random(1, 10000)
BEGIN;
SELECT fencing_token FROM hand_lease WHERE role = 'job' AND holder_id = 'leader' AND fencing_token = 1 AND expires_at > clock_timestamp() FOR UPDATE;
UPDATE plain_job SET n = n + 1, completed_by_token = 1 WHERE id = :id;
COMMIT;
