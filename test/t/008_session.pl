# A term that is bound to a session ends with it, however it ends, and with nothing less.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use LeaseClient;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', "max_prepared_transactions = 10\nautovacuum = off\nrestart_after_crash = on");
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION leader_lease; CREATE TABLE plain (i int)');
sub sql { return $node->safe_psql('postgres', shift); }

my ($s, $token);
sub bound
{
	my $role = shift // 'l';

	$s = $node->background_psql('postgres', on_error_stop => 0);
	$token = $s->query("SELECT lease_acquire('$role', 'a', '1 hour')");
	is($s->query("SELECT lease_bind_session('$role', 'a', $token)"), 't', 'bound');
}

# What everybody sees of a term whose session has ended, and that nothing revives it.
sub ended
{
	my ($how, $keep) = @_;

	ok($node->poll_query_until('postgres', "SELECT state = 'session_ended' AND NOT live AND remaining IS NULL FROM lease_status WHERE role = 'l'"),
		"$how: the term is over");
	is(sql("SELECT lease_check_fence('l', 'a', $token)"), 'f', "$how: for the check");
	is(sqlstate($node, "SELECT lease_require_fence('l', 'a', $token)"), 'LF001', "$how: for a fence");
	is(sql("SELECT lease_renew('l', 'a', $token) IS NULL"), 't', "$how: for renewal");
	is(sql("SELECT lease_release('l', 'a', $token)"), 'f', "$how: for release");
	is(sql("SELECT lease_bind_session('l', 'a', $token)"), 'f', "$how: binding again does not revive it");
	is(sql("SELECT lease_transfer('l', 'a', $token, 'b') IS NULL"), 't', "$how: nor a transfer");
	return if $keep;
	is(sql("SELECT lease_acquire('l', 'b', '1 hour')"), $token + 1, "$how: a challenger takes over at once");
	is(sql("SELECT lease_release('l', 'b', $token + 1)"), 't', 'and lets go');
	is(sql("SELECT end_reason FROM lease_history WHERE role = 'l' AND fencing_token = $token"), 'session_ended', "$how: stands in the history");
}

# endings
my @endings = (
	[ 'ordinary close', sub { $s->quit } ],
	[ 'kill -9 of the client', sub { $s->{run}->signal('KILL') } ],
	[ 'pg_terminate_backend', sub { sql('SELECT pg_terminate_backend(' . $s->query('SELECT pg_backend_pid()') . ')') } ],
	[ 'DISCARD ALL', sub { $s->query('DISCARD ALL') } ],
	[ 'pg_advisory_unlock_all', sub { $s->query('SELECT pg_advisory_unlock_all()') } ],
	# not by pg_ctl restart, which starts the program that ran: under the sanitizers that is not the one to start
	[ 'restart', sub { $node->stop; $node->start } ],
	[   'kill -9 of the backend',
		sub {
			kill('KILL', scalar $s->query('SELECT pg_backend_pid()'));
			$node->poll_query_until('postgres', "SELECT pg_postmaster_start_time() IS NOT NULL AND NOT EXISTS (SELECT FROM pg_locks WHERE objsubid = 3)");
		} ],
	[ 'crash', sub { $node->kill9; $node->start } ]);
for my $ending (@endings)
{
	my ($how, $act) = @$ending;

	bound();
	is(sql("SELECT lease_acquire('l', 'b') IS NULL, state, live FROM lease_status WHERE role = 'l'"), 't|held|t', "before $how others are kept out");
	is(sql("SELECT lease_check_fence('l', 'a', $token)"), 't', 'and its fences are granted, on any connection');
	$act->();
	ended($how);
	next unless $how eq 'DISCARD ALL' || $how eq 'pg_advisory_unlock_all';
	# the session lives on, and a bond of another lease is no help to the one that is over
	$token = $s->query("SELECT lease_acquire('l', 'a', '1 hour')");
	is($s->query("SELECT lease_bind_session('l', 'a', $token)"), 't', "$how: the session may bind a new term");
	is(sql("SELECT live FROM lease_status WHERE role = 'l'"), 't', 'which lives');
	$act->();
	my $other = $s->query("SELECT lease_acquire('other', 'a', '1 hour')");
	is($s->query("SELECT lease_bind_session('other', 'a', $other)"), 't', 'and then another lease');
	ended("$how, then another bond");
	$s->quit;
}

