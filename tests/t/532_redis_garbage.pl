# Redis answers what it should not: garbage, too much, without end.  Whatever it is,
# the lease is refused, and the worker neither dies, nor spins, nor grows.

use strict;
use warnings;

use FakeRedis;
use RedisFaults;
use RedisServer;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

plan skip_all => 'no redis-server here' unless RedisServer::available();

my $redis = RedisServer->new;
my $fake = FakeRedis->new($redis);
my $it = RedisFaults->new($fake->port, name => 'garbage', command_timeout => '200ms', connect_timeout => '300ms');

# In kB: memory that is the worker's own.
sub memory
{
	my ($pid) = @_;
	open my $file, '<', "/proc/$pid/status" or return 0;
	local $/;
	return <$file> =~ /^RssAnon:\s+(\d+)/m ? $1 : 0;
}

# Right answers, if late or more than once; which it is depends on the moment.
# held_too_long: as a lock of 9 x 10^18 ms would be, of the same holder.
my %harmless = map { $_ => 1 } qw(dribble twice endless_answers held_too_long);

sub try_lease
{
	return $it->try("SELECT lease_fence.acquire('" . $it->resource . "', ttl => '5s', scope => 'detached', wait => '10s')");
}

$it->works_again('at first');
my $worker = $it->worker_pid;
my $before = memory($worker);
my $timeout = 200;

foreach my $when ('EVAL|EVALSHA', 'INFO', 'connect')
{
	my $situation = $when =~ /EVAL/ ? 'a call' : $when eq 'INFO' ? 'the greeting' : 'connecting';

	foreach my $how (FakeRedis::misbehaviours())
	{
		next if $when ne 'EVAL|EVALSHA' && $harmless{$how};
		# a definition that changed is tried at once
		next if $when eq 'connect' && $how =~ /^(silent|half|half_reset)$/;	# as SIGSTOP, and close
		$fake->misbehave($how, $when);
		$it->sql("ALTER SERVER locks OPTIONS (SET command_timeout '" . ++$timeout . "ms')")
		  if $when ne 'EVAL|EVALSHA';
		my $began = time;
		my $state = try_lease();
		my $took = time - $began;
		if ($harmless{$how})
		{
			ok($state eq 'LF020' || $state eq '', "$how at $situation is borne");
		}
		else
		{
			is($state, 'LF020', "$how at $situation is refused with LF020");
		}
		cmp_ok($took, '<', 6, "$how at $situation ends soon");
		$fake->behave;
		$it->works_again("after $how at $situation") if $when eq 'EVAL|EVALSHA';
	}
	is($it->worker_pid, $worker, "$situation: it is the same worker still");
}
$it->works_again('after all');
# Of a renewal a number alone may be the answer: the one that was asked for.
my $token = $it->lease('stock:2', '10s');
$fake->misbehave('number');
is($it->try("SELECT lease_fence.renew($token, '1min')"), 'LF020', 'another number than the ttl, at a renewal, is refused');
$fake->behave;
$it->works_again('after another number than the ttl');
is($it->sql("SELECT lease_fence.renew($token, '1min') > '50s'"), 't', 'and the lease is renewed then');

# A lease that is watched makes the worker ask by itself.
$it->lease('stock:1', '10s');
my $first = -s $it->node->logfile;
my $made = $fake->connections;
$fake->misbehave('garbage');
$it->sql('SELECT pg_sleep(4)');		# it is looked at from 3.3 s on
$it->goes_on('garbage', 3);
cmp_ok($fake->connections - $made, '<', 40, 'garbage: the worker connects now and then');
my @lines = slurp_file($it->node->logfile, $first) =~ /server "locks" is (?:not )?available/g;
cmp_ok(scalar @lines, '<', 6, 'garbage: and does not fill the log');
$fake->behave;
cmp_ok(memory($worker) - $before, '<', 30_000, 'the worker has not grown');
$it->goes_on('in the end');
$it->works_again('in the end');
my $log = slurp_file($it->node->logfile);
unlike($log, qr/was terminated by signal|PANIC|TRAP/, 'nothing crashed');
$it->node->stop('fast');
done_testing();
