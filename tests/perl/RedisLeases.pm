# A server whose resources are handed out by a Redis, with a guarded table, and
# what the tests of that have in common.
#
#   my $node = redis_node('name', $redis, 'profile arguments', @conf);
#   my $s = session($node);                # a LeaseSessions
#   holder_of($redis, 'stock:1');          # what Redis has, undef: nothing
#   is_fenced($s, 1, $token, 'LF001', 'what');

package RedisLeases;

use strict;
use warnings;

use Exporter 'import';
use LeaseSessions qw(lease_node wait_until now);
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(redis_node session value_of time_left write_as is_fenced wait_until now
  state_of seconds add_server worker_of cpu_of);

sub add_server
{
	my ($node, $name, $redis, $options) = @_;
	$node->safe_psql('postgres', sprintf "CREATE SERVER %s FOREIGN DATA WRAPPER lease_fence_redis"
		  . " OPTIONS (host '127.0.0.1', port '%s'%s)", $name, $redis->port, $options ? ", $options" : '');
	return;
}

# Profile "locks" for stock:..., with further arguments; a table with rows 1 to 40.
sub redis_node
{
	my ($name, $redis, $profile, @conf) = @_;
	my $node = lease_node($name, @conf);

	add_server($node, 'locks', $redis);
	$node->safe_psql('postgres', "SELECT lease_fence.add_profile(name => 'locks', prefix => 'stock:', servers => '{locks}'"
		  . ($profile ? ", $profile" : '') . ')');
	$node->safe_psql('postgres', q{
		CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL);
		INSERT INTO stock SELECT g, 1000 FROM generate_series(1, 40) g;
		SELECT lease_fence.protect('stock', 'stock:{id}')});
	return $node;
}

sub session { my ($node, $name, %option) = @_; return LeaseSessions->new($node, name => $name // 'session', %option); }

# Of a string.
sub value_of { my ($redis, $key) = @_; return $redis->must('GET', $key); }

# In milliseconds.
sub time_left { my ($redis, $key) = @_; return $redis->must('PTTL', $key); }

# The SQLSTATE of one write under a token, in a transaction of its own.
sub write_as
{
	my ($session, $id, $token) = @_;
	$session->query("BEGIN; SET LOCAL lease_fence.token = '$token'; UPDATE stock SET n = n - 1 WHERE id = $id");
	my $state = $session->state;
	$session->query('ROLLBACK');
	return $state;
}

sub is_fenced
{
	my ($session, $id, $token, $state, $what) = @_;
	return is(write_as($session, $id, $token), $state, $what);
}

# Of the grant in view leases.
sub state_of
{
	my ($session, $resource) = @_;
	return $session->query("SELECT state FROM lease_fence.leases WHERE resource = '$resource'");
}

# An interval in seconds; '' if it is NULL.
sub seconds
{
	my ($session, $expression) = @_;
	return $session->query("SELECT extract(epoch FROM $expression)");
}

sub worker_of
{
	my ($session) = @_;
	return $session->query("SELECT pid FROM pg_stat_activity WHERE backend_type = 'lease_fence worker'");
}

# Seconds of processor time that a process has used.
sub cpu_of
{
	my ($pid) = @_;
	open my $file, '<', "/proc/$pid/stat" or return 0;
	my @fields = split / /, (<$file> =~ s/.*\) //r);
	return ($fields[11] + $fields[12]) / 100;
}

1;
