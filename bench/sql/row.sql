-- proof 'row': the write carries the token itself
\set id random(1, 10000)
UPDATE row_job SET n = n + 1, completed_by_token = 1 WHERE id = :id;
