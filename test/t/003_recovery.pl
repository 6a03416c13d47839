# Point-in-time recovery to before the last grants, and an upgrade followed by
# a promotion that loses grants: tokens go on above what was lost.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

sub grant
{
	my ($node, $role) = @_;

	return $node->safe_psql('postgres', "SELECT lease_acquire('$role', 'x', '1 microsecond')");
}

# recovery to a point
my $primary = new_primary('primary', has_archiving => 1);
$primary->safe_psql('postgres', $LeaseTest::setup);
$primary->safe_psql('postgres', "SELECT lease_acquire('held', 'a', '1 hour')");
grant($primary, 'r');
$primary->backup('backup');
$primary->safe_psql('postgres', "SELECT pg_create_restore_point('before')");
my %lost;
for my $role ('r', 'unheard')
{
	$lost{$role} = grant($primary, $role) for 1 .. 30;
}
$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
$primary->stop;

my @recovered;
for my $i (1 .. 2)
{
	my $node = PostgreSQL::Test::Cluster->new("recovered$i");

	$node->init_from_backup($primary, 'backup', has_restoring => 1, standby => 0);
	$node->append_conf('postgresql.conf', "recovery_target_name = 'before'\nrecovery_target_action = 'promote'");
	$node->start;
	$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
	is($node->safe_psql('postgres', "SELECT state, lease_check_fence('held', 'a', 1) FROM lease_status WHERE role = 'held'"),
		'failed_over|f', "recovery $i: terms of before are over");
	for my $role ('r', 'unheard')
	{
		my $token = grant($node, $role);

		cmp_ok($token, '>', $lost{$role}, "recovery $i: $role goes on above what was lost");
		cmp_ok($token, '<', 2**53, "recovery $i: $role is exact in a double");
		$lost{$role} = grant($node, $role);
		is($lost{$role}, $token + 1, "recovery $i: $role counts on by one");
	}
	$node->stop;
	push @recovered, $node;
}

# pg_upgrade starts again at timeline 1
my $bin = $recovered[1]->config_data('--bindir');
{
	my $old = $recovered[1];
	my $upgraded = PostgreSQL::Test::Cluster->new('upgraded');
	$upgraded->init(allows_streaming => 1);

	chdir ${PostgreSQL::Test::Utils::tmp_check};
	command_ok(
		[   "$bin/pg_upgrade", '--no-sync', '-d', $old->data_dir, '-D', $upgraded->data_dir,
			'-b', $bin, '-B', $bin, '-s', $upgraded->host,
			'-p', $old->port, '-P', $upgraded->port ],
		'pg_upgrade');
	$upgraded->append_conf('postgresql.conf', 'autovacuum = off');
	$upgraded->start;
	is($upgraded->safe_psql('postgres', 'CHECKPOINT; SELECT timeline_id FROM pg_control_checkpoint()'), '1',
		'the upgrade is on timeline 1');
	is($upgraded->safe_psql('postgres', "SELECT owner = current_user FROM lease_status WHERE role = 'r'"), 't', 'leases and owners came along');
	is($upgraded->safe_psql('postgres', 'SELECT count(*) FROM lease_guards'), '2', 'guards came along');
	is(sqlstate($upgraded, 'INSERT INTO job VALUES (1)'), 'LF002', 'and guard');
	is($upgraded->safe_psql('postgres', "SELECT lease_check_fence('held', 'a', 1)"), 'f', 'terms of before are over');

	$upgraded->backup('backup');
	my $standby = new_standby('standby', $upgraded, 'backup');
	$upgraded->wait_for_catchup($standby, 'replay');
	$standby->stop;
	my %gone;
	for my $role ('r', 'unheard', 'newer')
	{
		$gone{$role} = grant($upgraded, $role);
		cmp_ok($gone{$role}, '>', $lost{$role} // 0, "upgrade: $role goes on above what was before");
		$gone{$role} = grant($upgraded, $role) for 1 .. 3;
	}
	$upgraded->kill9;
	$standby->start;
	$standby->promote;
	for my $role ('r', 'unheard', 'newer')
	{
		my $token = grant($standby, $role);

		cmp_ok($token, '>', $gone{$role}, "upgrade and loss: $role goes on above what was lost");
		cmp_ok($token, '<', 2**53, "upgrade and loss: $role is exact in a double");
	}
	$standby->stop;
}

done_testing();
