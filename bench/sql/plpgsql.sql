-- a guard in PL/pgSQL, which locks and looks in the trigger
\set id random(1, 10000)
UPDATE hand_job SET n = n + 1, completed_by_token = 1 WHERE id = :id;
