# The wall clock is stepped, and the machine booted anew: no ended term is
# revived, and none outlives its ttl.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($faketime) = grep { -e } glob('/usr/lib/*/faketime/libfaketime.so.1');
BAIL_OUT('libfaketime is missing: install Debian\'s package libfaketime') unless $faketime;

my $node = PostgreSQL::Test::Cluster->new('main');
my $rc = $node->basedir . '/clock';
my @boot = ();

# Steps the wall clock of the server, at once and alone.
sub step
{
	my $to = shift;

	PostgreSQL::Test::Utils::append_to_file("$rc.new", "$to\n");
	rename("$rc.new", $rc) or die;
}

# Starts the server with the stepped clock; in a time namespace, which stands
# for another boot, where @boot says so.
sub start
{
	local %ENV = (
		%ENV,
		LD_PRELOAD => $faketime,
		FAKETIME_TIMESTAMP_FILE => $rc,
		FAKETIME_NO_CACHE => 1,
		FAKETIME_DONT_FAKE_MONOTONIC => 1,
		DONT_FAKE_MONOTONIC => 1);

	PostgreSQL::Test::Utils::system_or_bail(@boot, 'pg_ctl', '-s', '-w', '-D', $node->data_dir,
		'-l', $node->logfile, '-o', '--cluster-name=main', 'start');
	$node->_update_pid(1);
}

sub sql { return $node->safe_psql('postgres', shift); }
sub live { my $role = shift; return sql("SELECT state, live FROM lease_status WHERE role = '$role'"); }

$node->init;
$node->append_conf('postgresql.conf', 'autovacuum = off');
step('+0');
start();
sql($LeaseTest::setup);
my $session = $node->background_psql('postgres');

# a step ends no live term, and makes no dead holder's immortal
for my $by ('+1h', '-1h')
{
	my $long = "long$by";
	my $short = "short$by";

	is(sql("SELECT lease_acquire('$long', 'a', '10 minutes'), lease_acquire('$short', 'a', '200 ms'), lease_acquire('gone$by', 'a', '10 minutes')"),
		'1|1|1', "before a step by $by");
	is(sql("SELECT lease_release('gone$by', 'a', 1)"), 't', 'one is released');
	my $clock = $session->query('SELECT extract(epoch FROM clock_timestamp())');
	step($by);
	my $moved = $session->query("SELECT extract(epoch FROM clock_timestamp()) - $clock");
	cmp_ok(abs($moved), '>', 3000, 'the clock of a running backend is stepped');

	for my $after ('the step', 'a restart')
	{
		is(live($long), 'held|t', "$by: live after $after");
		is(sql("SELECT lease_check_fence('$long', 'a', 1), lease_acquire('$long', 'b') IS NULL"), 't|t',
			"$by: and keeps others out");
		is(live("gone$by"), 'released|f', "$by: what was released stays so");
		ok($node->poll_query_until('postgres', "SELECT lease_acquire('$short', 'c', '200 ms') IS NOT NULL"),
			"$by: a dead holder's runs out after $after");
		if ($after eq 'the step')
		{
			is(sql("SELECT lease_renew('$long', 'a', 1, '10 minutes') = '10 minutes'"), 't', "$by: renewed");
			$session->quit;
			$node->stop;
			start();
			$session = $node->background_psql('postgres');
		}
	}
	step('+0');
}

# written by hand, a term goes by the wall clock within bounds
is(sql(upsert('hand', 'a')), '1', 'a term by hand');
step('-1h');
is(live('hand'), 'expired|f', 'stepped back before its start, it is over');
is(sql("SELECT lease_acquire('hand', 'b')"), '2', 'and another can lead');
step('+0');

# another boot: the wall clock decides, never longer than the ttl
my @other_boot = ('unshare', '--user', '--map-current-user', '--time', '--fork',
	'--boottime', 100000, '--monotonic', 100000);

# Where the system allows no namespaces, the rows are given another boot instead.
my $namespaces = system("@other_boot true 2>/dev/null") == 0;
note('no time namespaces here: rows get another boot') unless $namespaces;

$session->quit;
for my $case ([ '+0', 't' ], [ '+1h', 'f' ], [ '-1h', 'f' ])
{
	my ($to, $alive) = @$case;
	my $role = "boot$to";

	is(sql("SELECT lease_acquire('$role', 'a', '10 minutes'), lease_acquire('r$role', 'a', '10 minutes'), lease_acquire('s$role', 'a', '1 microsecond')"),
		'1|1|1', "before a boot with the clock at $to");
	sql("SELECT lease_release('r$role', 'a', 1)");
	$node->stop;
	step($to);
	@boot = @other_boot if $namespaces;
	start();
	sql('SET session_replication_role = replica; UPDATE leader_lease SET boot = boot + 1') unless $namespaces;
	is(sql("SELECT live FROM lease_status WHERE role = '$role'"), $alive, "clock at $to: live is $alive");
	is(sql("SELECT lease_check_fence('$role', 'a', 1)"), $alive, 'so says the check');
	is(sql("SELECT lease_renew('$role', 'a', 1) IS NOT NULL"), $alive, 'and renewal');
	is(live("r$role"), 'released|f', 'what was released stays so');
	is(live("s$role"), 'expired|f', 'and so does what had run out');
	is( sql("SELECT remaining <= '10 minutes' FROM lease_status WHERE role = '$role'"),
		$alive eq 't' ? 't' : '', 'no term is longer than its ttl');
	$node->stop;
	step('+0');
	@boot = ();
	start();
}

# session time zones and their daylight-saving days change nothing
for my $zone ('Pacific/Kiritimati', 'America/New_York', 'Europe/Berlin')
{
	is(sql("SET TimeZone = '$zone'; SELECT ttl FROM lease_attempt('zone', 'a', '1 day')"), '24:00:00', "a day is a day in $zone");
}

$node->stop;
done_testing();
