# Whatever ends a campaign before it leads leaves nothing behind, and who waits behind it goes on.
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
$node->append_conf('postgresql.conf', 'autovacuum = off');
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION leader_lease; ' . $LeaseClient::setup);
sub sql { return $node->safe_psql('postgres', shift); }

my $left = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'object'";
my $token = 1;
sql("SELECT lease_acquire('l', 'leader', '1 hour')");

# end, what to do, the answer, settings, max_wait
my @ends = (
	[ 'cancel', sub { sql("SELECT pg_cancel_backend($_[0])") }, "57014\n0" ],
	[ 'terminate', sub { sql("SELECT pg_terminate_backend($_[0])") }, '57P01' ],
	[ 'lock_timeout', sub { }, "55P03\n0", '-c lock_timeout=2s' ],
	[ 'statement_timeout', sub { }, "57014\n0", '-c statement_timeout=2s' ],
	[ 'max_wait', sub { }, "\n0", '', '2 s' ],
	[ 'max_wait below lock_timeout', sub { }, "\n0", '-c lock_timeout=3s', '2 s' ],
	[ 'lock_timeout below max_wait', sub { }, "55P03\n0", '-c lock_timeout=2s', '1 hour' ]);
for my $place ('head', 'behind')
{
	for my $end (@ends)
	{
		my ($name, $act, $answer, $options, $max_wait) = @$end;
		my $max = $max_wait ? "'$max_wait'" : 'NULL';
		my @before = $place eq 'head' ? () : client($node, 'first', "CALL lease_campaign('l', 'first', '1 hour')");
		in_queue($node, 'l', @before) if @before;
		# the timeouts count from here, so what follows takes them as they come
		my $w = client($node, 'ends', [ "CALL lease_campaign('l', 'ends', '1 hour', $max)", $left ], options => $options);
		in_queue($node, 'l', @before, $w) if $name =~ /^(cancel|terminate)$/;
		my $next = client($node, 'next', "CALL lease_campaign('l', 'next', '1 hour')");
		$act->(backend($w)) if $name =~ /^(cancel|terminate)$/;
		is(answer($w), $answer, "$name, $place: ends it, with no lock left");
		queue_is($node, 'l', @before, $next, "$name, $place: the next moves up");
		sql("SELECT lease_release('l', holder_id, fencing_token) FROM leader_lease WHERE role = 'l'");
		for my $winner (@before, $next)
		{
			$token++;
			is(answer($winner), $token, "$name, $place: $winner->{name} gets its turn");
			sql("SELECT lease_release('l', '$winner->{name}', $token)");
		}
		$token = sql("SELECT lease_acquire('l', 'leader', '1 hour')");
	}
}
is(sql("SELECT count(*) FROM lease_history WHERE holder_id = 'ends'"), '0', 'none of them ever led');

# clients that were killed: the head, and one behind it
my @w = map { my $w = client($node, "w$_", "CALL lease_campaign('l', 'w$_', '1 hour')"); in_queue($node, 'l', $_ > 1 ? map { "w$_" } 1 .. $_ - 1 : (), $w); $w } 1 .. 4;
kill9($w[0]);
queue_is($node, 'l', 'w2', 'w3', 'w4', 'a head whose client was killed leaves');
kill9($w[2]);
sql("SELECT lease_release('l', 'leader', $token)");
$token++;
is(answer($w[1]), $token, 'the next leads');
queue_is($node, 'l', 'w4', 'one behind whose client was killed leaves when its turn comes');
sql("SELECT lease_release('l', 'w2', $token)");
$token++;
is(answer($w[3]), $token, 'and the token goes to the one after it');

# killed while it waited for a fence, and while it waited for somebody to make the lease
my $f = $node->background_psql('postgres');
$f->query("BEGIN; SELECT lease_check_fence('l', 'w4', $token)");
sql("SELECT lease_release('l', 'w4', $token)");
my $w = client($node, 'fenced', "CALL lease_campaign('l', 'dead', '1 hour')", options => '-c leader_lease.takeover_timeout=-1');
sql("SELECT waits_often('fenced', 1, 1)");
my $pid = backend($w);
# it sleeps through its death, and finds the way free when it wakes
kill('STOP', $pid);
kill9($w);
$f->query('COMMIT');
kill('CONT', $pid);
ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid"), 'a dead client\'s backend ends');
is(sql("SELECT fencing_token, state FROM lease_status WHERE role = 'l'"), "$token|released", 'with no lease');
is(sql("SELECT count(*) FROM lease_history WHERE holder_id LIKE 'w_' OR holder_id = 'dead'"), '2', 'nor in the history');

# the client dies while the grant is being written
sql("CREATE FUNCTION wait_for_it() RETURNS boolean LANGUAGE plpgsql AS \$\$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN true; END \$\$");
sql("ALTER TABLE leader_lease ADD CONSTRAINT waits CHECK (holder_id <> 'late' OR wait_for_it())");
$f->query('SELECT pg_advisory_lock(1)');
$w = client($node, 'late', "CALL lease_campaign('l', 'late', '1 hour')");
$pid = backend($w);
$node->poll_query_until('postgres', "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = $pid");
kill9($w);
$f->query('SELECT pg_advisory_unlock(1)');
ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid"), 'a client that dies during the grant');
is(sql("SELECT fencing_token, state FROM lease_status WHERE role = 'l'"), "$token|released", 'gets nothing');
sql('ALTER TABLE leader_lease DROP CONSTRAINT waits');

# the lease is being made by another, for long
for my $end ('COMMIT', 'ROLLBACK')
{
	$f->query("BEGIN; SELECT lease_create('slow_$end')");
	$w = client($node, 'maker', "CALL lease_campaign('slow_$end', 'x')", options => '-c leader_lease.takeover_timeout=10ms');
	head_looks(backend($w), 20);
	is(sql("CALL lease_campaign('slow_$end', 'y', max_wait => '10 ms')"), '', "a lease that another is making: max_wait ends the wait ($end)");
	is(sql("SELECT holds_nothing('maker')"), 't', 'nothing is held');
	$f->query($end);
	is(answer($w), 1, 'and one without a limit gets it');
}
$f->quit;

# Many at once, on a lease that nobody has made: the maker leads, and knows it.
for my $i (1 .. 5)
{
	my @crowd = map { client($node, "c$_", "CALL lease_campaign('fresh$i', 'c$_', '1 hour', '3 s')") } 1 .. 6;
	my @answers = map { answer($_) } @crowd;

	is(join('', sort @answers), '1', "one of many leads a new lease ($i)");
}

$node->stop;
done_testing();