# survivals
bound();
$s->query('SELECT 1 / 0');
$s->query("BEGIN; SELECT 1 / 0");
$s->query('ROLLBACK');
is(sql("SELECT live FROM lease_status WHERE role = 'l'"), 't', 'an error, and a rollback of something else, leave it');
$s->query("BEGIN; INSERT INTO plain VALUES (1); SELECT lease_require_fence('l', 'a', $token)");
$s->query("PREPARE TRANSACTION 'p'");
is(sql("SELECT live FROM lease_status WHERE role = 'l'"), 't', 'PREPARE TRANSACTION leaves it');
is($s->query("COMMIT PREPARED 'p'"), '', 'and works');
is($s->query("SELECT mode, granted FROM lease_locks WHERE role = 'l'"), 'session|t', 'its lock is shown');
is(sql("SELECT lease_renew('l', 'a', $token, '2 hours')"), '02:00:00', 'renewed from another connection');
is(sql("SELECT lease_acquire('l', 'a', '3 hours')"), $token, 'also by acquiring');
is(sql("SELECT live FROM lease_status WHERE role = 'l'"), 't', 'it lives on');
$s->query('DISCARD TEMP; DISCARD PLANS; DISCARD SEQUENCES; RESET ALL');
is(sql("SELECT live FROM lease_status WHERE role = 'l'"), 't', 'lesser DISCARDs leave it');
$s->quit;
ended('close after renewals');

# the ttl stays the upper bound
bound();
$s->query("SELECT lease_renew('l', 'a', $token, '1 ms')");
ok($node->poll_query_until('postgres', "SELECT state = 'expired' FROM lease_status WHERE role = 'l'"), 'the ttl ends it though the session lives');
is($s->query("SELECT lease_bind_session('l', 'a', $token)"), 'f', 'and binding does not revive it');
is(sql("SELECT lease_acquire('l', 'b', '1 hour')"), $token + 1, 'a challenger gets it');
sql("SELECT lease_release('l', 'b', $token + 1)");
$s->quit;

# a rollback takes lock and bond along
my $locks = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND objsubid = 3";
my $bond = "SELECT session IS NOT NULL FROM leader_lease WHERE role = 'l'";
$s = $node->background_psql('postgres', on_error_stop => 0);
$token = $s->query("SELECT lease_acquire('l', 'a', '1 hour')");
my $bind = "SELECT lease_bind_session('l', 'a', $token)";
for my $rolled_back (
	[ 'the transaction', "BEGIN; $bind; ROLLBACK" ],
	[ 'an error', "BEGIN; $bind; SELECT 1 / 0; ROLLBACK" ],
	[ 'a savepoint', "BEGIN; SAVEPOINT s; $bind; ROLLBACK TO s; COMMIT" ],
	[ 'an outer savepoint', "BEGIN; SAVEPOINT s; SAVEPOINT t; $bind; RELEASE t; ROLLBACK TO s; COMMIT" ],
	[ 'the transaction after a savepoint', "BEGIN; SAVEPOINT s; $bind; RELEASE s; ROLLBACK" ],
	[ 'a savepoint, bound twice', "BEGIN; SAVEPOINT s; $bind; SAVEPOINT t; $bind; ROLLBACK TO s; COMMIT" ],
	[ 'a transaction that freed all locks', "BEGIN; $bind; SELECT pg_advisory_unlock_all(); ROLLBACK" ])
{
	$s->query($rolled_back->[1]);
	unlike($s->{stderr}, qr/WARNING/, "rolled back: $rolled_back->[0]");
	$s->{stderr} = '';
	is($s->query("$locks; $bond"), "0\nf", 'leaves no lock and no bond');
}
$s->query("BEGIN; SAVEPOINT s; SAVEPOINT t; $bind; RELEASE t; SAVEPOINT u; SELECT 1 / 0; ROLLBACK TO u; COMMIT");
is($s->query("$locks; $bond"), "1\nt", 'rolled back: a later savepoint, leaves both');
$s->query("BEGIN; $bind; ROLLBACK");
is($s->query("$locks; $bond"), "1\nt", 'rolled back: binding again, leaves what was before');
is(sql("SELECT live FROM lease_status WHERE role = 'l'"), 't', 'and the term lives');
$s->query("BEGIN; $bind");
$s->query("PREPARE TRANSACTION 'q'");
is(sql('SELECT count(*) FROM pg_prepared_xacts'), '0', 'binding cannot be prepared');
is(sql("SELECT live FROM lease_status WHERE role = 'l'"), 't', 'and that it was tried harms nothing');

