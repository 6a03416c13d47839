# Observed tokens are durable once they are acknowledged, and go where the data goes: a crash, a standby, a promotion.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
# a WAL writer that sleeps for long leaves it to the commit to flush
$primary->append_conf('postgresql.conf', <<'CONF');
fsync = on
synchronous_commit = off
wal_writer_delay = 10s
wal_writer_flush_after = 0
max_prepared_transactions = 10
autovacuum = off
CONF
$primary->start;
$primary->safe_psql('postgres', <<'SQL');
CREATE EXTENSION leader_lease;
CREATE TABLE plain (i int);
CREATE TABLE copy (id int, token bigint);
SELECT lease_protect('copy', 'far', 'token', proof => 'highest');
SQL

# kill -9 right after each acknowledgement
my $token = 0;
for my $act ([ 'the first', "SELECT lease_observe('far', 1)" ],
	[ 'a raise', "SELECT lease_observe('far', 2)" ],
	[ 'a raise below a savepoint', "BEGIN; SAVEPOINT s; SELECT lease_observe('far', 3); RELEASE s; COMMIT" ],
	[ 'a raise by a guarded row', 'INSERT INTO copy VALUES (1, 4)' ],
	[ 'a raise by hand', "UPDATE leader_lease_observed SET fencing_token = 5 WHERE resource = 'far'" ])
{
	$token++;
	$primary->safe_psql('postgres', 'INSERT INTO plain VALUES (1)');
	is(sqlstate($primary, $act->[1]), '00000', "$act->[0] is acknowledged");
	$primary->kill9;
	$primary->start;
	is($primary->safe_psql('postgres', "SELECT fencing_token FROM lease_observed WHERE resource = 'far'"), $token, 'and survives kill -9');
	is($primary->safe_psql('postgres', "SELECT lease_observe('far', @{[ $token - 1 ]}), lease_observe('far', $token)"), 'f|t', 'and refuses the past');
}

# a prepared transaction keeps its observation over a restart
$primary->safe_psql('postgres', "BEGIN; SELECT lease_observe('far', 5); INSERT INTO copy VALUES (2); PREPARE TRANSACTION 'keeps'");
for my $how ('restart', 'crash')
{
	$how eq 'crash' ? $primary->kill9 : $primary->stop;
	$primary->start;
	is(sqlstate($primary, "SET leader_lease.takeover_timeout = 0; SELECT lease_observe('far', 6)"), '55P03', "a prepared observation holds after a $how");
}
$primary->safe_psql('postgres', "COMMIT PREPARED 'keeps'");
is(sqlstate($primary, "SELECT lease_observe('far', 6)"), '00000', 'until it ends');

# a standby answers nobody, knows it all, and refuses the past once it is promoted
$primary->backup('backup');
my $standby = new_standby('standby', $primary, 'backup');
is($primary->safe_psql('postgres', "SELECT lease_observe('far', 7)"), 't', 'a raise on the primary');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
is(sqlstate($standby, "SELECT lease_observe('far', 7)"), '25006', 'a standby observes nothing');
is(sqlstate($standby, "SELECT lease_observe('far', 6)"), '25006', 'not even the past');
is($standby->safe_psql('postgres', "SELECT fencing_token FROM lease_observed WHERE resource = 'far'"), '7', 'but shows');
$primary->kill9;
$standby->promote;
is($standby->safe_psql('postgres', "SELECT lease_observe('far', 6), lease_observe('far', 7)"), 'f|t', 'promoted, it goes on');
is(sqlstate($standby, 'BEGIN ISOLATION LEVEL REPEATABLE READ; INSERT INTO copy VALUES (3, 7); COMMIT'), '00000', 'by tokens of before');
is(sqlstate($standby, 'INSERT INTO copy VALUES (3, 6)'), 'LF001', 'and not by older ones');
is(sqlstate($standby, 'INSERT INTO copy VALUES (3, 8)'), '00000', 'and by newer ones');

$standby->stop;
done_testing();
