# CALL lease_campaign: waiters get the lease in their order, and cost nothing meanwhile.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run;
use LeaseClient;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', "max_connections = 230\ndeadlock_timeout = 100ms\nautovacuum = off");
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION leader_lease; ' . $LeaseClient::setup);
sub sql { return $node->safe_psql('postgres', shift); }

# a free lease: at once, with defaults alone, and it is made when it is not there
is(sql("CALL lease_campaign('new', 'a')"), '1', 'a lease that is not there is made and led');
is(sql("CALL lease_campaign('new', 'a', max_wait => '0')"), '1', 'own and live: renewed, the same token');
is(sql("CALL lease_campaign('new', 'b', max_wait => '0')"), '', 'NULL when max_wait is over');
is(sql("CALL lease_campaign('new', 'b', '5 s', '-1 s', NULL)"), '', 'or was negative');
sql("SELECT lease_create('made', ttl => '77 s')");
is(sql("CALL lease_campaign('made', 'a')"), '1', 'a lease that was made and is free');
is(sql("SELECT ttl FROM lease_status WHERE role = 'made'"), '00:01:17', 'with its usual ttl');
sql("SELECT lease_release('made', 'a', 1)");
is(sql("CALL lease_campaign('made', 'a', '88 s')"), '2', 'again');
is(sql("SELECT ttl FROM lease_status WHERE role = 'made'"), '00:01:28', 'with the ttl asked for');

# order
my $serializable = '-c default_transaction_isolation=serializable -c default_transaction_deferrable=on';
sql("SELECT lease_acquire('l', 'leader', '1 hour')");
my @w;
for my $i (1 .. 6)
{
	push @w, client($node, "w$i", "CALL lease_campaign('l', 'w$i', '1 hour')",
		options => $i <= 2 ? $serializable : '');
	queue_is($node, 'l', @w, "w$i is in the queue") if $i != 3;
	in_queue($node, 'l', @w);
}
is(sql("SELECT waiters, holder_id FROM lease_status WHERE role = 'l'"), '6|leader', 'lease_status counts them');
is( sql("SELECT string_agg(wait_event_type, ',' ORDER BY application_name) FROM pg_stat_activity WHERE application_name IN ('w2', 'w3', 'w4', 'w5', 'w6')"),
	'Lock,Lock,Lock,Lock,Lock', 'all but the head sleep in the lock manager');
for my $i (1 .. 6)
{
	is(sql("SELECT holds_nothing('w$i')"), 't', "w$i has no snapshot, transaction id or lock on a relation");
}

# each way a term ends wakes the head, and the next one is head then
sub woken
{
	my ($w, $how, $token) = @_;

	is(answer($w), $token, "woken: $how");
	note("$how: " . sql("SELECT extract(epoch FROM max(acquired_at) - (SELECT ended_at FROM leader_lease_history WHERE role = 'l' AND fencing_token = $token - 1)) * 1000 FROM leader_lease_history WHERE role = 'l' AND fencing_token = $token")
		. ' ms from the end of the term to the next');
	is(sql("SELECT holder_id, fencing_token FROM lease_status WHERE role = 'l'"), "$w->{name}|$token", 'and leads');
}

sql("SELECT lease_release('l', 'leader', 1)");
woken(shift @w, 'release', 2);
queue_is($node, 'l', @w, 'the next is head');
is(sql("SELECT holds_nothing('w2')"), 't', 'the next as head holds nothing');
sql("SELECT lease_revoke('l')");
woken(shift @w, 'revoke', 4);
queue_is($node, 'l', @w, 'the next is head');
my $bound = $node->background_psql('postgres');
$bound->query("SELECT lease_bind_session('l', 'w2', 4)");
$bound->{run}->signal('KILL');
woken(shift @w, 'session death', 5);
queue_is($node, 'l', @w, 'the next is head');
sql("SELECT lease_renew('l', 'w3', 5, '500 ms')");
woken(shift @w, 'expiry', 6);
queue_is($node, 'l', @w, 'the next is head');
sql("SELECT lease_transfer('l', 'w4', 6, 'w5')");
woken(shift @w, 'a transfer to the head', 7);
queue_is($node, 'l', @w, 'the next is head');
sql("UPDATE leader_lease SET expires_at = clock_timestamp() WHERE role = 'l'");
woken(shift @w, 'release by hand', 8);

