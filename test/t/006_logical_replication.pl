# Logical replication: of a protected table, whose guard is not in the way of
# the apply worker unless it is told to be; and of the lease table.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $publisher = PostgreSQL::Test::Cluster->new('publisher');
$publisher->init(allows_streaming => 'logical');
$publisher->start;
my $subscriber = PostgreSQL::Test::Cluster->new('subscriber');
$subscriber->init(allows_streaming => 'logical');
$subscriber->append_conf('postgresql.conf', 'wal_retrieve_retry_interval = 100ms');
$subscriber->start;

for my $node ($publisher, $subscriber)
{
	$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION leader_lease;
CREATE TABLE job (id int PRIMARY KEY, token bigint);
CREATE TABLE kept (id int PRIMARY KEY, token bigint);
SELECT lease_protect('job', 'job', 'token');
SQL
}
$subscriber->safe_psql('postgres', "SELECT lease_protect('kept', 'job', on_replica => true)");
$publisher->safe_psql('postgres', "SELECT lease_acquire('job', 'a', '1 hour')");
$publisher->safe_psql('postgres', 'CREATE PUBLICATION jobs FOR TABLE job');
my $connection = $publisher->connstr . ' dbname=postgres';
$subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION jobs CONNECTION '$connection' PUBLICATION jobs");
$subscriber->wait_for_subscription_sync($publisher, 'jobs');

$publisher->safe_psql('postgres', <<'SQL');
INSERT INTO job SELECT i, lease_require_fence('job', 'a', 1) FROM generate_series(1, 3) i;
SET leader_lease.fence = '{"role": "job", "holder": "a", "token": 1}';
UPDATE job SET id = id + 10 WHERE id = 1;
DELETE FROM job WHERE id = 2;
SQL
$publisher->wait_for_catchup('jobs');
is($subscriber->safe_psql('postgres', 'SELECT id, token FROM job ORDER BY id'), "3|1\n11|1", 'a protected table is replicated');
is(sqlstate($subscriber, 'INSERT INTO job VALUES (99)'), 'LF002', 'and guarded against local writes');

# a guard that fires always refuses what the worker applies
$publisher->safe_psql('postgres', 'CREATE PUBLICATION kept FOR TABLE kept; INSERT INTO kept VALUES (1)');
$subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION kept CONNECTION '$connection' PUBLICATION kept WITH (copy_data = false)");
my $log = -s $subscriber->logfile;
$publisher->safe_psql('postgres', 'INSERT INTO kept VALUES (2)');
$subscriber->wait_for_log(qr/no fence of lease "job" in a write to "kept"/, $log);
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM kept'), '0', "'always' is in the way");
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION kept DISABLE');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION kept SET (slot_name = NONE)');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION kept');

# the lease table as a copy to read, and to fail over to: terms are over there
# and tokens go on above what the publisher may grant
$publisher->safe_psql('postgres', 'CREATE PUBLICATION leases FOR TABLE leader_lease, leader_lease_origin WITH (publish = \'insert, update\')');
$subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION leases CONNECTION '$connection' PUBLICATION leases");
$subscriber->wait_for_subscription_sync($publisher, 'leases');
my $token = $publisher->safe_psql('postgres',
	"SELECT lease_renew('job', 'a', 1); SELECT lease_release('job', 'a', 1); SELECT lease_acquire('job', 'b', '1 hour')");
($token) = $token =~ /(\d+)$/;
$publisher->safe_psql('postgres', "SELECT lease_acquire('other', 'c', '1 hour')");
$publisher->wait_for_catchup('leases');
is($subscriber->safe_psql('postgres', 'SELECT role, holder_id, fencing_token, state, live FROM lease_status ORDER BY role'),
	"job|b|$token|failed_over|f\nother|c|1|failed_over|f", 'leases are replicated, and no term of them is current here');
is($subscriber->safe_psql('postgres', "SELECT lease_check_fence('job', 'b', $token), lease_acquire('job', 'z') IS NULL"),
	'f|t', 'their holders keep others out, and pass no guard');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION leases; DROP SUBSCRIPTION jobs');
cmp_ok($subscriber->safe_psql('postgres', "SELECT lease_acquire('job', 'b')"), '>', 2**41, 'tokens go on above the publisher\'s');
cmp_ok($subscriber->safe_psql('postgres', "SELECT lease_acquire('new', 'b')"), '>', 2**41, 'also of leases it has not seen');

$subscriber->stop;
$publisher->stop;
done_testing();
