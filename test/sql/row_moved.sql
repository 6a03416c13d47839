-- A backend goes first to where it last saw a lease's row. The row may be elsewhere by now: then it is looked for.
CREATE DATABASE lease_row_moved;
\c lease_row_moved
CREATE EXTENSION leader_lease;
SELECT lease_acquire('one', 'a', '1 hour'), lease_acquire('two', 'b', '1 hour');
VACUUM FULL leader_lease;
SELECT lease_check_fence('one', 'a', 1), lease_check_fence('two', 'b', 1);

-- Its place has become another lease's.
UPDATE leader_lease SET expires_at = expires_at WHERE role = 'one';
VACUUM FULL leader_lease;
SELECT role FROM leader_lease WHERE ctid = '(0,1)';
SELECT lease_check_fence('one', 'a', 1), lease_check_fence('two', 'b', 1);

-- Its place lies beyond the end of the table.
DO $$ BEGIN FOR i IN 1..200 LOOP PERFORM lease_renew('one', 'a', 1); END LOOP; END $$;
SELECT ctid >= '(1,0)' AS further FROM leader_lease WHERE role = 'one';
SELECT lease_check_fence('one', 'a', 1);
VACUUM FULL leader_lease;
SELECT ctid < '(1,0)' AS back FROM leader_lease WHERE role = 'one';
SELECT lease_check_fence('one', 'a', 1);

-- The version there was rolled back.
BEGIN;
SELECT lease_release('one', 'a', 1);
ROLLBACK;
SELECT lease_check_fence('one', 'a', 1);

-- There is no primary key any more, so perhaps two rows of one name.
ALTER TABLE leader_lease DROP CONSTRAINT leader_lease_pkey;
SELECT lease_check_fence('one', 'a', 1);
ALTER TABLE leader_lease ADD PRIMARY KEY (role);
SELECT lease_check_fence('one', 'a', 1);
