# A python process with the real redis-py, driven line by line; `r` is connected
# to the server.  A test without redis-py can ask RedisPython::available.

package RedisPython;

use strict;
use warnings;

use Carp;
use IPC::Open2;

my $loop = <<'PYTHON';
import redis, sys, threading, time
r = redis.Redis(host='127.0.0.1', port=int(sys.argv[1]), username=sys.argv[2] or None,
                password=sys.argv[3] or None, socket_timeout=60)
names = globals()
for line in sys.stdin:
    kind, code = line.split()
    code = bytes.fromhex(code).decode()
    try:
        answer = repr(eval(code, names)) if kind == 'value' else exec(code, names) or ''
    except BaseException as problem:
        answer = 'raised %s: %s' % (type(problem).__name__, problem)
    print(answer.encode().hex(), flush=True)
PYTHON

my $interpreter;

sub available
{
	($interpreter) = grep { system("$_ -c 'import redis' >/dev/null 2>&1") == 0 } '/usr/bin/python3', 'python3'
	  unless $interpreter;
	return $interpreter;
}

sub new
{
	my ($class, $server, %options) = @_;
	my $self = bless {}, $class;

	available() or croak "no python with redis-py";
	$self->{pid} = open2($self->{out}, $self->{in}, $interpreter, '-c', $loop,
		$options{port} // $server->port, $options{username} // '', $options{password} // '');
	$self->{in}->autoflush(1);
	return $self;
}

# Starts statements, or with 'value' an expression; its answer is to be fetched.
sub send
{
	my ($self, $code, $kind) = @_;
	printf { $self->{in} } "%s %s\n", $kind // 'run', unpack('H*', $code);
	return $self;
}

# The value as repr() has it; "raised LockError: ..." if it raised.
sub answer
{
	my ($self) = @_;
	my $line = readline $self->{out};
	croak "python has ended" unless defined $line;
	chomp $line;
	return pack 'H*', $line;
}

sub run { my ($self, $code) = @_; return $self->send($code)->answer; }
sub value { my ($self, $code) = @_; return $self->send($code, 'value')->answer; }

# A client that is paused, or dies.
sub stop_signal { kill 'STOP', $_[0]->{pid}; return; }
sub continue { kill 'CONT', $_[0]->{pid}; return; }

sub quit
{
	my ($self) = @_;
	my $pid = delete $self->{pid} or return;
	local ($?, $!, $@);
	kill 'KILL', $pid;
	waitpid $pid, 0;
	return;
}

sub DESTROY { $_[0]->quit; return; }

1;
