-- A column that knows no NULL has 0 for no token: it is stamped like NULL.
SELECT lease_acquire('zero', 'a', '1 hour');
CREATE TABLE zero (id int, token bigint NOT NULL DEFAULT 0);
SELECT lease_protect('zero', 'zero', 'token', proof => 'row');
INSERT INTO zero VALUES (1);
INSERT INTO zero VALUES (1, 0);
BEGIN;
SELECT lease_require_fence('zero', 'a', 1);
INSERT INTO zero VALUES (1) RETURNING *;
INSERT INTO zero VALUES (2, 0) RETURNING *;
UPDATE zero SET token = 0 RETURNING *;
INSERT INTO zero VALUES (3, -1);
ROLLBACK;
DROP TABLE zero;
