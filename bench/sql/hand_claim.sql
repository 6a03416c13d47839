-- the same by hand: lock the lease's row, look, insert the slot, write
\set id random(1, 10000)
BEGIN;
SELECT fencing_token FROM hand_lease WHERE role = 'job' AND holder_id = 'leader' AND fencing_token = 1 AND expires_at > clock_timestamp() FOR UPDATE;
INSERT INTO hand_slot (role, slot, token) VALUES ('job', nextval('slots')::text, 1) ON CONFLICT DO NOTHING;
UPDATE plain_job SET n = n + 1, completed_by_token = 1 WHERE id = :id;
COMMIT;
