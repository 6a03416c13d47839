# 20 workers take 500 shards, one dies and one joins: each shard has one writer at any time, and none is left alone for
# longer than its ttl and a second.  What is looked at are the database's times, in the history of the terms; a second is
# a second and two rounds of the slowest worker, since who has just looked comes again a round later.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($workers, $shards, $ttl) = (20, 500, 8);
my $node = new_primary('primary');
my $dir = PostgreSQL::Test::Utils::tempdir;
my %pid;

$node->append_conf('postgresql.conf', 'max_connections = 50');
$node->restart;
$node->safe_psql('postgres', <<"SQL");
CREATE EXTENSION leader_lease;
CREATE TABLE shard (id int PRIMARY KEY, n int NOT NULL, writer text, token bigint);
CREATE TABLE audit (seq bigserial, id int, writer text, token bigint, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS
	'BEGIN INSERT INTO audit (id, writer, token) VALUES (NEW.id, NEW.writer, NEW.token); RETURN NULL; END';
CREATE TRIGGER audit AFTER UPDATE ON shard FOR EACH ROW EXECUTE FUNCTION audit();
INSERT INTO shard SELECT i, 0 FROM generate_series(1, $shards) i;
SELECT lease_protect('shard', 'shard/', token_column => 'token', key_column => 'id');
-- the terms of shards, each with when the next one began
CREATE VIEW term AS
	SELECT *, lead(acquired_at) OVER (PARTITION BY role ORDER BY fencing_token) AS next_at
	  FROM lease_history WHERE role LIKE 'shard/%';
SQL
sub sql { return $node->safe_psql('postgres', shift); }
sub becomes
{
	my ($sql, $wanted, $what) = @_;

	ok($node->poll_query_until('postgres', $sql, $wanted), $what) or die 'who leads: ' . sql("SELECT string_agg(holder_id || ' ' || n, ', ') "
		. "FROM (SELECT holder_id, count(*) AS n FROM lease_status WHERE live GROUP BY 1 ORDER BY 1) s");
}
sub touch { append_to_file("$dir/$_[0]", ''); }

sub start
{
	my $name = shift;

	$pid{$name} = fork // die;
	return if $pid{$name};
	setpgrp;
	exec $^X, "-I$FindBin::RealBin", '-MShardWorker', '-e', 'ShardWorker::run(@ARGV)', $node->connstr('postgres'), $name, $dir, $ttl
		or POSIX::_exit(1);
}

# whatever ends this test
END { kill 'KILL', map { -$_ } values %pid if %pid; }

my $held = "SELECT count(*) FROM lease_status WHERE role LIKE 'shard/%' AND live";
# the most and the fewest that a worker has
my $spread = "SELECT max(c) || ' ' || min(c) || ' ' || count(*) FROM (SELECT count(*) AS c FROM lease_status "
	. "WHERE role LIKE 'shard/%' AND live GROUP BY holder_id) s";

# They are there, and start at once.
start("w$_") for 1 .. $workers;
becomes("SELECT count(*) FROM lease_status WHERE role LIKE 'member/%' AND live", $workers, 'the workers are there');
touch('go');
becomes($held, $shards, 'all shards are taken');
is(sql($spread), '25 25 20', 'by each its share');
my $taken = sql('SELECT clock_timestamp()');
sql("SELECT pg_sleep($ttl)");
is(sql("SELECT count(*) FROM term WHERE ended_at IS NOT NULL OR acquired_at > '$taken'"), '0', 'and kept for longer than their ttl');

# One dies.
my $death = sql('SELECT clock_timestamp()');
kill 'KILL', -$pid{w7};
waitpid delete $pid{w7}, 0;
my $orphans = sql("SELECT count(*) FROM lease_status WHERE holder_id = 'w7' AND role LIKE 'shard/%'");
becomes("SELECT count(*) FROM lease_status WHERE role LIKE 'shard/%' AND live AND holder_id <> 'w7'", $shards, 'the others take over');

# One joins.
start('late');
becomes($spread, '25 25 20', 'one who comes later gets his share');
is(sql($held), $shards, 'and all are held');
sql('SELECT pg_sleep(1)');

# All go.
my $end = sql('SELECT clock_timestamp()');
touch('stop');
waitpid $pid{$_}, 0 for keys %pid;
my %sum = (lost => 0, refused => 0);
my $round = 0;
for my $name (keys %pid)
{
	my %did = slurp_file("$dir/$name") =~ /^(\w+) (\S+)$/mg;

	$sum{$_} += $did{$_} for keys %sum;
	$round = $did{round} if $did{round} > $round;
}
%pid = ();
is("$sum{lost} $sum{refused}", '0 0', 'no living worker lost a shard, nor was refused');
is(sql($held), '0', 'all are given back');
note("the longest round took $round s");

# who wrote, in the order of the writes
cmp_ok(sql('SELECT count(*) FROM audit'), '>', $shards, 'there were writes');
is(sql('SELECT sum(n) FROM shard'), sql('SELECT count(*) FROM audit'), 'all are in the audit');
is(sql('SELECT count(*) FROM (SELECT token < max(token) OVER (PARTITION BY id ORDER BY seq) AS older FROM audit) s WHERE older'), '0',
	'none with a token older than one before');
is(sql(<<'SQL'), '0', 'each by the holder of its token, within that term');
SELECT count(*) FROM audit a LEFT JOIN term t ON t.role = 'shard/' || a.id AND t.fencing_token = a.token
 WHERE t.holder_id IS DISTINCT FROM a.writer OR at NOT BETWEEN acquired_at AND ended_at
SQL

# who held, and how long nobody did
is(sql('SELECT count(*) FROM term WHERE next_at < ended_at'), '0', 'no two terms at once');
is(sql("SELECT count(*) || ' ' || count(*) FILTER (WHERE holder_id = 'w7') FROM term WHERE end_reason = 'expired'"), "$orphans $orphans",
	'only the dead one\'s ran out');
cmp_ok(sql("SELECT extract(epoch FROM max(next_at - ended_at)) FROM term WHERE end_reason = 'expired'"), '<=', 1 + 2 * $round,
	'these were taken within a second');
cmp_ok(sql("SELECT extract(epoch FROM max(next_at - '$death')) FROM term WHERE end_reason = 'expired'"), '<=', $ttl + 1 + 2 * $round,
	'at most ttl and a second after the death');
is(sql("SELECT count(*) FROM term WHERE ended_at < '$end' AND next_at IS NULL"), '0', 'all that was given back was taken again');
cmp_ok(sql("SELECT extract(epoch FROM max(next_at - ended_at)) FROM term WHERE end_reason = 'released' AND ended_at < '$end'"), '<=', 1 + 2 * $round,
	'within a second');
done_testing();
