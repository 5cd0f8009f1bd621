# Sessions that a test drives side by side: each is a psql of its own, told what
# to do without waiting for it, and asked for the answer later.
#
#   my $s = LeaseSessions->new($node);
#   $s->send("SELECT ...");        # returns at once
#   $s->busy                       # still at it?
#   my $text = $s->answer;         # waits for it; $s->state is its SQLSTATE
#   $s->query("SELECT ...")        # both

package LeaseSessions;

use strict;
use warnings;

use Carp;
use IO::Select;
use IPC::Open3;
use POSIX ();
use Time::HiRes qw(time sleep);
use Exporter 'import';

our @EXPORT_OK = qw(lease_node wait_until now has_points);

my $timeout = 120;

# A running server with the extension in database postgres.
sub lease_node
{
	my ($name, @conf) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init;
	$node->append_conf('postgresql.conf',
		join("\n", "shared_preload_libraries = 'lease_fence'",
			"log_line_prefix = '%m [%p] %a '", "max_connections = 60",
			"max_prepared_transactions = 10", "lease_fence.databases = 'postgres'",
			@conf, ''));
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION lease_fence');
	return $node;
}

# Was the library built with points at which a test can stop it?
sub has_points
{
	my ($node) = @_;
	return $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_settings WHERE name = 'lease_fence.test_point'");
}

sub now { return time; }

sub wait_until
{
	my ($what, $condition) = @_;
	my $until = time + $timeout;

	until ($condition->())
	{
		croak "timed out waiting until $what" if time > $until;
		sleep 0.02;
	}
	return 1;
}

sub new
{
	my ($class, $node, %option) = @_;
	my $self = bless { number => 0, state => '', text => '' }, $class;
	my $connect = sprintf "host=%s port=%s dbname=%s user=%s application_name='%s'",
	  $option{host} // $node->host, $option{port} // $node->port,
	  $option{dbname} // 'postgres', $option{user} // (getpwuid($<))[0],
	  $option{name} // 'session';

	# stderr goes where stdout goes, so that errors come in their place
	$self->{child} = open3($self->{in}, $self->{out}, undef,
		$node->installed_command('psql'), '-XAtq', '-v', 'ON_ERROR_STOP=0', $connect);
	$self->{in}->autoflush(1);
	$self->query("\\set SHOW_CONTEXT never") unless $option{no_wait};
	$self->{pid} = $self->query('SELECT pg_backend_pid()') unless $option{no_wait};
	return $self;
}

sub send
{
	my ($self, $sql) = @_;

	croak "the last statement was not answered yet" if $self->{open};
	$self->{number}++;
	$self->{text} = '';
	$self->{open} = 1;
	local $SIG{PIPE} = 'IGNORE';
	print { $self->{in} } "$sql\n;\n\\echo done $self->{number} :SQLSTATE\n";
	return $self;
}

# Takes in what is there; waits at most that long for it.
sub take_in
{
	my ($self, $seconds) = @_;

	return unless $self->{open};
	return unless IO::Select->new($self->{out})->can_read($seconds);
	my $read = sysread $self->{out}, $self->{text}, 65536, length $self->{text};
	if (!$read)
	{
		$self->{open} = 0;
		$self->{state} = 'gone';
	}
	elsif ($self->{text} =~ s/^done $self->{number} (\S+)\n\z//m)
	{
		$self->{open} = 0;
		$self->{state} = $1;
		chomp $self->{text};
	}
}

sub busy
{
	my ($self) = @_;
	$self->take_in(0);
	return $self->{open};
}

sub answer
{
	my ($self) = @_;
	my $until = time + $timeout;

	while ($self->{open})
	{
		croak "no answer; so far: $self->{text}" if time > $until;
		$self->take_in(0.5);
	}
	return $self->{text};
}

sub query
{
	my ($self, $sql) = @_;
	return $self->send($sql)->answer;
}

# The token of a lease; dies if it is not to be had.
sub lease
{
	my ($self, $arguments) = @_;
	my $token = $self->query("SELECT token FROM lease_fence.acquire($arguments)");

	croak "no lease: $token" unless $token =~ /^\d+$/;
	return $token;
}

sub state { return $_[0]->{state}; }
sub pid { return $_[0]->{pid}; }

# The client dies; the server finds its socket closed.
sub vanish
{
	my ($self) = @_;
	kill 'KILL', $self->{child};
	$self->reap;
}

sub reap
{
	my ($self) = @_;
	return unless $self->{child};
	close $self->{in};
	close $self->{out};
	waitpid $self->{child}, 0;
	delete $self->{child};
}

sub quit
{
	my ($self) = @_;
	return unless $self->{child};
	kill 'KILL', $self->{child} if $self->{open};
	$self->reap;
}

sub DESTROY
{
	my ($self) = @_;
	local ($?, $@, $!);
	if ($self->{child})
	{
		kill 'KILL', $self->{child};
		$self->reap;
	}
}

1;
