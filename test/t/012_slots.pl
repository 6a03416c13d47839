# One run a slot, where mutual exclusion alone is not enough: a job that is over before a late replica comes, and a
# leader that is killed between its claim and its commit.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use LeaseClient;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my $node = new_primary('main');
$node->append_conf('postgresql.conf', 'restart_after_crash = on');
$node->reload;
$node->safe_psql('postgres', $LeaseTest::setup);
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE run (slot text, by text, token bigint);
SELECT lease_protect('run', 'job', 'token');
-- what a replica does when its timer fires: the lease, the job of 20 ms, and the lease given back
CREATE PROCEDURE tick(me text, slot text, by_slot boolean, INOUT did text DEFAULT NULL) LANGUAGE plpgsql AS $$
DECLARE
	token bigint := lease_acquire('job', me, '1 min');
BEGIN
	COMMIT;
	did := 'lost';
	IF token IS NULL THEN RETURN; END IF;
	PERFORM lease_require_fence('job', me, token);
	did := 'skipped';
	IF NOT by_slot OR lease_claim_slot('job', me, token, slot) THEN
		PERFORM pg_sleep(0.02);
		INSERT INTO run VALUES (slot, me);
		did := 'ran';
	END IF;
	COMMIT;
	PERFORM lease_release('job', me, token);
END $$;
CREATE PROCEDURE insist(me text, slot text) LANGUAGE plpgsql AS $$
DECLARE
	did text := 'lost';
BEGIN
	LOOP
		CALL tick(me, slot, true, did);
		EXIT WHEN did <> 'lost';
		PERFORM pg_sleep(0.01);
		COMMIT;
	END LOOP;
END $$;
SQL

# two replicas of one schedule, the second 100 ms late
sub two_replicas
{
	my ($slot, $by_slot) = @_;
	my @replicas;

	for my $name ('first', 'late')
	{
		push @replicas, client($node, $name, "CALL tick('$name', '$slot', $by_slot)");
		sleep(0.1);
	}
	return join(' ', map { answer($_) } @replicas);
}
is(two_replicas('10:00', 'false'), 'ran ran', 'with the lease alone a late replica does the job again');
is(two_replicas('10:01', 'true'), 'ran skipped', 'with the slot it does not');
is($node->safe_psql('postgres', "SELECT count(*), min(by) FROM run WHERE slot = '10:01'"), '1|first', 'and the job was done once');
is($node->safe_psql('postgres', "SELECT fencing_token, holder_id FROM lease_slots WHERE slot = '10:01'"), '3|first', 'the slot tells by whom');

# many replicas at once, some slots each
my @many = map {
	my $me = $_;
	client($node, "many$me", [ map { "CALL insist('many$me', 'many$_')" } 1 .. 10 ]);
} 1 .. 6;
answer($_) for @many;
is($node->safe_psql('postgres', "SELECT count(*), count(DISTINCT slot) FROM run WHERE slot LIKE 'many%'"), '10|10',
	'six replicas did ten jobs once each');

# killed between claim and commit: the client, the backend, the server
my $token = $node->safe_psql('postgres', "SELECT lease_acquire('job', 'killed', '1 hour')");
my $work = [ 'BEGIN', "SELECT lease_claim_slot('job', 'killed', $token, 'slow')", "INSERT INTO run VALUES ('slow', 'killed')",
	'SELECT pg_sleep(3600)', 'COMMIT' ];
my $in_sleep = "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'leader' AND wait_event = 'PgSleep'";
for my $whom ('client', 'backend', 'server')
{
	my $leader = client($node, 'leader', $work, options => '-c client_connection_check_interval=100ms');
	$node->poll_query_until('postgres', $in_sleep) or die;
	my $pid = backend($leader);
	if ($whom eq 'client')
	{
		kill9($leader);
		$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid") or die;
	}
	elsif ($whom eq 'backend')
	{
		kill 'KILL', $pid;
		answer($leader);
		$node->poll_query_until('postgres', 'SELECT true') or die;
	}
	else
	{
		$node->kill9;
		answer($leader);
		$node->start;
	}
	is($node->safe_psql('postgres', "SELECT count(*) FROM run WHERE slot = 'slow'") . ' '
			. $node->safe_psql('postgres', "SELECT count(*) FROM lease_slots WHERE slot = 'slow'"),
		'0 0', "$whom killed: neither the work nor the slot is there");
}
$token = $node->safe_psql('postgres', "SELECT lease_revoke('job', 'next')");
is($node->safe_psql('postgres', "SELECT lease_claim_slot('job', 'next', $token, 'slow')"), 't', 'the next leader gets the slot');
is(sqlstate($node, "SELECT lease_claim_slot('job', 'killed', @{[ $token - 1 ]}, 'slower')"), 'LF001', 'and the one before none');

# with the work, the slot is as durable as that: no crash gives it out again
$node->kill9;
$node->start;
is($node->safe_psql('postgres', "SELECT lease_claim_slot('job', 'next', $token, 'slow')"), 'f', 'also not after a crash');

$node->stop;
done_testing();
