# Leaders of many terms write at once, with tokens that keep rising: whoever writes by a token has seen all that was
# written by lower ones, and nothing by a lower one comes after it.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_primary('main');
$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION leader_lease;
-- each row says how many rows of lower tokens its writer saw
CREATE TABLE written (id bigserial PRIMARY KEY, token bigint, seen bigint, how text);
CREATE INDEX ON written (token);
SELECT lease_protect('written', 'storm', 'token', proof => 'highest');
CREATE TABLE other (i int);
CREATE FUNCTION leader(behind int, way text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	t bigint := (extract(epoch FROM clock_timestamp()) * 10)::bigint - behind;
BEGIN
	IF way = 'row' THEN
		INSERT INTO written (token, seen, how) SELECT t, count(*), way FROM written WHERE token < t;
	ELSIF way = 'setting' THEN
		PERFORM set_config('leader_lease.fence', json_build_object('role', 'storm', 'holder', 'x', 'token', t)::text, true);
		INSERT INTO written (seen, how) SELECT count(*), way FROM written WHERE token < t;
	ELSIF lease_observe('storm', t) THEN
		PERFORM pg_sleep(0.002);
		INSERT INTO written (seen, how) SELECT count(*), way FROM written WHERE token < t;
	ELSE
		RETURN 'false';
	END IF;
	RETURN 'written';
EXCEPTION WHEN SQLSTATE 'LF001' OR serialization_failure OR lock_not_available THEN
	RETURN SQLSTATE;
END $$;
SQL

# with and without commits of bystanders
my $script = $node->basedir . '/storm';
append_to_file("$script.$_->[0]", "\\set behind random(0, 3)\n\\set how random(1, 3)\n$_->[1]"
		. "SELECT leader(:behind, (ARRAY['row', 'setting', 'observed'])[:how]);\n")
  for ([ 'alone', '' ], [ 'bystander', "INSERT INTO other VALUES (1);\n" ]);
$node->command_ok([ 'pgbench', '-n', '-f', "$script.alone\@4", '-f', "$script.bystander", '-c', '8', '-j', '2', '-T', '6',
		$node->connstr('postgres') ], 'a storm of writers');

cmp_ok($node->safe_psql('postgres', 'SELECT count(DISTINCT token) FROM written'), '>', 20, 'there were many terms');
is($node->safe_psql('postgres', 'SELECT count(DISTINCT how) FROM written'), '3', 'that wrote in all ways');
is( $node->safe_psql('postgres', 'SELECT how, count(*) FROM written w
		 WHERE seen <> (SELECT count(*) FROM written b WHERE b.token < w.token) GROUP BY how'),
	'', 'nothing by a lower token was missed, or came later');

$node->stop;
done_testing();
