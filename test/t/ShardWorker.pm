# A worker with its fair share of the shards, in a process and with a connection of its own:
#
#	perl -MShardWorker -e 'ShardWorker::run(@ARGV)' CONNSTR NAME DIR TTL
#
# It is a member as long as it holds the lease member/NAME, and holds leases shard/N.  It waits for the file DIR/go, works
# until there is a file DIR/stop, gives everything back, and then writes DIR/NAME: "lost", the leases that a renewal
# missed; "refused", the writes that were; "late", the most that a sleep of its own overslept, in seconds, which is the
# machine's fault.
package ShardWorker;
use strict;
use warnings;
use IPC::Open2;
use Time::HiRes qw(sleep time);

my $tick = 0.2;
my ($to, $from);

# The lines that a statement prints, an error among them as "ERROR:  SQLSTATE".
sub sql
{
	my ($sql) = @_;
	my @lines;

	print $to "$sql;\n\\echo ==\n";
	while (defined(my $line = <$from>))
	{
		chomp $line;
		return @lines if $line eq '==';
		push @lines, $line;
	}
	die 'the connection is gone';
}

sub run
{
	my ($connstr, $me, $dir, $ttl) = @_;
	my (%mine, %did, $next, $step);

	%did = (lost => 0, refused => 0, round => 0);
	my $pid = open2($from, $to, 'sh', '-c', 'exec psql -XAtq -F " " -v VERBOSITY=sqlstate -d "$0" 2>&1', $connstr);
	$to->autoflush(1);

	sql("SELECT lease_acquire('member/$me', '$me', '$ttl s')");
	$next = time + $ttl / 3;
	until (-e "$dir/stop")
	{
		my $began = time;

		# what a renewal does not name is lost
		if (time >= $next || !-e "$dir/go")
		{
			my %renewed = map { split ' ' } sql("SELECT role, token FROM lease_renew_all('$me')");

			delete $renewed{"member/$me"} // die "$me is no member any more";
			$did{lost} += grep { !exists $renewed{$_} } keys %mine;
			%mine = %renewed;
			$next = time + $ttl / 3;
		}
		if (-e "$dir/go")
		{
			share($me, $ttl, \%mine);
			$did{refused} += work($me, \%mine);
		}
		sleep $tick;
		$did{round} = time - $began if -e "$dir/go" && time - $began > $did{round};
	}
	sql("SELECT lease_release_all('$me')");

	open my $report, '>', "$dir/$me" or die;
	print $report map { "$_ $did{$_}\n" } sort keys %did;
	close $report;
	close $to;
	waitpid $pid, 0;
}

# Takes what is missing of a fair share, or gives back what is too much of it.
sub share
{
	my ($me, $ttl, $mine) = @_;
	my ($members) = sql("SELECT count(*) FROM lease_status WHERE role LIKE 'member/%' AND live");
	my ($shards) = sql('SELECT count(*) FROM shard');
	my $fair = int(($shards + $members - 1) / $members);
	my $missing = $fair - keys %$mine;

	if ($missing > 0)
	{
		my %got = map { split ' ' } sql("SELECT role, token FROM lease_acquire_any("
			. "(SELECT array_agg('shard/' || id) FROM shard), '$me', $missing, '$ttl s')");

		%$mine = (%$mine, %got);
	}
	for my $role ($missing < 0 ? (keys %$mine)[ 0 .. -$missing - 1 ] : ())
	{
		sql("SELECT lease_release('$role', '$me', $mine->{$role})");
		delete $mine->{$role};
	}
}

# Writes some of its shards; how many writes were refused.
sub work
{
	my ($me, $mine) = @_;
	my @roles = keys %$mine;
	my $writes = @roles < 5 ? @roles : 5;
	my $refused = 0;

	for (1 .. $writes)
	{
		my $role = splice @roles, int(rand @roles), 1;
		my ($id) = $role =~ /(\d+)/;
		my ($error) = sql("UPDATE shard SET n = n + 1, writer = '$me', "
			. "token = lease_require_fence('$role', '$me', $mine->{$role}) WHERE id = $id");

		next if !defined $error;
		$error =~ /LF001/ or die $error;
		$refused++;
		delete $mine->{$role};
	}
	return $refused;
}

1;
