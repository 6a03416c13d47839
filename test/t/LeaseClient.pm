# Clients that are processes of their own, so that they can wait, and be killed; and what their backends hold.
package LeaseClient;
use strict;
use warnings;
use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(client answer kill9 backend in_queue queue_is head_looks sleeps);

# for the tests' database: what a backend holds while it campaigns
our $setup = <<'SQL';
-- is there, among many moments, one at which it has no snapshot, transaction
-- id or lock on a relation?  What is held between looks is there at all of them.
CREATE FUNCTION holds_nothing(app text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	fine boolean;
BEGIN
	FOR i IN 1 .. 500 LOOP
		PERFORM pg_stat_clear_snapshot();
		SELECT backend_xmin IS NULL AND backend_xid IS NULL AND state = 'active'
		       AND NOT EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND locktype IN ('relation', 'transactionid'))
		  INTO STRICT fine FROM pg_stat_activity a WHERE application_name = app;
		IF fine THEN RETURN true; END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
	RETURN false;
END $$;
-- returns when a backend has begun that many waits for a lock of that kind
CREATE FUNCTION waits_often(app text, kind int, times int) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	seen timestamptz[] := '{}';
	one timestamptz;
BEGIN
	FOR i IN 1 .. 10000 LOOP
		SELECT waitstart INTO one FROM pg_locks l
		  JOIN pg_stat_get_activity(NULL) a ON a.pid = l.pid AND a.application_name = app
		 WHERE locktype = 'object' AND objsubid = kind AND NOT granted;
		IF one IS NOT NULL AND NOT one = ANY (seen) THEN seen := seen || one; END IF;
		IF cardinality(seen) >= times THEN RETURN true; END IF;
		PERFORM pg_sleep(0.01), pg_stat_clear_snapshot();
	END LOOP;
	RETURN false;
END $$;
SQL

# A psql of that application_name which runs the statements, each by itself, and goes on after an error.
sub client
{
	my ($node, $name, $sql, %opt) = @_;
	my $self = { node => $node, name => $name, out => '', err => '' };
	my @psql = ('psql', '-XAtq', '-v', 'VERBOSITY=sqlstate', '-d', $opt{connstr} // $node->connstr('postgres'));

	push @psql, '-U', $opt{user} if $opt{user};
	push @psql, map { ('-c', $_) } ref $sql ? @$sql : ($sql);
	local %ENV = (%ENV, PGAPPNAME => $name, $opt{options} ? (PGOPTIONS => $opt{options}) : ());
	$self->{run} = IPC::Run::start(\@psql, '<', \'', '>', \$self->{out}, '2>', \$self->{err},
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return $self;
}

# What it printed when it has ended: an error as its SQLSTATE, one line a statement.
sub answer
{
	my $self = shift;

	$self->{run}->finish;
	my ($error) = $self->{err} =~ /(?:ERROR|FATAL):\s+(\w{5})/;
	chomp(my $out = $self->{out});
	return join("\n", grep { defined } $error, $error && $out eq '' ? () : $out);
}

sub kill9
{
	my $self = shift;

	$self->{run}->signal('KILL');
	$self->{run}->finish;
}

# The pid of its backend.
sub backend
{
	my $self = shift;

	$self->{node}->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '$self->{name}'") or die "no backend of $self->{name}";
	return $self->{node}->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE application_name = '$self->{name}'");
}

# Waits until the queue of a lease is these clients', in that order: the head, then who waits behind.
sub in_queue
{
	my ($node, $role, @names) = @_;
	my $queue = join(',', map { ref $_ ? $_->{name} : $_ } @names);

	return $node->poll_query_until('postgres', <<"SQL", $queue);
SELECT string_agg(application_name, ',' ORDER BY position NULLS FIRST)
  FROM lease_locks JOIN pg_stat_activity USING (pid) WHERE role = '$role' AND mode = 'queue'
SQL
}

sub queue_is
{
	my ($node, $role, @names) = @_;
	my $what = pop @names;

	ok(in_queue($node, $role, @names), $what);
}

# How often a process went to sleep.
sub sleeps
{
	my $pid = shift;

	return slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m ? $1 : die;
}

# Waits until a backend has looked at its lease that many times more.
sub head_looks
{
	my ($pid, $times) = @_;
	my $until = sleeps($pid) + $times;

	select(undef, undef, undef, 0.02) while sleeps($pid) < $until;
}

1;