# the one who leads need not stand in line behind those who wait for his term to end
my $other = client($node, 'other', "CALL lease_campaign('l', 'other', '1 hour')");
in_queue($node, 'l', $other);
is(sql("CALL lease_campaign('l', 'w6', '2 hours', max_wait => '20 s')"), '8', 'the leader campaigns: renewed at once');
is(sql("SELECT ttl FROM lease_status WHERE role = 'l'"), '02:00:00', 'with its ttl');
sql("SELECT lease_release('l', 'w6', 8)");
is(answer($other), '9', 'who waited leads when he lets go');

# the head waits for a fence: nothing is held then either
my $f = $node->background_psql('postgres');
for my $timeout ('50ms', '-1')
{
	$f->query("SELECT lease_acquire('fenced', 'old', '1 hour')");
	my $token = $f->query("SELECT fencing_token FROM leader_lease WHERE role = 'fenced'");
	$f->query("BEGIN");
	is($f->query("SELECT lease_check_fence('fenced', 'old', $token)"), 't', 'a fence');
	sql("SELECT lease_release('fenced', 'old', $token)");
	my $head = client($node, 'head', "CALL lease_campaign('fenced', 'head', '1 hour')",
		options => "$serializable -c leader_lease.takeover_timeout=$timeout");
	is(sql("SELECT waits_often('head', 1, 1)"), 't', "the head waits for the fence (takeover_timeout $timeout)");
	is(sql("SELECT holds_nothing('head')"), 't', 'and holds nothing');
	$f->query('COMMIT');
	is(answer($head), $token + 1, 'until it has ended');
	sql("SELECT lease_release('fenced', 'head', $token + 1)");
}
$f->quit;

# a wait that lasts needs no more memory
my $long = client($node, 'long', "CALL lease_campaign('l', 'long', '1 hour')");
my $pid = backend($long);
in_queue($node, 'l', $long);
sub memory
{
	my $log = -s $node->logfile;

	sql("SELECT pg_log_backend_memory_contexts($pid)");
	$node->wait_for_log(qr/Grand total: .* \d+ used/, $log);
	return slurp_file($node->logfile, $log) =~ /Grand total: .* (\d+) used/ ? $1 : die;
}
head_looks($pid, 50);
my $before = memory();
head_looks($pid, 200);
cmp_ok(memory(), '<', $before + 200 * 20, 'the head\'s memory does not grow');
sql("SELECT pg_terminate_backend($pid)");
is(answer($long), '57P01', 'terminated');

# many cost what one costs
my $n = 200;
my $script = $node->basedir . '/crowd.sql';
append_to_file($script, "CALL lease_campaign('crowd', 'h' || :client_id)\n");
sql("SELECT lease_acquire('crowd', 'leader', '1 hour')");
my ($out, $err) = ('', '');
my $crowd = IPC::Run::start([ 'pgbench', '-n', '-c', $n, '-t', 1, '-f', $script, $node->connstr('postgres') ],
	'<', \'', '>', \$out, '2>', \$err);
ok($node->poll_query_until('postgres', "SELECT waiters = $n FROM lease_status WHERE role = 'crowd'"), "$n in the queue");
my $head = sql("SELECT pid FROM lease_locks WHERE role = 'crowd' AND mode = 'queue' AND granted");
my @asleep = split /\n/, sql("SELECT pid FROM lease_locks WHERE role = 'crowd' AND mode = 'queue' AND NOT granted");
is(scalar @asleep, $n - 1, 'one head');
# whoever has just come looks for deadlocks once; after that all is quiet
my $moved;
for (1 .. 10)
{
	my $sum = sub { my $s = 0; $s += sleeps($_) for @asleep; return $s; };
	my $were = $sum->();

	head_looks($head, 40);
	$moved = $sum->() - $were;
	last if $moved == 0;
}
is($moved, 0, 'they sleep while the head looks');
sql("SELECT lease_release('crowd', 'leader', 1)");
ok($node->poll_query_until('postgres', "SELECT fencing_token = 2 AND waiters = $n - 1 FROM lease_status WHERE role = 'crowd'"),
	'one of them leads when the term ends, and the others wait on');
$crowd->signal('KILL');
$crowd->finish;
sql("SELECT lease_release('crowd', holder_id, fencing_token) FROM lease_status WHERE role = 'crowd'");
ok($node->poll_query_until('postgres', "SELECT waiters = 0 FROM lease_status WHERE role = 'crowd'"), 'all leave, their clients being dead');
is(sql("SELECT fencing_token, live FROM lease_status WHERE role = 'crowd'"), '2|f', 'and none of them led');

$node->stop;
done_testing();
