# Where a campaign may be called from, by whom, and through what.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use LeaseClient;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_primary('primary');
$node->safe_psql('postgres', 'CREATE EXTENSION leader_lease; ' . $LeaseClient::setup);
sub sql { return $node->safe_psql('postgres', shift); }

# where no procedure may commit
sql(<<'SQL');
CREATE TABLE got (token bigint);
CREATE FUNCTION in_function() RETURNS void LANGUAGE plpgsql AS $$ DECLARE t bigint; BEGIN CALL lease_campaign('l', 'x', token => t); END $$;
CREATE PROCEDURE by_definer() LANGUAGE plpgsql SECURITY DEFINER AS $$ DECLARE t bigint; BEGIN CALL lease_campaign('l', 'x', token => t); END $$;
CREATE PROCEDURE caught() LANGUAGE plpgsql AS $$ DECLARE t bigint; BEGIN CALL lease_campaign('l', 'x', token => t); EXCEPTION WHEN division_by_zero THEN NULL; END $$;
CREATE PROCEDURE plain() LANGUAGE plpgsql AS $$ DECLARE t bigint; BEGIN CALL lease_campaign('l', 'x', token => t); END $$;
SQL
for my $call (
	[ 'a transaction block', "BEGIN; CALL lease_campaign('l', 'x')" ],
	[ 'a block in REPEATABLE READ', "BEGIN ISOLATION LEVEL REPEATABLE READ; CALL lease_campaign('l', 'x')" ],
	[ 'several statements in one message', "SELECT 1\\; CALL lease_campaign('l', 'x')" ],
	[ 'a function', 'SELECT in_function()' ],
	[ 'a DO block in a transaction block', "BEGIN; DO \$\$ DECLARE t bigint; BEGIN CALL lease_campaign('l', 'x', token => t); END \$\$" ],
	[ 'a SECURITY DEFINER procedure', 'CALL by_definer()' ],
	[ 'a block with an exception handler', 'CALL caught()' ],
	[ 'a procedure in a transaction block', 'BEGIN; CALL plain()' ])
{
	is(sqlstate($node, $call->[1]), '25001', "not in $call->[0]");
}
my ($rc, $out, $err) = $node->psql('postgres', "BEGIN; CALL lease_campaign('l', 'x')");
like($err, qr/cannot run inside a transaction block\n.*HINT:  .*autocommit/s, 'with what to do');
is(sql("SELECT count(*) FROM leader_lease"), '0', 'and nothing is made');

# from plpgsql where it may commit, as any procedure that does
is(sql('CALL plain(); SELECT fencing_token FROM leader_lease'), '1', 'in a procedure');
my $w = client($node, 'do', <<'SQL');
DO $$
DECLARE
	t bigint;
	r record;
BEGIN
	INSERT INTO got VALUES (-1);
	FOR r IN SELECT 1 FROM generate_series(1, 2) LOOP	-- a cursor is open over it
		CALL lease_campaign('l', 'y', '1 hour', NULL, t);
		INSERT INTO got VALUES (t);
	END LOOP;
END $$
SQL
queue_is($node, 'l', $w, 'a DO block waits');
is(sql("SELECT holds_nothing('do')"), 't', 'and holds nothing');
is(sql('SELECT token FROM got'), '-1', 'what it did before is committed');
sql("SELECT lease_release('l', 'x', 1)");
is(answer($w), '', 'it goes on');
is(sql('SELECT string_agg(token::text, \',\' ORDER BY token) FROM got'), '-1,2,2', 'with its token');
is(sqlstate($node, "SET default_transaction_isolation = 'serializable'; CALL lease_campaign('l', 'y'); SELECT 1/(current_setting('transaction_isolation') = 'serializable')::int"),
	'00000', 'the isolation level is the default again afterwards');

# arguments
for my $call (
	[ '22004', "NULL, 'x'" ], [ '22004', "'l', NULL" ], [ '22023', "'', 'x'" ],
	[ '22023', "'l', 'x', '0'" ], [ '22023', "'l', 'x', '2 days'" ], [ '22023', "'l', 'x', NULL, '2000 years'" ])
{
	is(sqlstate($node, "CALL lease_campaign($call->[1])"), $call->[0], "lease_campaign($call->[1])");
}
is(sqlstate($node, "SET leader_lease.auto_create = off; CALL lease_campaign('unknown', 'x')"), '42704', 'an unknown lease, where they are not made');
is(sqlstate($node, "SET default_transaction_read_only = on; CALL lease_campaign('l', 'x', max_wait => '0')"), '25006', 'read-only by default');

