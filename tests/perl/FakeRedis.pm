# A server that answers as the real Redis behind it does, until it is told to
# misbehave.
#
#   my $fake = FakeRedis->new($redis);
#   $fake->misbehave('garbage');             # from now on, to every EVAL and EVALSHA
#   $fake->misbehave('silent', 'PING|ROLE'); # or to these commands; 'connect': at once
#   $fake->behave;
#   $fake->connections; $fake->commands;     # made so far; their names
#
# A subscription gets its first answer, and no messages.

package FakeRedis;

use strict;
use warnings;

use Carp;
use File::Temp;
use IO::Socket::INET;
use POSIX ();
use RedisClient;
use Socket;
use Time::HiRes qw(sleep);

# What is done with a question: each gets the connection, the right answer, and
# the words that it was asked with.
my %misbehaviour = (
	garbage => sub { _write($_[0], "HTTP/1.1 400 Bad Request\r\n\r\n<html>\0\xff") },
	binary => sub { _write($_[0], join '', map { chr(($_ * 37) % 256) } 1 .. 4096) },
	silent => sub { sleep 3600 },
	half => sub { _write($_[0], substr $_[1], 0, length($_[1]) / 2); close $_[0]; POSIX::_exit(0) },
	close => sub { close $_[0]; POSIX::_exit(0) },
	reset => sub { _reset($_[0]) },
	half_reset => sub { _write($_[0], substr $_[1], 0, length($_[1]) / 2); _reset($_[0]) },
	dribble => sub { _dribble($_[0], $_[1]) },
	endless_dribble => sub { _write($_[0], '+'); _dribble($_[0], 'x') while 1 },
	endless_line => sub { _write($_[0], '+'); _write($_[0], 'x' x 65536) while 1 },
	endless_bulk => sub { _write($_[0], "\$500000000000\r\n"); _write($_[0], 'x' x 65536) while 1 },
	endless_array => sub { _write($_[0], "*1000000000\r\n"); _write($_[0], ":1\r\n" x 16384) while 1 },
	endless_answers => sub { _write($_[0], $_[1] x 1000) while 1 },
	huge_array => sub { _write($_[0], "*2147483647\r\n:0\r\n") },
	huger_array => sub { _write($_[0], "*9223372036854775807\r\n:0\r\n") },
	huge_bulk => sub { _write($_[0], "\$9223372036854775807\r\nx") },
	negative => sub { _write($_[0], "*-5\r\n\$-7\r\n") },
	deep => sub { _write($_[0], "*1\r\n" x 100000) },
	nothing => sub { _write($_[0], "*0\r\n") },
	nil => sub { _write($_[0], "\$-1\r\n") },
	text => sub { _write($_[0], "\$5\r\nhello\r\n") },
	number => sub { _write($_[0], ":42\r\n") },
	texts => sub { _write($_[0], "*2\r\n\$1\r\n0\r\n\$4\r\n9999\r\n") },
	three => sub { _write($_[0], "*3\r\n:0\r\n:9999\r\n:0\r\n") },
	unknown_state => sub { _write($_[0], "*2\r\n:77\r\n:9999\r\n") },
	held_for_ever => sub { _write($_[0], "*2\r\n:0\r\n:-1\r\n") },
	held_too_long => sub { _write($_[0], "*2\r\n:0\r\n:9223372036854775807\r\n") },
	empty_error => sub { _write($_[0], "-\r\n") },
	error => sub { _write($_[0], "-ERR something odd\r\n") },
	echo => sub { _write($_[0], "-ERR unknown command, with args beginning with: @{$_[2]}\r\n") },
	rude => sub { _write($_[0], "-ERR \e[31m\a\xff\xfe\nLOG:  forged\x7f\xc3\r\n") },
	twice => sub { _write($_[0], $_[1] x 2) });

sub misbehaviours { return sort keys %misbehaviour; }

my @fakes;

