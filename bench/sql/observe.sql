-- proof 'highest': the write carries the highest token that was seen
\set id random(1, 10000)
UPDATE observe_job SET n = n + 1, completed_by_token = 33 WHERE id = :id;