# twice, and from two sessions
is($s->query("$bind; $bind"), "t\nt", 'bound twice');
my $t = $node->background_psql('postgres', on_error_stop => 0);
is($t->query($bind), 't', 'bound to a second session');
$s->quit;
is(sql("SELECT live FROM lease_status WHERE role = 'l'"), 't', 'the first session\'s end does nothing then');
$t->quit;
ended('the second session\'s end');

# a session that binds for ever needs one lock
$s = $node->background_psql('postgres', on_error_stop => 0);
$s->query("DO \$\$ DECLARE t bigint; BEGIN FOR i IN 1 .. 500 LOOP t := lease_acquire('many' || i % 3, 'a', '1 hour'); PERFORM lease_bind_session('many' || i % 3, 'a', t); COMMIT; END LOOP; END \$\$");
is($s->query($locks), '1', 'however often it binds');
is(sql("SELECT count(*) FROM lease_locks WHERE role ~ 'many' AND mode = 'session'"), '3', 'which is shown for each lease');
$s->query("SELECT lease_release('many1', 'a', 1)");
is(sql("SELECT string_agg(state, ',' ORDER BY role) FROM lease_status WHERE role ~ 'many'"), 'held,released,held', 'one is released and the others stay');
is($s->query("SELECT lease_acquire('many1', 'a', '1 hour'); SELECT session IS NULL FROM leader_lease WHERE role = 'many1'"), "2\nt", 'a new term is not bound by the bond of the old');
$s->quit;
ok($node->poll_query_until('postgres', "SELECT string_agg(state, ',' ORDER BY role) = 'session_ended,held,session_ended' FROM lease_status WHERE role ~ 'many'"),
	'all that are bound end with the session');

# open fences outlast the session on other connections, and hold a takeover back as ever
bound();
my $f = $node->background_psql('postgres', on_error_stop => 0);
is($f->query("BEGIN; SELECT lease_check_fence('l', 'a', $token)"), 't', 'a fence on another connection');
$s->{run}->signal('KILL');
ended('death with an open fence', 1);
is(sql("SET leader_lease.takeover_timeout = 0; SELECT token IS NULL, cardinality(blocked_by) FROM lease_attempt('l', 'b')"), 't|1', 'the fence holds the takeover back');
is($f->query('COMMIT; SELECT 1'), '1', 'and its transaction may end well');
is(sql("SELECT lease_acquire('l', 'b', '1 hour')"), $token + 1, 'then a challenger gets it');
$f->quit;

# who may, and arguments
sql("CREATE ROLE stranger LOGIN");
is(sqlstate($node, "SET SESSION AUTHORIZATION stranger; SELECT lease_bind_session('l', 'b', $token + 1)"), '42501', 'a stranger may not');
is(sql("SELECT session IS NULL FROM leader_lease WHERE role = 'l'"), 't', 'and binds nothing');
is(sql("SELECT lease_bind_session('l', 'b', $token), lease_bind_session('l', 'b', $token + 2), lease_bind_session('l', 'x', $token + 1), lease_bind_session('none', 'b', 1)"),
	'f|f|f|f', 'another token, another holder, no such lease');
is(sqlstate($node, "SELECT lease_bind_session($_)"), '22004', "lease_bind_session($_)") for "NULL, 'b', 1", "'l', NULL, 1", "'l', 'b', NULL";
is(sqlstate($node, "SET default_transaction_read_only = on; SELECT lease_bind_session('l', 'b', $token + 1)"), '25006', 'read-only');

$node->stop;
done_testing();
