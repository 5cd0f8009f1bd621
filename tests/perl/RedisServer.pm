# A real redis-server, on a free port of 127.0.0.1 and on a unix socket, that
# keeps nothing on disk unless told to, and is gone when the test is.
#
#   my $redis = RedisServer->new('maxmemory-policy' => 'noeviction');
#   $redis->command('SET', 'k', 'v');          # see RedisClient
#   $redis->cli('INFO', 'server');             # the same as text
#   $redis->restart('maxmemory' => '2mb');     # same port, further options
#
# An option whose value is an array is given several times.  Not of Redis:
#   environment => { LD_PRELOAD => ... }
#
#   my $python = $redis->python;               # a python with redis-py, r connected
#   $python->run("lock = r.lock('k', timeout=5)");
#   $python->value("lock.acquire(blocking=False)")    # 'True'

package RedisServer;

use strict;
use warnings;

use Carp;
use File::Temp;
use IO::Socket::INET;
use POSIX qw(WNOHANG);
use RedisClient;
use RedisPython;
use Time::HiRes qw(sleep time);

my @servers;

sub available
{
	return grep { -x "$_/redis-server" } split(/:/, $ENV{PATH} // ''), '/usr/bin';
}

sub free_port
{
	my $socket = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 0, Listen => 1)
	  or croak "no port: $!";
	return $socket->sockport;
}

sub new
{
	my ($class, %options) = @_;
	my $self = bless {
		environment => delete $options{environment} // {},
		dir => File::Temp->newdir('lf_redis_XXXXXX', TMPDIR => 1),
		owner => $$,
		options => {
			'bind' => '127.0.0.1',
			'save' => '""',
			'appendonly' => 'no',
			'enable-debug-command' => 'yes',
			'repl-diskless-sync-delay' => 0,
			%options
		},
	}, $class;

	push @servers, $self;
	# Somebody else may have taken the port in the meantime.
	for my $try (1 .. 5)
	{
		$self->{port} = free_port();
		return $self if $self->_try_start;
	}
	croak "redis-server does not start: " . $self->log;
}

sub host { return '127.0.0.1'; }
sub port { return $_[0]->{port}; }
sub socket { return "$_[0]->{dir}/socket"; }
sub dir { return "$_[0]->{dir}"; }
sub pid { return $_[0]->{pid}; }

sub log
{
	my ($self) = @_;
	open my $file, '<', "$self->{dir}/log" or return '';
	local $/;
	return scalar <$file>;
}

# ---- starting and stopping ----

sub start
{
	my ($self) = @_;
	$self->_try_start or croak "redis-server does not start: " . $self->log;
	return $self;
}

# Does not wait until it is ready: it may be told not to be, as with a large file
# to load.
sub launch
{
	my ($self) = @_;
	my %options = %{ $self->{options} };

	open my $file, '>', "$self->{dir}/conf" or croak $!;
	print $file "port $self->{port}\nunixsocket $self->{dir}/socket\ndir $self->{dir}\n";
	foreach my $name (sort keys %options)
	{
		print $file "$name $_\n" foreach ref $options{$name} ? @{ $options{$name} } : $options{$name};
	}
	close $file;

	$self->{pid} = fork // croak $!;
	return $self if $self->{pid};

	open STDIN, '<', '/dev/null';
	open STDOUT, '>>', "$self->{dir}/log";
	open STDERR, '>&', \*STDOUT;
	local @ENV{ keys %{ $self->{environment} } } = values %{ $self->{environment} };
	{ no warnings; exec 'redis-server', "$self->{dir}/conf"; }
	{ no warnings; exec '/usr/bin/redis-server', "$self->{dir}/conf"; }
	POSIX::_exit(127);
}

sub _try_start
{
	my ($self) = @_;
	return $self->launch->wait_ready;
}

# Until it answers, also that it is loading or wants a password; false if it ended.
sub wait_ready
{
	my ($self) = @_;
	my $until = time + $RedisClient::timeout;

	while (time < $until)
	{
		return 0 unless $self->is_running;
		my $client = $self->client;
		my $answer = $client && $client->command('PING');
		return $self if defined $answer && $answer !~ /^-LOADING/;
		sleep 0.02;
	}
	return 0;
}

sub is_running
{
	my ($self) = @_;
	return 0 unless $self->{pid};
	return 1 if waitpid($self->{pid}, WNOHANG) == 0;
	delete $self->{pid};
	return 0;
}

sub _end
{
	my ($self, $signal) = @_;
	return $self unless $self->{pid};
	kill $signal, $self->{pid};
	kill 'CONT', $self->{pid};	# it may be stopped
	waitpid $self->{pid}, 0;
	delete $self->{pid};
	return $self;
}

sub stop { return $_[0]->_end('TERM'); }
sub kill9 { return $_[0]->_end('KILL'); }

# Stopped, it is silent: its connections stay, and new ones can be made.
sub stop_signal { kill 'STOP', $_[0]->{pid}; return $_[0]; }
sub continue { kill 'CONT', $_[0]->{pid}; return $_[0]; }

# On the same port; what it had is lost, unless it saved it.
sub restart
{
	my ($self, %options) = @_;
	$self->kill9;
	$self->{environment} = delete $options{environment} if $options{environment};
	$self->{options} = { %{ $self->{options} }, %options };
	return $self->start;
}

# ---- commands ----

sub client { return RedisClient->new($_[0]->{port}); }

# Over a connection of its own, so that nothing of the last one matters.
sub command
{
	my ($self, @words) = @_;
	my $client = $self->client or croak "redis-server is not to be reached";
	return $client->command(@words);
}

sub cli
{
	my ($self, @words) = @_;
	return _text($self->command(@words));
}

sub _text
{
	my ($value) = @_;
	return ref $value ? join("\n", map { _text($_) } @$value) : $value // '';
}

sub must
{
	my ($self, @words) = @_;
	my $answer = $self->command(@words);
	croak "@words: $answer" if defined $answer && $answer =~ /^-[A-Z]/;
	return $answer;
}

sub config_set { my ($self, @pairs) = @_; return $self->must('CONFIG', 'SET', @pairs); }
sub flushall { return $_[0]->must('FLUSHALL'); }

# Memory is full from now on, until memory_free.
sub memory_full { return $_[0]->config_set('maxmemory', 1); }
sub memory_free { return $_[0]->config_set('maxmemory', 0); }

sub python { my ($self, %options) = @_; return RedisPython->new($self, %options); }

END
{
	local $?;
	$_ && $_->{owner} == $$ && $_->kill9 foreach @servers;
	@servers = ();
}

1;
