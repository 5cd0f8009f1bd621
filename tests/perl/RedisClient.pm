# A client of Redis' protocol that says everything byte by byte as it is told.
#
#   my $client = RedisClient->new($port);
#   $client->command('SET', "k\0", 'v');   # text, number, undef, or array
#   $client->send(...); $client->answer;   # the same in two steps
#
# An error is the text "-ERR ...": /^-[A-Z]/, which no number is.

package RedisClient;

use strict;
use warnings;

use Carp;
use IO::Select;
use IO::Socket::INET;

our $timeout = 60;

sub new
{
	my ($class, $port) = @_;
	my $socket = IO::Socket::INET->new(
		PeerAddr => '127.0.0.1',
		PeerPort => $port,
		Proto => 'tcp') or return undef;

	binmode $socket;
	$socket->autoflush(1);
	return bless { socket => $socket, rest => '', raw => '' }, $class;
}

sub encode
{
	my (@words) = @_;
	return join '', '*', scalar @words, "\r\n", map { ('$', length $_, "\r\n", $_, "\r\n") } @words;
}

sub send
{
	my ($self, @words) = @_;
	local $SIG{PIPE} = 'IGNORE';
	print { $self->{socket} } encode(@words);
	return $self;
}

sub command
{
	my ($self, @words) = @_;
	return $self->send(@words)->answer;
}

# The next answer, or message of a subscription; undef also if none comes in time
# or the connection is gone.  raw: its bytes.
sub answer
{
	my ($self, $seconds) = @_;

	$self->{raw} = '';
	$self->{seconds} = $seconds // $timeout;
	return $self->_value;
}

sub raw { return $_[0]->{raw}; }

sub _value
{
	my ($self) = @_;
	my $line = $self->_take(sub { index($_[0], "\r\n") + 2 }) // return undef;
	my ($type, $rest) = $line =~ /\A(.)(.*)\r\n\z/s or croak "not of the protocol: $line";

	return "-$rest" if $type eq '-';
	return $rest if $type eq '+' || $type eq ':';
	return undef if $rest < 0;
	if ($type eq '$')
	{
		my $bytes = $self->_take(sub { length $_[0] >= $rest + 2 ? $rest + 2 : 0 });
		return defined $bytes ? substr($bytes, 0, $rest) : undef;
	}
	return [ map { $self->_value } 1 .. $rest ] if $type eq '*';
	croak "not of the protocol: $line";
}

# As many bytes as the function wants of what is there; below 2: it needs more.
sub _take
{
	my ($self, $wanted) = @_;

	while ((my $length = $wanted->($self->{rest})) < 2)
	{
		return undef unless IO::Select->new($self->{socket})->can_read($self->{seconds});
		sysread($self->{socket}, $self->{rest}, 65536, length $self->{rest}) or return undef;
	}
	my $bytes = substr $self->{rest}, 0, $wanted->($self->{rest}), '';
	$self->{raw} .= $bytes;
	return $bytes;
}

1;
