# The network between a client and Redis: a proxy on a port of its own that loses,
# holds back, delays, cuts or refuses.
#
#   my $proxy = RedisProxy->new($redis->port);
#   $proxy->lose;      # silently: connections stay open, and nothing comes through.
#                      # Those of that time stay dead, as when a firewall forgot them.
#   $proxy->hold;      # keeps what comes; at resume it arrives, even if its sender
#                      # has long gone
#   $proxy->resume;
#   $proxy->delay(ms); # of what comes from now on, each way
#   $proxy->cut;       # closes all connections
#   $proxy->refuse;    # nobody listens; until listen
#   $proxy->connections    # that were made so far
#   $proxy->holds('EVALSHA')    # is there such a word in what it has not passed on?

package RedisProxy;

use strict;
use warnings;

use Carp;
use IO::Handle;
use IO::Select;
use IO::Socket::INET;
use POSIX ();
use Socket;
use Time::HiRes qw(time);

my @proxies;

sub new
{
	my ($class, $target) = @_;
	my $self = bless { target => $target, owner => $$ }, $class;
	my $listener = _listen(0);

	$self->{port} = $listener->sockport;
	socketpair(my $ours, my $its, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or croak $!;
	$self->{control} = $ours;
	$ours->autoflush(1);
	$self->{pid} = fork // croak $!;
	if (!$self->{pid})
	{
		close $ours;
		eval { _serve({ %$self, listener => $listener, control => $its, mode => 'pass',
				delay => 0, made => 0, lines => [] }) };
		POSIX::_exit(0);
	}
	close $its;
	push @proxies, $self;
	return $self;
}

sub port { return $_[0]->{port}; }

# Each returns when it is so.
sub lose { return $_[0]->_tell('lose'); }
sub hold { return $_[0]->_tell('hold'); }
sub resume { return $_[0]->_tell('pass'); }
sub cut { return $_[0]->_tell('cut'); }
sub refuse { return $_[0]->_tell('refuse'); }
sub listen { return $_[0]->_tell('listen'); }
sub delay { return $_[0]->_tell("delay $_[1]"); }
sub connections { return $_[0]->_tell('count'); }
sub holds { return $_[0]->_tell("holds $_[1]"); }
*pause = \&lose;

sub _tell
{
	my ($self, $order) = @_;
	print { $self->{control} } "$order\n";
	my $answer = readline $self->{control};
	croak "the proxy has ended" unless defined $answer;
	chomp $answer;
	return $answer;
}

sub stop
{
	my ($self) = @_;
	my $pid = delete $self->{pid} or return;
	kill 'KILL', $pid;
	waitpid $pid, 0;
	return;
}

END
{
	local $?;
	$_ && $_->{owner} == $$ && $_->stop foreach @proxies;
	@proxies = ();
}

# ---- the proxy's process ----
#
# A line is one way of a connection: from, to, a queue of [due, bytes], lost, and
# ended when its sender has closed.

sub _listen
{
	my ($port) = @_;
	return IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 100,
		ReuseAddr => 1) || croak "port $port: $!";
}

sub _serve
{
	my ($self) = @_;
	local $SIG{PIPE} = 'IGNORE';

	while (1)
	{
		my $readers = IO::Select->new($self->{control}, $self->{listener} // (),
			map { $_->{ended} ? () : $_->{from} } @{ $self->{lines} });
		my $queued = grep { @{ $_->{queue} } } @{ $self->{lines} };

		my %ready = map { fileno $_ => 1 }
		  $readers->can_read($queued && $self->{mode} ne 'hold' ? 0.005 : 1);
		$_->{from}->opened && $ready{ fileno $_->{from} } && _take_in($self, $_) foreach @{ $self->{lines} };
		_accept($self) if $self->{listener} && $ready{ fileno $self->{listener} };
		_obey($self) if $ready{ fileno $self->{control} };
		_pass_on($self) if $self->{mode} ne 'hold';
	}
}

sub _obey
{
	my ($self) = @_;
	my $order = '';
	while ($order !~ /\n/)
	{
		sysread($self->{control}, $order, 1, length $order) or POSIX::_exit(0);	# the test is over
	}
	chomp $order;

	$self->{mode} = $order if $order =~ /^(lose|hold|pass)$/;
	$self->{delay} = $1 / 1000 if $order =~ /^delay (\d+)/;
	$_->{lost} = 1 foreach grep { $order eq 'lose' } @{ $self->{lines} };
	if ($order eq 'cut')
	{
		close $_->{from} foreach @{ $self->{lines} };
		$self->{lines} = [];
	}
	close delete $self->{listener} if $order eq 'refuse' && $self->{listener};
	$self->{listener} //= _listen($self->{port}) if $order eq 'listen';
	my $answer = 'done';
	$answer = $self->{made} if $order eq 'count';
	$answer = grep { index($_->[1] // '', $1) >= 0 } map { @{ $_->{queue} } } @{ $self->{lines} }
	  if $order =~ /^holds (.*)/;
	syswrite $self->{control}, "$answer\n";
	return;
}

sub _accept
{
	my ($self) = @_;
	my $client = $self->{listener}->accept or return;
	my $server = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $self->{target});
	my $lost = $self->{mode} eq 'lose';

	$self->{made}++;
	return unless $server;
	$_->blocking(0) foreach $client, $server;
	push @{ $self->{lines} },
	  { from => $client, to => $server, queue => [], lost => $lost },
	  { from => $server, to => $client, queue => [], lost => $lost };
	return;
}

sub _take_in
{
	my ($self, $line) = @_;
	my $length = sysread $line->{from}, my $bytes, 65536;

	return if !defined $length && $!{EAGAIN};
	$line->{ended} = 1 unless $length;
	push @{ $line->{queue} }, [ time + $self->{delay}, $length ? $bytes : undef ] unless $line->{lost};
	return;
}

sub _pass_on
{
	my ($self) = @_;

	foreach my $line (@{ $self->{lines} })
	{
		while (@{ $line->{queue} } && $line->{queue}[0][0] <= time)
		{
			my $bytes = $line->{queue}[0][1];
			if (!defined $bytes)
			{
				shutdown $line->{to}, 1;
				shift @{ $line->{queue} };
				next;
			}
			my $written = syswrite $line->{to}, $bytes;
			last if !defined $written && $!{EAGAIN};
			$written = length $bytes unless defined $written;	# nobody takes it any more
			substr($line->{queue}[0][1], 0, $written) = '';
			last if length $line->{queue}[0][1];
			shift @{ $line->{queue} };
		}
	}
	# Gone for good when both ways have ended and nothing is under way.
	my %open = map { fileno $_->{from} => !$_->{ended} || scalar @{ $_->{queue} } } @{ $self->{lines} };
	$self->{lines} =
	  [ grep { $_->{lost} || $open{ fileno $_->{from} } || $open{ fileno $_->{to} } } @{ $self->{lines} } ];
	return;
}

1;