sub new
{
	my ($class, $redis) = @_;
	my $self = bless {
		owner => $$,
		dir => File::Temp->newdir('lf_fake_XXXXXX', TMPDIR => 1),
		behind => $redis->port,
		listener => IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 100, ReuseAddr => 1)
	}, $class;

	croak "no port: $!" unless $self->{listener};
	$self->{port} = $self->{listener}->sockport;
	$self->{pid} = fork // croak $!;
	if (!$self->{pid})
	{
		eval { $self->_serve };
		POSIX::_exit(0);
	}
	close delete $self->{listener};
	push @fakes, $self;
	return $self;
}

sub port { return $_[0]->{port}; }

# Of connections that are open, too.
sub misbehave
{
	my ($self, $how, $commands) = @_;
	croak "no such misbehaviour: $how" unless $misbehaviour{$how};
	_put("$self->{dir}/order.new", '>', $how . ' ' . ($commands // 'EVAL|EVALSHA'));
	rename "$self->{dir}/order.new", "$self->{dir}/order" or croak $!;
	return $self;
}

sub behave { unlink "$_[0]->{dir}/order"; return $_[0]; }
sub connections { return -s "$_[0]->{dir}/connections" // 0; }
sub commands { return split ' ', _get("$_[0]->{dir}/commands"); }

sub stop
{
	my ($self) = @_;
	my $pid = delete $self->{pid} or return;
	kill 'KILL', -$pid;			# those of its connections too
	waitpid $pid, 0;
	return;
}

END
{
	local $?;
	$_ && $_->{owner} == $$ && $_->stop foreach @fakes;
	@fakes = ();
}

# ---- its processes: one that accepts, and one for each connection ----

sub _serve
{
	my ($self) = @_;
	setpgrp;
	$SIG{CHLD} = 'IGNORE';
	while (my $connection = $self->{listener}->accept)
	{
		_put("$self->{dir}/connections", '>>', '.');
		next if fork;
		close $self->{listener};
		eval { $self->_talk($connection) };
		POSIX::_exit(0);
	}
	return;
}

sub _talk
{
	my ($self, $connection) = @_;
	my $client = bless { socket => $connection, rest => '', raw => '' }, 'RedisClient';
	my $behind = RedisClient->new($self->{behind});

	$SIG{PIPE} = 'DEFAULT';
	$connection->autoflush(1);
	$self->_perhaps($connection, 'connect', '');
	while (my $words = $client->answer(3600))
	{
		_put("$self->{dir}/commands", '>>', "$words->[0]\n");
		$behind->command(@$words) if $behind;
		my $right = $behind ? $behind->raw : "-ERR nothing is there\r\n";
		$self->_perhaps($connection, $words->[0], $right, $words) or _write($connection, $right);
	}
	return;
}

sub _perhaps
{
	my ($self, $connection, $command, $right, $words) = @_;
	my ($how, $commands) = split / /, _get("$self->{dir}/order"), 2;

	return 0 unless defined $how && $command =~ /^($commands)$/i;
	$misbehaviour{$how}->($connection, $right, $words);
	return 1;
}

# Ends the process when the client has gone.
sub _write
{
	my ($connection, $bytes) = @_;
	while (length $bytes)
	{
		my $written = syswrite $connection, $bytes;
		POSIX::_exit(0) unless $written;
		substr($bytes, 0, $written) = '';
	}
	return;
}

sub _dribble
{
	my ($connection, $bytes) = @_;
	foreach my $byte (split //, $bytes)
	{
		_write($connection, $byte);
		sleep 0.02;
	}
	return;
}

sub _reset
{
	my ($connection) = @_;
	setsockopt $connection, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0);
	close $connection;
	POSIX::_exit(0);
}

sub _put
{
	my ($name, $mode, $text) = @_;
	open my $file, $mode, $name or croak "$name: $!";
	syswrite $file, $text;
	close $file;
	return;
}

sub _get
{
	my ($name) = @_;
	open my $file, '<', $name or return '';
	local $/;
	return scalar(<$file>) // '';
}

1;
