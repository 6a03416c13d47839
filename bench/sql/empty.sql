-- a C trigger that does nothing
\set id random(1, 10000)
UPDATE empty_job SET n = n + 1, completed_by_token = 1 WHERE id = :id;
