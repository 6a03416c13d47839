-- one run a slot: the claim, which fences, and the work
\set id random(1, 10000)
BEGIN;
SELECT lease_claim_slot('job', 'leader', 1, nextval('slots')::text);
UPDATE fence_job SET n = n + 1, completed_by_token = 1 WHERE id = :id;
COMMIT;
