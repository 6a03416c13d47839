# Who holds a takeover back with a fence of a term that is over is terminated where leader_lease.evict_after or force say
# so; nobody else ever is.
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
$node->append_conf('postgresql.conf', "max_prepared_transactions = 10\nautovacuum = off");
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION leader_lease; CREATE TABLE plain (i int); ' . $LeaseClient::setup);
sub sql { return $node->safe_psql('postgres', shift); }
sub session { return $node->background_psql('postgres', on_error_stop => 0, extra_params => $_[0] ? [ '-U', $_[0] ] : []); }
my $me = sql('SELECT current_user');

my $now = 'SET leader_lease.evict_after = 0; SET leader_lease.takeover_timeout = 0;';	# at once, without a wait
my $patient = "SET leader_lease.evict_after = 0; SET leader_lease.takeover_timeout = '60 s';";

# A term that is over, with a fence of it open: the session that holds it, its pid, the token.
sub fenced
{
	my ($role, $end, $user) = @_;
	my $s = session($user);
	my $token = sql("SELECT lease_acquire('$role', 'a', '1 hour')");
	my $pid = $s->query('SELECT pg_backend_pid()');

	is($s->query("BEGIN; SELECT lease_check_fence('$role', 'a', $token)"), 't', "a fence of $role");
	$end = 'release' unless defined $end;
	sql("SELECT lease_release('$role', 'a', $token)") if $end eq 'release';
	sql("SELECT lease_renew('$role', 'a', $token, '1 microsecond')") if $end eq 'expire';
	return ($s, $pid, $token);
}

sub lives { is($_[0]->query('SELECT 1'), '1', $_[1]); }
sub gone
{
	my ($s, $pid, $what) = @_;
	ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid"), $what);
	$s->{run}->kill_kill;
}
sub log_since { return slurp_file($node->logfile, shift); }

# never, unless it is set
my ($s, $pid, $token) = fenced('l', 'expire');
is(sql("SET leader_lease.takeover_timeout = 0; SELECT token IS NULL, blocked_by = ARRAY[$pid] FROM lease_attempt('l', 'b')"), 't|t', 'the fence holds the takeover back');
is(sql("SET leader_lease.evict_after = -1; SET leader_lease.takeover_timeout = '50 ms'; SELECT lease_acquire('l', 'b') IS NULL"), 't', 'and goes on to with evict_after -1');
lives($s, 'nobody is terminated');
is(sql("SET leader_lease.evict_after = '1h'; SET leader_lease.takeover_timeout = '50 ms'; SELECT lease_acquire('l', 'b') IS NULL"), 't', 'nor before evict_after has passed');
lives($s, 'which is long');

# at its time, and told
my $log = -s $node->logfile;
is(sql("$patient SELECT lease_acquire('l', 'b', '1 hour')"), $token + 1, 'with evict_after passed the challenger gets it');
gone($s, $pid, 'and the backend is gone');
like(log_since($log), qr/LOG:  terminating process $pid, which holds back the takeover of lease "l"\n.*DETAIL:  It is a transaction of "$me" with a fence of holder "a", token $token; over for longer than leader_lease.evict_after, by "$me"\./,
	'the log says who, whom, which lease, holder and token, and why');
sql("SELECT lease_release('l', 'b', $token + 1)");

for my $end ('release', 'expire')
{
	($s, $pid, $token) = fenced('l', $end);
	local $ENV{PGOPTIONS} = '-c leader_lease.evict_after=300ms -c leader_lease.takeover_timeout=0';
	ok($node->poll_query_until('postgres', "SELECT lease_acquire('l', 'a', '1 hour') IS NOT NULL"),
		"challengers that do not wait evict too, in their time ($end)");
	gone($s, $pid, 'the backend is gone');
	sql("SELECT lease_release('l', 'a', fencing_token) FROM leader_lease WHERE role = 'l'");
}
($s, $pid, $token) = fenced('l', 'expire');
is(answer(client($node, 'c', "CALL lease_campaign('l', 'c', '1 hour')", options => '-c leader_lease.evict_after=100')), $token + 1, 'a campaign evicts');
gone($s, $pid, 'the backend is gone');
sql("SELECT lease_release('l', 'c', $token + 1)");

