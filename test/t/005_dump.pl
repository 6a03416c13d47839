# Dump and restore: tokens go on, guards and owners are there.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_primary('main');
my $dir = PostgreSQL::Test::Utils::tempdir;

$node->safe_psql('postgres', <<'SQL');
CREATE ROLE app;
CREATE ROLE leaver;
CREATE ROLE installer LOGIN;
CREATE DATABASE source OWNER installer;
SQL
# a trusted extension, installed by somebody who is no superuser
sub installer
{
	my ($db, $sql) = @_;
	return $node->safe_psql($db, $sql, extra_params => [ '-U', 'installer' ]);
}
installer('source', <<'SQL');
CREATE SCHEMA lease;
CREATE EXTENSION leader_lease SCHEMA lease;
CREATE TABLE job (id int, token bigint);
CREATE TABLE part (id int, token bigint) PARTITION BY RANGE (id);
CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (10);
SELECT lease.lease_protect('job', 'it''s', 'token', proof => 'row');
SELECT lease.lease_protect('part', 'it''s', 'token');
CREATE TABLE always (id int);
SELECT lease.lease_protect('always', 'free', on_replica => true, events => 'insert');
CREATE TABLE shard (shard_no int, token bigint);
SELECT lease.lease_protect('shard', 'shard/', 'token', key_column => 'shard_no');
SELECT lease.lease_acquire('shard/1', 'a', '1 microsecond');
GRANT SELECT, INSERT, UPDATE ON lease.leader_lease TO app;
SELECT lease.lease_acquire('it''s', 'a', '1 hour');
SELECT lease.lease_create('free', ttl => '5 min');
INSERT INTO job VALUES (1, lease.lease_require_fence('it''s', 'a', 1));
INSERT INTO part VALUES (1, lease.lease_require_fence('it''s', 'a', 1));
SELECT lease.lease_claim_slot('it''s', 'a', 1, 'dumped');
CREATE TABLE copy (id int, token bigint);
SELECT lease.lease_protect('copy', 'from afar', 'token', proof => 'highest');
INSERT INTO copy VALUES (1, 33);
SQL
$node->safe_psql('source', <<'SQL');
SELECT lease.lease_create('apps', 'app');
SELECT lease.lease_create('left', 'leaver');
INSERT INTO lease.leader_lease_observed (resource, fencing_token, owner) VALUES ('left', 9, 'leaver');
SELECT lease.lease_acquire('apps', 'b', '1 microsecond') FROM generate_series(1, 7);
SQL
my $guards = installer('source', 'SELECT "table", role, options, events, enabled FROM lease.lease_guards ORDER BY "table"::text, events');
my $history = $node->safe_psql('source', 'SELECT * FROM lease.leader_lease_history ORDER BY role, fencing_token');
like($history, qr/^apps\|7\|b\|/m, 'there is a history');
my $slots = $node->safe_psql('source', 'SELECT * FROM lease.leader_lease_slot');
like($slots, qr/^it's\|dumped\|1\|a\|/, 'there is a slot');
my $observed = $node->safe_psql('source', 'SELECT resource, fencing_token, observed_at, number, owner FROM lease.leader_lease_observed ORDER BY resource');
like($observed, qr/^from afar\|33\|.*\|installer\nleft\|9\|.*\|leaver$/, 'there are observed tokens');
my $numbers = $node->safe_psql('source', 'SELECT last_value FROM lease.leader_lease_number');

# dumped by its owner, who is no superuser
$ENV{PGUSER} = 'installer';
$node->command_ok([ 'pg_dump', '-f', "$dir/plain.sql", 'source' ], 'pg_dump');
$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/custom", 'source' ], 'pg_dump -Fc');
$node->command_ok([ 'pg_dump', '--schema-only', '-f', "$dir/schema.sql", 'source' ], 'pg_dump --schema-only');
$node->command_ok([ 'pg_dump', '--data-only', '-f', "$dir/data.sql", 'source' ], 'pg_dump --data-only');
delete $ENV{PGUSER};
$node->safe_psql('source', "SELECT lease.lease_set_owner('left', 'installer')");
$node->safe_psql('source', "UPDATE lease.leader_lease_observed SET owner = 'installer' WHERE resource = 'left'");
$node->safe_psql('postgres', 'DROP ROLE leaver');

sub restored
{
	my ($db, $how) = @_;

	is(installer($db, 'SELECT "table", role, options, events, enabled FROM lease.lease_guards ORDER BY "table"::text, events'),
		$guards, "$how: guards are there");
	is($node->safe_psql($db, 'SELECT role, fencing_token, owner, state FROM lease.lease_status ORDER BY role'),
		"apps|7|app|expired\nfree|0|installer|free\nit's|1|installer|failed_over\nleft|0|leaver|free\nshard/1|1|installer|expired",
		"$how: leases, tokens and owners are there");
	is($node->safe_psql($db, 'SELECT * FROM lease.leader_lease_history ORDER BY role, fencing_token'),
		$history, "$how: the history is there, and nothing else");
	is($node->safe_psql($db, 'SELECT * FROM lease.leader_lease_slot'), $slots, "$how: what was claimed is there");
	is($node->safe_psql($db, 'SELECT resource, fencing_token, observed_at, number, owner FROM lease.leader_lease_observed ORDER BY resource'),
		$observed, "$how: what was observed is there");
	is(sqlstate_in($db, 'INSERT INTO copy VALUES (2, 32)'), 'LF001', "$how: the past is refused");
	is(sqlstate_in($db, 'INSERT INTO copy VALUES (2, 33)'), '00000', "$how: the present goes on");
	is($node->safe_psql($db, "SELECT lease.lease_observe('from afar', 34), lease.lease_observe('from afar', 33), lease.lease_observe('left', 8)"),
		't|f|f', "$how: and so do tokens");
	is($node->safe_psql($db, "SELECT lease.lease_check_fence('it''s', 'a', 1)"), 'f', "$how: terms of elsewhere are over");
	is(sqlstate_in($db, 'INSERT INTO job VALUES (2, 1)'), 'LF001', "$how: the guard guards");
	is(sqlstate_in($db, 'TRUNCATE part1'), 'LF002', "$how: partitions too");
	is(sqlstate_in($db, 'INSERT INTO shard VALUES (1)'), 'LF002', "$how: each row by its key");
	for my $role ("it''s", 'apps', 'free', 'unheard')
	{
		cmp_ok($node->safe_psql($db, "SELECT lease.lease_acquire('$role', 'a', '1 microsecond')"),
			'>', 2**41, "$how: $role goes on above what the source may grant yet");
	}
	is( $node->safe_psql($db, "SELECT fencing_token, end_reason FROM lease.lease_history WHERE role = 'it''s' AND fencing_token < 2^41"),
		'1|failed_over', "$how: the term of elsewhere is closed by the next");
	cmp_ok($node->safe_psql($db, 'SELECT last_value FROM lease.leader_lease_number'), '>', $numbers, "$how: numbers go on");
}

sub sqlstate_in
{
	my ($db, $sql) = @_;
	my ($rc, $out, $err) = $node->psql($db, "\\set VERBOSITY sqlstate\n$sql");

	return $rc == 0 ? '00000' : $err =~ /ERROR:\s+(\w{5})/ ? $1 : $err;
}

$node->safe_psql('postgres', "CREATE DATABASE $_ OWNER installer") for ('plain', 'custom', 'data');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-U', 'installer', '-f', "$dir/plain.sql", 'plain' ],
	'restored by psql, by an owner who is no superuser');
restored('plain', 'psql');
# By sections: in one go pg_restore may put the guard of a partitioned table on before a partition has its rows.
$node->command_ok([ 'pg_restore', '-j', '3', '-e', '-U', 'installer', '-d', 'custom', "--section=$_", "$dir/custom" ], "restored in parallel, $_")
  for ('pre-data', 'data', 'post-data');
restored('custom', 'pg_restore');

# the data alone, into tables that are there
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-U', 'installer', '-f', "$dir/schema.sql", 'data' ], 'restored the schema');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-c', 'SET session_replication_role = replica', '-f', "$dir/data.sql", 'data' ],
	'and then the data');
restored('data', 'data only');

# what a restore brings does not come true by being restored twice
is(sqlstate_in('data', "INSERT INTO lease.leader_lease SELECT * FROM lease.leader_lease"), '23505', 'a lease is restored once');

$node->stop;
done_testing();
