# What was acknowledged is durable, whatever the session's synchronous_commit
# says: a lost grant would be granted again, to another.
use strict;
use warnings;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
# a WAL writer that sleeps for long leaves it to the commit to flush
$primary->append_conf('postgresql.conf', <<'CONF');
fsync = on
synchronous_commit = off
wal_writer_delay = 10s
wal_writer_flush_after = 0
max_prepared_transactions = 10
autovacuum = off
CONF
$primary->start;
$primary->safe_psql('postgres', 'CREATE EXTENSION leader_lease; CREATE TABLE plain (i int)');

# kill -9 right after each acknowledgement
my @acts = (
	[ 'grant', "SELECT lease_acquire('l', 'a', '1 hour')", '1' ],
	[ 'renewal', "SELECT lease_renew('l', 'a', 1, '2 hours')", '02:00:00' ],
	[ 'release', "SELECT lease_release('l', 'a', 1)", 't' ],
	[ 'takeover', "SELECT lease_acquire('l', 'b', '3 hours')", '2' ],
	[   'grant by hand',
		"INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at)
		 VALUES ('m', 'c', 7, clock_timestamp() + interval '1 hour') RETURNING fencing_token", '7' ],
	[   'release by hand',
		"UPDATE leader_lease SET expires_at = clock_timestamp() WHERE role = 'm' RETURNING holder_id", 'c' ],
	[   'grant below a savepoint',
		"BEGIN; SAVEPOINT s; SELECT lease_acquire('n', 'd'); RELEASE s; COMMIT", '1' ]);
my @after = (
	[ 'l', 'a', 1, 'held', '01:00:00' ], [ 'l', 'a', 1, 'held', '02:00:00' ],
	[ 'l', 'a', 1, 'released', '02:00:00' ], [ 'l', 'b', 2, 'held', '03:00:00' ],
	[ 'm', 'c', 7, 'held', undef ], [ 'm', 'c', 7, 'released', undef ],
	[ 'n', 'd', 1, 'held', '00:00:30' ]);
for my $i (0 .. $#acts)
{
	my ($what, $act, $answer) = @{ $acts[$i] };
	my ($role, $holder, $token, $state, $ttl) = @{ $after[$i] };

	$primary->safe_psql('postgres', 'INSERT INTO plain VALUES (1)');
	is($primary->safe_psql('postgres', $act), $answer, "$what is acknowledged");
	$primary->kill9;
	$primary->start;
	is( $primary->safe_psql('postgres',
			"SELECT holder_id, fencing_token, state FROM lease_status WHERE role = '$role'"),
		"$holder|$token|$state", "$what survives kill -9");
	is($primary->safe_psql('postgres', "SELECT ttl FROM lease_status WHERE role = '$role'"),
		$ttl, "$what survives with its ttl") if defined $ttl;
}

# with a synchronous standby it is there too before it is acknowledged, also
# under synchronous_commit = local
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
$primary->append_conf('postgresql.conf', "synchronous_standby_names = '*'");
$primary->reload;
$primary->poll_query_until('postgres',
	"SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'");
$standby->stop;

for my $level ('off', 'local')
{
	my $session = $primary->background_psql('postgres', on_error_stop => 0);
	$session->query("SET synchronous_commit = $level; SET application_name = 'waits'");
	# a write of anybody else's does not wait
	$session->query('INSERT INTO plain VALUES (2)');
	$session->query_until(qr/sent/, "\\echo sent\nSELECT lease_acquire('sync_$level', 's', '1 hour');\n\\echo acknowledged\n");
	ok( $primary->poll_query_until('postgres',
			"SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE application_name = 'waits'"),
		"a grant under synchronous_commit = $level waits for the standby");
	$standby->start;
	$session->query_until(qr/acknowledged/, "");
	is($session->query('SHOW synchronous_commit'), $level, 'the setting is back afterwards');
	$session->quit;
	$primary->wait_for_catchup($standby, 'replay');
	is($standby->safe_psql('postgres', "SELECT holder_id FROM lease_status WHERE role = 'sync_$level'"),
		's', 'and is on it');
	$standby->stop;
}
$primary->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$primary->reload;

# a prepared transaction keeps its fence over a restart
$primary->safe_psql('postgres', <<'SQL');
SELECT lease_acquire('p', 'a', '1 hour');
BEGIN;
SELECT lease_require_fence('p', 'a', 1);
INSERT INTO plain VALUES (3);
PREPARE TRANSACTION 'keeps';
SELECT lease_release('p', 'a', 1);
SQL
for my $how ('restart', 'crash')
{
	$how eq 'crash' ? $primary->kill9 : $primary->stop;
	$primary->start;
	is( $primary->safe_psql('postgres',
			"SET leader_lease.takeover_timeout = 0; SELECT token IS NULL, blocked_by FROM lease_attempt('p', 'b')"),
		't|{0}', "a prepared fence holds after a $how");
	is($primary->safe_psql('postgres', "SELECT mode, granted, pid IS NULL, gid FROM lease_locks WHERE role = 'p'"),
		'fence|t|t|keeps', "and is shown with its gid");
}
$primary->safe_psql('postgres', "COMMIT PREPARED 'keeps'");
is($primary->safe_psql('postgres', "SELECT lease_acquire('p', 'b')"), '2', 'until it ends');

$primary->stop;
done_testing();
