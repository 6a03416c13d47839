# A standby that missed the last grants is promoted: terms of before are over,
# and tokens go on above everything that the old primary ever granted.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = new_primary('primary');
$primary->safe_psql('postgres', $LeaseTest::setup);
$primary->safe_psql('postgres', <<'SQL');
SELECT lease_acquire('live', 'a', '1 hour');
SELECT lease_acquire('over', 'a', '1 microsecond');
SELECT lease_acquire('hand', 'a', '1 microsecond');
SELECT lease_create('free');
SELECT lease_acquire('job', 'a', '1 hour');
INSERT INTO job VALUES (1, lease_require_fence('job', 'a', 1));
SQL
$primary->backup('backup');
my @standbys = map { new_standby("standby$_", $primary, 'backup') } 1 .. 2;
$primary->wait_for_catchup($_, 'replay') for @standbys;

# on a standby every changing function is a clear error, and reading works
for my $call (
	"lease_acquire('live', 'a')", "lease_attempt('live', 'a')",
	"lease_renew('live', 'a', 1)", "lease_release('live', 'a', 1)",
	"lease_create('x')", "lease_set_owner('live', 'postgres')",
	"lease_transfer('live', 'a', 1, 'b')", "lease_revoke('live')", "lease_prune_history('1 day')",
	"lease_check_fence('live', 'a', 1)", "lease_require_fence('live', 'a', 1)")
{
	is(sqlstate($standbys[0], "SELECT $call"), '25006', "$call on a standby");
}
is($standbys[0]->safe_psql('postgres', "SELECT holder_id, state, live FROM lease_status WHERE role = 'live'"),
	'a|held|t', 'a standby shows who leads');

# a backend that served reads lives through the promotion
my $session = $standbys[0]->background_psql('postgres');
is($session->query("SELECT state FROM lease_status WHERE role = 'live'"), 'held', 'read on the standby');

# grants that the standbys never see
$_->stop for @standbys;
my $granted = $primary->safe_psql('postgres', <<'SQL');
SELECT max(t) FROM (
    SELECT lease_acquire('over', 'b', '1 microsecond') AS t FROM generate_series(1, 20)
    UNION ALL SELECT lease_acquire('hand', 'b', '1 microsecond') FROM generate_series(1, 20)
    UNION ALL SELECT lease_acquire('free', 'b', '1 microsecond') FROM generate_series(1, 20)
    UNION ALL SELECT lease_acquire('unheard', 'b', '1 microsecond') FROM generate_series(1, 20)
    UNION ALL SELECT lease_acquire('unheard_hand', 'b', '1 microsecond') FROM generate_series(1, 20)) g
SQL
is($granted, 21, 'the old primary granted on');
$session->{run}->kill_kill;
$primary->kill9;

my %tokens;
sub promoted
{
	my ($node, $name) = @_;
	my $token;

	is($node->safe_psql('postgres', "SELECT state, live FROM lease_status WHERE role = 'live'"),
		'failed_over|f', "$name: the old term is over");
	is($node->safe_psql('postgres', "SELECT lease_check_fence('live', 'a', 1)"), 'f', "$name: for the check");
	is($node->safe_psql('postgres', "SELECT lease_renew('live', 'a', 1) IS NULL"), 't', "$name: for renewal");
	is($node->safe_psql('postgres', "SELECT lease_release('live', 'a', 1)"), 'f', "$name: for release");
	is($node->safe_psql('postgres', "SELECT lease_transfer('live', 'a', 1, 'b') IS NULL"), 't', "$name: for a transfer");
	is(sqlstate($node, "INSERT INTO job VALUES (2, lease_require_fence('job', 'a', 1))"), 'LF001', "$name: for a protected write");
	is( sqlstate($node,
			q{SET leader_lease.fence = '{"role": "job", "holder": "a", "token": 1}'; UPDATE job SET id = 3}),
		'LF001', "$name: for the setting");
	is($node->safe_psql('postgres', "SELECT lease_acquire('live', 'b') IS NULL"), 't',
		"$name: its holder, who cannot know, still keeps others out");

	for my $role ('live', 'over', 'free', 'unheard')
	{
		my $holder = $role eq 'live' ? 'a' : 'z';
		$token = $node->safe_psql('postgres', "SELECT lease_acquire('$role', '$holder', '1 microsecond')");
		above($token, $role, $name);
		is($node->safe_psql('postgres', "SELECT lease_acquire('$role', '$holder', '1 hour')"),
			$token + 1, "$name: $role counts on by one");
		is($node->safe_psql('postgres', "SELECT lease_check_fence('$role', '$holder', $token + 1)"),
			't', "$name: $role is led");
		$tokens{$role} = $token + 1;
	}
	is($node->safe_psql('postgres', "SELECT end_reason FROM lease_history WHERE role = 'live' AND fencing_token = 1"),
		'failed_over', "$name: the history says why");
	for my $role ('hand', 'unheard_hand')
	{
		$token = $node->safe_psql('postgres', upsert($role, 'z'));
		above($token, $role, $name);
		$tokens{$role} = $token;
	}
}

sub above
{
	my ($token, $role, $name) = @_;

	cmp_ok($token, '>', $tokens{$role} // 21, "$name: $role goes on above what was lost");
	cmp_ok($token, '<', 2**53, "$name: exact in a double");
}

$standbys[0]->start;
$session = $standbys[0]->background_psql('postgres');
is($session->query("SELECT state FROM lease_status WHERE role = 'live'"), 'held', 'read before the promotion');
$standbys[0]->promote;
is($session->query("SELECT state FROM lease_status WHERE role = 'live'"), 'failed_over',
	'the same backend after it');
$session->quit;
promoted($standbys[0], 'first');

# the second standby knows nothing of the first, and becomes the same timeline
$standbys[0]->kill9;
$standbys[1]->start;
$standbys[1]->promote;
is( $standbys[1]->safe_psql('postgres', 'SELECT timeline_id FROM pg_control_checkpoint()'),
	'2', 'the same timeline twice')
  if $standbys[1]->safe_psql('postgres', 'CHECKPOINT') || 1;
promoted($standbys[1], 'second');

$standbys[1]->stop;
done_testing();
