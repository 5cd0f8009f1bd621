# A server of PostgreSQL whose resources `stock:...` have their locks in Redis, and
# what is wanted of it whatever Redis does.
#
#   my $it = RedisFaults->new($redis->port);
#   $it->is_refused(qr/Connection refused/, 'Redis is down');
#   $it->goes_on('Redis is down');
#   $it->works_again('Redis is back');

package RedisFaults;

use strict;
use warnings;

use Carp;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

# %option: options of the server, and name, conf (further lines), port of Redis
# as `port`, profile (arguments of add_profile).
sub new
{
	my ($class, $port, %option) = @_;
	my $self = bless { number => 0 }, $class;
	my $profile = delete $option{profile} // '';
	my $conf = delete $option{conf} // '';
	my $node = $self->{node} = PostgreSQL::Test::Cluster->new(delete $option{name} // 'faults');

	$option{host} //= '127.0.0.1';
	$option{port} = $port;
	$option{command_timeout} //= '500ms';
	$option{connect_timeout} //= '500ms';
	$node->init;
	# named: however slow all is, the worker does not leave for having nothing to do
	$node->append_conf('postgresql.conf',
		"shared_preload_libraries = 'lease_fence'\nlease_fence.databases = 'postgres'\n$conf");
	$node->start;
	$self->sql('CREATE EXTENSION lease_fence');
	$self->set_up($_, $profile, %option) foreach 'postgres';
	return $self;
}

sub set_up
{
	my ($self, $database, $profile, %option) = @_;
	my $options = join ', ', map { "$_ '$option{$_}'" } sort keys %option;

	$self->{node}->safe_psql($database, <<"SQL");
CREATE EXTENSION IF NOT EXISTS lease_fence;
CREATE SERVER locks FOREIGN DATA WRAPPER lease_fence_redis OPTIONS ($options);
SELECT lease_fence.add_profile(name => 'locks', prefix => 'stock:', servers => '{locks}' $profile);
CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL);
INSERT INTO stock SELECT id, 100 FROM generate_series(1, 9) id;
SELECT lease_fence.protect('stock', resource => 'stock:{id}');
SQL
	return;
}

sub node { return $_[0]->{node}; }
sub sql { my ($self, $sql, $database) = @_; return $self->{node}->safe_psql($database // 'postgres', $sql); }
sub await { my ($self, $sql) = @_; return $self->{node}->poll_query_until('postgres', $sql); }

# SQLSTATE, and all that was said; '' when it went well.
sub try
{
	my ($self, $sql, $database) = @_;
	my ($status, $out, $error) = $self->{node}->psql($database // 'postgres', $sql,
		on_error_stop => 1,
		extra_params => [ '-v', 'VERBOSITY=verbose', '-v', 'SHOW_CONTEXT=never' ]);

	$self->{said} = $error;
	$self->{out} = $out;
	return '' if $status == 0;
	return $error =~ /(?:ERROR|FATAL):\s+([0-9A-Z]{5}):/ ? $1 : $error;
}

sub said { return $_[0]->{said}; }

sub resource { return 'stock:new-' . $_[0]->{number}++; }

# A detached lease's token.
sub lease
{
	my ($self, $resource, $ttl) = @_;
	return $self->sql("SELECT token FROM lease_fence.acquire('$resource', ttl => '"
		  . ($ttl // '5min') . "', scope => 'detached', wait => '60s')");
}

# The lease of a row, written under that token: '' or the SQLSTATE.
sub write_as
{
	my ($self, $token, $id) = @_;
	return $self->try("BEGIN; SET LOCAL lease_fence.token = '$token'; UPDATE stock SET n = n - 1 WHERE id = $id; COMMIT;");
}

sub worker_pid
{
	my ($self, $database) = @_;
	$database //= 'postgres';
	return $self->sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'lease_fence worker' AND datname = '$database'");
}

# ---- what is wanted ----

# An acquire is refused with LF020 for this reason, and soon; so is the reason to
# be read in worker_status.  Between two tries to connect the reason is that of
# the one before, which may have been another one.
sub is_refused
{
	my ($self, $reason, $situation) = @_;
	my $until = time + 10;
	my ($state, $took);

	do
	{
		my $started = time;
		$state = $self->try("SELECT lease_fence.acquire('" . $self->resource . "', ttl => '5s', scope => 'detached', wait => '20s')");
		$took = time - $started;
	} until $state ne 'LF020' || $self->said =~ $reason || time > $until;
	is($state, 'LF020', "$situation: a lease is refused with LF020");
	like($self->said, $reason, "$situation: the message says why");
	cmp_ok($took, '<', 8, "$situation: it is refused soon");
	like($self->sql("SELECT coalesce(last_error, '') FROM lease_fence.worker_status"), $reason,
		"$situation: worker_status says why");
	return;
}

sub works_again
{
	my ($self, $situation) = @_;
	my $until = time + 60;
	my $state;

	do
	{
		$state = $self->try("SELECT lease_fence.acquire('" . $self->resource . "', ttl => '1s', scope => 'detached', wait => '20s')");
		sleep 0.1 if $state eq 'LF020';
	} while ($state eq 'LF020' && time < $until);
	is($state, '', "$situation: leases are granted again");
	return;
}

# Seconds of CPU that a process has used.
sub cpu
{
	my ($pid) = @_;
	open my $file, '<', "/proc/$pid/stat" or return undef;
	my @fields = split ' ', (<$file> =~ s/^.*\) //sr);
	return ($fields[11] + $fields[12]) / (POSIX::sysconf(POSIX::_SC_CLK_TCK()) || 100);
}

# Whatever Redis does: leases of PostgreSQL's own are granted, rejected writes
# recorded, databases dropped, all of it soon; and the worker does not spin.
sub goes_on
{
	my ($self, $situation, $seconds) = @_;
	my $pid = $self->worker_pid;
	my $started = time;
	my $used = cpu($pid);

	my $own = $self->try("SELECT lease_fence.acquire('own:" . $self->resource . "', ttl => '5s', scope => 'detached')");
	my $rejected = $self->try("UPDATE stock SET n = n - 1 WHERE id = 9");
	my $took = time - $started;
	my $count = $self->sql("SELECT count(*) FROM lease_fence.rejected_writes WHERE key LIKE '%9%' AND at > now() - interval '1 min'");
	my $dropped = time;
	$self->sql('CREATE DATABASE passing TEMPLATE template0');
	$self->sql('DROP DATABASE passing');
	$dropped = time - $dropped;

	my $logged = $self->sql('SELECT audit_logged FROM lease_fence.worker_status LIMIT 1');
	is("$own $rejected", ' LF003', "$situation: leases of PostgreSQL's own and guards go on");
	cmp_ok($took, '<', 4, "$situation: they are not held up");
	ok($count > ($self->{recorded} // 0) || $count > 0, "$situation: the rejected write is recorded");
	is($logged, 0, "$situation: by the worker");
	cmp_ok($dropped, '<', 8, "$situation: a database can be dropped");
	is($self->worker_pid, $pid, "$situation: it is the same worker still");

	# At least so long is measured.
	$seconds //= 1;
	my $rest = $seconds - (time - $started);
	sleep $rest if $rest > 0;
	my $share = (cpu($pid) - $used) / (time - $started);
	cmp_ok($share, '<', 0.25, "$situation: the worker does not spin");
	return;
}

1;