# a bound term whose session has died
my $leader = session();
$token = $leader->query("SELECT lease_acquire('l', 'a', '1 hour')");
$leader->query("SELECT lease_bind_session('l', 'a', $token)");
$s = session();
$pid = $s->query('SELECT pg_backend_pid()');
$s->query("BEGIN; SELECT lease_check_fence('l', 'a', $token)");
is(sql("$now SELECT lease_acquire('l', 'b') IS NULL"), 't', 'while the session lives nobody is evicted');
lives($s, 'the fence lives');
$leader->quit;
$node->poll_query_until('postgres', "SELECT state = 'session_ended' FROM lease_status WHERE role = 'l'");
is(sql("SET leader_lease.evict_after = '300 ms'; SET leader_lease.takeover_timeout = '60 s'; SELECT lease_acquire('l', 'b', '1 hour')"), $token + 1, 'after its death the challenger evicts');
gone($s, $pid, 'the backend is gone');
sql("SELECT lease_release('l', 'b', $token + 1)");

# bystanders: who held a fence and has gone on, whose fence was rolled back, who holds another lease's
($s, $pid, $token) = fenced('l', 'none');
my @by = map { session() } 1 .. 3;
$by[0]->query("BEGIN; SELECT lease_check_fence('l', 'a', $token); COMMIT; BEGIN; INSERT INTO plain VALUES (1)");
$by[1]->query("BEGIN; SAVEPOINT s; SELECT lease_check_fence('l', 'a', $token); ROLLBACK TO s; INSERT INTO plain VALUES (2)");
sql("SELECT lease_acquire('bystander', 'a', '1 hour')");
$by[2]->query("BEGIN; SELECT lease_check_fence('bystander', 'a', 1)");
is($s->query('SELECT 1'), 1, 'all are there');
# never a live lease's writers
is(sql("$now SELECT lease_acquire('l', 'b') IS NULL"), 't', 'a live lease is not taken over');
is(sqlstate($node, "$now SELECT lease_transfer('l', 'a', $token, 'b')"), '55P03', 'nor do a transfer');
is(sqlstate($node, "$now SELECT lease_revoke('l')"), '55P03', 'or a revocation without force evict');
lives($s, 'its writers live');
sql("SELECT lease_release('l', 'a', $token)");
is(sql("$patient SELECT lease_acquire('l', 'b', '1 hour')"), $token + 1, 'when it is over its fence goes');
gone($s, $pid, 'the one that was in the way');
lives($by[0], 'not who held one in another transaction');
lives($by[1], 'not whose fence was rolled back');
lives($by[2], 'not who holds another lease\'s');
is($_->query('COMMIT; SELECT 1'), '1', 'they commit') for @by;
$_->quit for @by;

# another takeover in progress
my $taker = session();
sql("SELECT lease_release('l', 'b', $token + 1)");
$token += 2;
is($taker->query("BEGIN; SELECT lease_acquire('l', 'c', '1 hour')"), $token, 'a takeover in an open transaction');
is(sql("$now SELECT lease_acquire('l', 'd') IS NULL"), 't', 'another challenger loses');
is(sqlstate($node, "$now SELECT lease_revoke('l', force => true)"), '55P03', 'so does a forced revocation');
is($taker->query('COMMIT; SELECT 1'), '1', 'and the first one commits');
is(sql("SELECT holder_id FROM lease_status WHERE role = 'l'"), 'c', 'its grant');
$taker->quit;

# one's own transaction
$s = session();
is($s->query("BEGIN; SELECT lease_check_fence('l', 'c', $token); SELECT lease_release('l', 'c', $token); $now SELECT lease_acquire('l', 'c', '1 hour'); COMMIT"),
	"t\nt\n" . ($token + 1), 'one\'s own fence is no victim');
$s->quit;
sql("SELECT lease_release('l', 'c', $token + 1)");

# prepared: named, and its backend's place is a bystander's
$s = session();
$token = sql("SELECT lease_acquire('l', 'a', '1 hour')");
$s->query("BEGIN; INSERT INTO plain VALUES (3); SELECT lease_check_fence('l', 'a', $token)");
$s->query("PREPARE TRANSACTION 'the gid'");
sql("SELECT lease_release('l', 'a', $token)");
$s->query('BEGIN; INSERT INTO plain VALUES (4)');
$log = -s $node->logfile;
is(sql("$now SELECT token IS NULL, blocked_by FROM lease_attempt('l', 'b')"), 't|{0}', 'a prepared transaction holds the takeover back');
like(log_since($log), qr/LOG:  a prepared transaction holds back the takeover of lease "l"\n.*DETAIL:  It is prepared transaction "the gid"\./, 'the log names it');
lives($s, 'its former backend lives');
$s->quit;
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'");
like(($node->psql('postgres', "$now SELECT lease_revoke('l', force => true)"))[2],
	qr/Held back by prepared transaction "the gid"/, 'it is named while its place is nobody\'s');
