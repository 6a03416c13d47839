-- Leases from the present number + 1 up to :leases, copies of one that was acquired.  In replica mode the table's own
-- trigger does not fire.
SELECT lease_acquire('lease1', 'leader', '20 hours');
SET session_replication_role = replica;
INSERT INTO leader_lease
SELECT r.*
  FROM leader_lease l,
       generate_series((SELECT count(*) + 1 FROM leader_lease WHERE role LIKE 'lease%'), :leases) i,
       jsonb_populate_record(l, jsonb_build_object('role', 'lease' || i, 'number', nextval('leader_lease_number'))) r
 WHERE l.role = 'lease1';
VACUUM ANALYZE leader_lease;
CHECKPOINT;
