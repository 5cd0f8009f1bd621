# A Redis that is reached by a unix socket: one that is not there fails at once,
# which is said like any other failure, and tried again in time.

use strict;
use warnings;

use RedisLeases;
use RedisServer;
use LeaseSessions qw(lease_node);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

plan skip_all => 'no redis-server here' unless RedisServer::available();

my $path = PostgreSQL::Test::Utils::tempdir_short() . "/redis";
my $redis = RedisServer->new;
my $node = lease_node('socket');
my $s;

$node->safe_psql('postgres', qq{
	CREATE SERVER locks FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (socket '$path');
	SELECT lease_fence.add_profile(name => 'locks', prefix => 'stock:', servers => '{locks}');
});

sub acquire { return $s->query("SELECT token > 0 FROM lease_fence.acquire('$_[0]', '30s', wait => '5s', scope => 'detached', holder => 'a')"); }

# ---- there is no socket ----

$s = session($node);
my $started = time;
acquire('stock:1');
is($s->state, 'LF020', 'no socket: whoever asks is told so');
cmp_ok(time - $started, '<', 4, '... at once');
like($s->query("SELECT last_error FROM lease_fence.worker_status WHERE server = 'locks'"),
	qr/could not connect/, '... and the view says why');

# ---- there is one ----

symlink $redis->socket, $path or die $!;
wait_until('the socket is used', sub { acquire('stock:1'); return $s->state eq '00000'; });
is(acquire('stock:2'), 't', 'the socket is there: leases are granted');

# ---- it is gone while leases are live: the worker wants the server back ----

unlink $path or die $!;
$redis->must('CLIENT', 'KILL', 'TYPE', 'normal');
wait_until('the loss is seen',
	sub { return $s->query("SELECT connected FROM lease_fence.worker_status WHERE server = 'locks'") eq 'f'; });
my $before = cpu_of(worker_of($s));
sleep 2;    # what the worker does meanwhile is the subject
cmp_ok(cpu_of(worker_of($s)) - $before, '<', 0.5, 'a socket that is missing is no busy loop');

$s->quit;
$node->stop;
done_testing();
