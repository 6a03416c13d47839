# What the TAP tests share.
package LeaseTest;
use strict;
use warnings;
use Exporter 'import';
use PostgreSQL::Test::Cluster;

our @EXPORT = qw(new_primary new_standby sqlstate upsert);

our $setup = <<'SQL';
CREATE EXTENSION leader_lease;
CREATE TABLE job (id int, token bigint);
SELECT lease_protect('job', 'job', 'token');
SQL

sub new_primary
{
	my ($name, %params) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(allows_streaming => 1, %params);
	$node->append_conf('postgresql.conf', 'autovacuum = off');
	$node->start;
	return $node;
}

sub new_standby
{
	my ($name, $primary, $backup) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init_from_backup($primary, $backup, has_streaming => 1);
	$node->start;
	return $node;
}

# The SQLSTATE that a script ends with, '00000' where it succeeds.
sub sqlstate
{
	my ($node, $sql) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY sqlstate\n$sql");

	return '00000' if $rc == 0;
	return $err =~ /(?:ERROR|FATAL):\s+(\w{5})/ ? $1 : $err;
}

# The upsert of a hand-made lease table.
sub upsert
{
	my ($role, $holder) = @_;

	return <<"SQL";
INSERT INTO leader_lease AS l (role, holder_id, fencing_token, expires_at)
VALUES ('$role', '$holder', 1, clock_timestamp() + interval '1 hour')
ON CONFLICT (role) DO UPDATE
   SET holder_id = EXCLUDED.holder_id, fencing_token = l.fencing_token + 1, expires_at = EXCLUDED.expires_at
 WHERE l.expires_at <= clock_timestamp()
RETURNING fencing_token
SQL
}

1;
