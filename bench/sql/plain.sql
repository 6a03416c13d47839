-- the floor: no guard
\set id random(1, 10000)
UPDATE plain_job SET n = n + 1, completed_by_token = 1 WHERE id = :id;