# privileges
sql("CREATE ROLE crew; CREATE ROLE member LOGIN IN ROLE crew; CREATE ROLE stranger LOGIN; SELECT lease_create('theirs', 'crew')");
is(sqlstate($node, "SET SESSION AUTHORIZATION stranger; CALL lease_campaign('theirs', 'x')"), '42501', 'not of others\' leases');
is(sqlstate($node, "SET SESSION AUTHORIZATION member; CALL lease_campaign('theirs', 'm')"), '00000', 'of one\'s own, with no other privilege');
my @w = map { my $w = client($node, $_, "CALL lease_campaign('theirs', '$_', '1 hour')", user => 'member'); in_queue($node, 'theirs', $_ eq 'b' ? 'a' : (), $w); $w } 'a', 'b';
is(sqlstate($node, "SET SESSION AUTHORIZATION stranger; CALL lease_campaign('theirs', 'x', max_wait => '1 s')"), '42501', 'a stranger does not even stand in line');
sql('REVOKE crew FROM member');
is(answer($_), '42501', "who may no longer is sent away: $_->{name}") for @w;
is(sql("SELECT fencing_token, waiters FROM lease_status WHERE role = 'theirs'"), '1|0', 'with nothing');

# through pgbouncer, in transaction mode
SKIP: {
	my ($pgbouncer) = grep { -x } '/usr/sbin/pgbouncer', '/usr/local/sbin/pgbouncer', '/usr/bin/pgbouncer';
	my $dir = $node->basedir;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $user = sql('SELECT current_user');

	BAIL_OUT('pgbouncer is missing: install Debian\'s package pgbouncer') unless $pgbouncer;
	append_to_file("$dir/users.txt", "\"$user\" \"\"\n");
	append_to_file("$dir/pgbouncer.ini", <<"INI");
[databases]
* = host=@{[ $node->host ]} port=@{[ $node->port ]}
[pgbouncer]
listen_addr =
listen_port = $port
unix_socket_dir = @{[ $node->host ]}
auth_type = trust
auth_file = $dir/users.txt
pool_mode = transaction
default_pool_size = 3
ignore_startup_parameters = extra_float_digits,options
logfile = $dir/pgbouncer.log
pidfile = $dir/pgbouncer.pid
INI
	my $log = '';
	my $run = IPC::Run::start([ $pgbouncer, '-q', "$dir/pgbouncer.ini" ], '<', \'', '>', \$log, '2>', \$log);
	my $pooled = "host=@{[ $node->host ]} port=$port dbname=postgres user=$user";
	my $up = 0;
	for (1 .. 600)
	{
		last if $up = run_log([ 'psql', '-XAtq', '-d', $pooled, '-c', 'SELECT' ]);
		select(undef, undef, undef, 0.1);
	}
	ok($up, 'pgbouncer answers') or diag(slurp_file("$dir/pgbouncer.log"));

	is(answer(client($node, 'p0', "CALL lease_campaign('pooled', 'p0', '1 hour')", connstr => $pooled)), '1', 'through pgbouncer');
	my @w;
	for my $i (1 .. 2)
	{
		push @w, client($node, "p$i", "CALL lease_campaign('pooled', 'p$i', '1 hour')", connstr => $pooled);
		$node->poll_query_until('postgres', "SELECT waiters = $i FROM lease_status WHERE role = 'pooled'");
	}
	is(sql("SELECT count(DISTINCT pid) FROM lease_locks WHERE role = 'pooled'"), '2', 'each waiter holds a server connection');
	is(answer(client($node, 'p3', 'SELECT 3', connstr => $pooled)), '3', 'others work through what is left of the pool');
	kill9($w[0]);
	$node->poll_query_until('postgres', "SELECT waiters = 1 FROM lease_status WHERE role = 'pooled'");
	is(answer(client($node, 'p4', "SELECT lease_release('pooled', 'p0', 1)", connstr => $pooled)), 't', 'released by yet another');
	is(answer($w[1]), '2', 'the waiter whose client lives gets it');
	is(sql("SELECT holder_id FROM lease_status WHERE role = 'pooled'"), 'p2', 'and leads');
	$run->signal('TERM');
	$run->finish;
}

# a standby, and what waits when the server goes down
$node->backup('backup');
my $standby = new_standby('standby', $node, 'backup');
is(sqlstate($standby, "CALL lease_campaign('l', 'x', max_wait => '0')"), '25006', 'on a standby');
$standby->stop;
@w = map { client($node, "d$_", "CALL lease_campaign('l', 'd$_')") } 1 .. 2;
$node->poll_query_until('postgres', "SELECT waiters = 2 FROM lease_status WHERE role = 'l'");
$node->stop('fast');
is(answer($_), '57P01', 'a shutdown ends the wait') for @w;
done_testing();