my @others = map { session() } 1 .. 3;	# one of them has its place
is(sql("$now SELECT lease_acquire('l', 'b') IS NULL"), 't', 'also when its place is another\'s');
my ($rc, $out, $err) = $node->psql('postgres', "$now SELECT lease_revoke('l', force => true)");
like($err, qr/Held back by prepared transaction "the gid"/, 'force names it too');
lives($_, 'bystanders live') for @others;
$_->quit for @others;
my $c = client($node, 'c', "CALL lease_campaign('l', 'c', '1 hour')", options => '-c leader_lease.evict_after=0');
$log = -s $node->logfile;
head_looks(backend($c), 100);
is(sql("SELECT holds_nothing('c')"), 't', 'a campaign behind it holds nothing');
cmp_ok(scalar(() = log_since($log) =~ /a prepared transaction holds back/g), '<=', 1, 'and does not fill the log');
sql("COMMIT PREPARED 'the gid'");
is(answer($c), $token + 1, 'until it ends');
sql("SELECT lease_release('l', 'c', $token + 1)");

# force
($s, $pid, $token) = fenced('l', 'none');
$log = -s $node->logfile;
is(sql("SET leader_lease.takeover_timeout = 0; SELECT lease_revoke('l', force => true)"), $token + 1, 'force ends a live lease\'s fences');
gone($s, $pid, 'the backend is gone');
like(log_since($log), qr/terminating process $pid, .*\n.*holder "a", token $token; revoked by force, by "$me"/, 'which is told');

# who may: as pg_terminate_backend has it
sql(<<'SQL');
CREATE ROLE crew;
CREATE ROLE challenger LOGIN IN ROLE crew;
CREATE ROLE mate LOGIN IN ROLE crew;
SELECT lease_create('theirs', 'crew');
SET leader_lease.evict_after = 0;
ALTER ROLE challenger SET leader_lease.evict_after = 0;
ALTER ROLE challenger SET leader_lease.takeover_timeout = 0;
SQL
is(sqlstate($node, 'SET SESSION AUTHORIZATION challenger; SELECT lease_attempt(\'theirs\', \'x\', \'1 microsecond\'); SET leader_lease.evict_after = 0'), '42501', 'evict_after is a superuser\'s to set');
sub as_challenger
{
	my ($sql, $state) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY sqlstate\n$sql", extra_params => [ '-U', 'challenger' ]);
	return $rc == 0 ? $out : $err =~ /ERROR:\s+(\w{5})/ ? $1 : $err;
}
for my $case ([ $me, 'a superuser\'s', 0 ], [ 'mate', 'another role\'s', 0 ], [ 'challenger', 'one\'s own', 1 ], [ 'mate', 'with pg_signal_backend', 1 ], [ $me, 'a superuser\'s, with pg_signal_backend', 0 ], [ 'mate', 'as its member', 1 ])
{
	my ($user, $what, $may) = @$case;

	sql($what =~ /member/ ? 'REVOKE pg_signal_backend FROM challenger; GRANT mate TO challenger' : $what =~ /with/ ? 'GRANT pg_signal_backend TO challenger' : 'SELECT');
	for my $force (0, 1)
	{
		my $how = $force ? "SELECT lease_revoke('theirs', force => true) > 0" : "SELECT lease_acquire('theirs', 'x', '1 microsecond') IS NOT NULL";

		($s, $pid, $token) = fenced('theirs', $force ? 'none' : 'release', $user);
		$log = -s $node->logfile;
		my $answer = as_challenger($how);
		if ($may)
		{
			gone($s, $pid, "$what may be terminated" . ($force ? ' by force' : ''));
			is(as_challenger($how), 't', 'and the way is free');
			next;
		}
		is($answer, $force ? '55P03' : 'f', "$what may not be terminated" . ($force ? ' by force' : ''));
		like(log_since($log), qr/process $pid holds back the takeover of lease "theirs" and may not be terminated by "challenger"/, 'which is told');
		lives($s, 'and lives');
		$s->query('COMMIT');
		$s->quit;
		sql("SELECT lease_release('theirs', 'a', $token)");
	}
}

$node->stop;
done_testing();
