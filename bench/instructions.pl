# How many instructions the hot paths take: a slow-down shows here without timing anything.  The bounds are in
# instructions.txt.  It needs valgrind.
#
#	test/run instructions
#
# A backend in single-user mode runs under callgrind.  Each path runs n and then 2n times, and SELECT pg_sleep(0) marks
# the places where callgrind writes down its count; so the difference is n calls, and start and warming up are not in it.
# What the same SQL takes without us is counted likewise and taken off; so what a transaction's end does for us, such as
# giving back locks, is in.
use strict;
use warnings;
use File::Basename;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $n = 300;

my $node = PostgreSQL::Test::Cluster->new('counted');
$node->init;

# SQL that does something $_[0] times: a transaction each, many in one, or many rows inserted
sub transactions { my ($call) = @_; return sub { "DO \$\$ BEGIN FOR i IN 1..$_[0] LOOP PERFORM $call; COMMIT; END LOOP; END \$\$" } }
sub calls { my ($call) = @_; return sub { "SELECT count($call) FROM generate_series(1, $_[0])" } }
sub rows
{
	my ($table, $lease) = @_;
	$lease //= 'l';
	return sub { "WITH f AS MATERIALIZED (SELECT lease_require_fence('$lease', 'a', 1) AS t) "
		. "INSERT INTO $table SELECT i, t FROM f, generate_series(1, $_[0]) i" };
}

my @paths = (
	[ 'transaction', transactions('pg_backend_pid()') ],
	[ 'call', calls('pg_backend_pid()') ],
	[ 'row', rows('plain') ],
	[ 'lose', transactions("lease_acquire('l', 'b')"), 'transaction' ],
	[ 'first', transactions("lease_check_fence('l', 'a', 1)"), 'transaction' ],
	[ 'again', calls("lease_check_fence('l', 'a', 1)"), 'call' ],
	[ 'guard', rows('job'), 'row' ],
	[ 'key', rows('shard', 'k1'), 'row' ],
	[ 'observe', transactions("lease_observe('r', 33)"), 'transaction' ],
	[ 'renew', transactions("lease_renew('l', 'a', 1)"), 'transaction' ],
	[ 'renew_ten', transactions("count(*) FROM lease_renew_all('ten')"), 'transaction' ]);

my $mark = 'SELECT pg_sleep(0)';
my @sql = (
	'CREATE EXTENSION leader_lease',
	'CREATE TABLE job (id int, token bigint)', 'CREATE TABLE plain (id int, token bigint)',
	'CREATE TABLE shard (id int, token bigint, no int DEFAULT 1)',
	"SELECT lease_protect('job', 'l', 'token')", "SELECT lease_acquire('l', 'a', '10 hours')",
	"SELECT lease_protect('shard', 'k', 'token', key_column => 'no')", "SELECT lease_acquire('k1', 'a', '10 hours')",
	"SELECT lease_observe('r', 33)",
	"SELECT count(lease_acquire('ten' || i, 'ten', '10 hours')) FROM generate_series(1, 10) i");
push @sql, $_->[1]->($n), $mark, $_->[1]->($n), $mark, $_->[1]->(2 * $n), $mark for @paths;

# single-user mode takes one command a line
my $dir = $node->basedir;
my ($out, $err) = ('', '');
IPC::Run::run([ 'valgrind', '--tool=callgrind', '--dump-before=pg_sleep', "--callgrind-out-file=$dir/count",
		'postgres', '--single', '-D', $node->data_dir, 'postgres' ],
	'<', \join('', map { "$_\n" } @sql), '>', \$out, '2>', \$err) or BAIL_OUT("valgrind or the server failed: $err");
unlike($out . $err, qr/ERROR|FATAL|PANIC/, 'the commands ran');

# the counts in the order of the marks
my @count;
for my $i (1 .. 3 * @paths)
{
	my $profile = slurp_file("$dir/count.$i");
	$profile =~ /^part: $i$/m && $profile =~ /^totals: (\d+)$/m or BAIL_OUT("no count in part $i");
	push @count, $1;
}
my %took;
for my $i (0 .. $#paths)
{
	my ($name, undef, $base) = @{ $paths[$i] };
	$took{$name} = ($count[3 * $i + 2] - $count[3 * $i + 1]) / $n - ($base ? $took{$base} : 0);
}

# A count far below its bound is as suspect as one above: then nothing was counted, or the bound catches nothing.
my %bound = map { /^(\w+)\t(\d+)$/ ? ($1, $2) : () } split /\n/, slurp_file(dirname(__FILE__) . '/instructions.txt');
for my $name (map { $_->[2] ? $_->[0] : () } @paths)
{
	my $took = sprintf '%.0f', $took{$name};
	note("$name: $took");
	cmp_ok($took, '<=', $bound{$name}, "instructions of $name");
	cmp_ok($took, '>=', $bound{$name} / 2, "and its bound is not idle");
}
done_testing();
