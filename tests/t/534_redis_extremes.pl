# Much of everything: events, reconnections, leases, time to live; and a clock of
# Redis that is put forward and back, and a name server that does not answer.

use strict;
use warnings;

use LeaseSessions qw(wait_until);
use RedisFaults;
use RedisServer;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

plan skip_all => 'no redis-server here' unless RedisServer::available();

# ---- libraries that stand between a program and its system ----

my $dir = PostgreSQL::Test::Utils::tempdir;

# undef where nothing can be compiled.
sub shim
{
	my ($name, $text) = @_;
	append_to_file("$dir/$name.c", $text);
	return system("cc -shared -fPIC -o $dir/$name.so $dir/$name.c -ldl -lpthread 2>$dir/$name.err") == 0
	  ? "$dir/$name.so" : undef;
}

# The wall clock goes as many seconds ahead as a file says.
my $clock = shim('clock', <<'C');
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long shift(void)
{
	long seconds = 0;
	FILE *file = fopen(getenv("CLOCK_SHIFT"), "r");
	if (file) { if (fscanf(file, "%ld", &seconds) != 1) seconds = 0; fclose(file); }
	return seconds;
}
int gettimeofday(struct timeval *time, void *zone)
{
	static int (*real)(struct timeval *, void *);
	int result;
	if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
	result = real(time, zone);
	time->tv_sec += shift();
	return result;
}
C

# A look-up of a name takes as long as a file is there; the C library's own
# getaddrinfo_a does not come by here.
my $names = shim('names', <<'C');
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef int (*look_up)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
static int slow(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
	look_up real = (look_up) dlsym(RTLD_NEXT, "getaddrinfo");
	if (host && strcmp(host, "redis.test") == 0)
	{
		if (hints && hints->ai_flags & AI_NUMERICHOST) return EAI_NONAME;
		while (access(getenv("NAMES_SILENT"), F_OK) == 0) usleep(20000);
		host = "127.0.0.1";
	}
	return real(host, service, hints, found);
}
int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
	return slow(host, service, hints, found);
}
static void *run(void *argument)
{
	struct gaicb *request = argument;
	struct addrinfo *found = NULL;
	int result = slow(request->ar_name, request->ar_service, request->ar_request, &found);
	request->ar_result = found;
	__atomic_store_n(&request->__return, result, __ATOMIC_RELEASE);
	return NULL;
}
int getaddrinfo_a(int mode, struct gaicb **list, int count, struct sigevent *event)
{
	sigset_t all, saved;
	pthread_t thread;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &saved);
	for (int i = 0; i < count; i++)
	{
		list[i]->__return = EAI_INPROGRESS;
		if (pthread_create(&thread, NULL, run, list[i]) != 0) abort();
		pthread_detach(thread);
	}
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
	return 0;
}
int gai_error(struct gaicb *request)
{
	return __atomic_load_n(&request->__return, __ATOMIC_ACQUIRE);
}
C

sub put
{
	my ($name, $text) = @_;
	open my $file, '>', "$dir/$name.new" or die $!;
	print $file $text;
	close $file;
	rename "$dir/$name.new", "$dir/$name";
	return;
}

# In kB: what is the process's own.
sub memory
{
	my ($pid) = @_;
	return slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+)/m ? $1 : 0;
}

sub files { my ($pid) = @_; return scalar(() = glob "/proc/$pid/fd/*"); }

put('shift', 0);
put('silent', '');
$ENV{CLOCK_SHIFT} = "$dir/shift";
$ENV{NAMES_SILENT} = "$dir/silent";

my $redis = RedisServer->new($clock ? (environment => { LD_PRELOAD => $clock }) : ());
my $client = $redis->client;
my $it;
{
	local $ENV{LD_PRELOAD} = $names if $names;
	$it = RedisFaults->new($redis->port, name => 'extremes', command_timeout => '2s', connect_timeout => '400ms',
		set_events => 'on', $names ? (host => 'redis.test') : ());
}
my $node = $it->node;

# ---- a name server that does not answer ----

SKIP:
{
	skip 'no compiler here', 1 unless $names;

	$it->is_refused(qr/connecting took longer than connect_timeout/, 'a dead name server');
	$it->goes_on('a dead name server', 3);
	my $threads = () = glob '/proc/' . $it->worker_pid . '/task/*';
	cmp_ok($threads, '<', 6, 'a dead name server: one look-up goes on, not one for each attempt');
	my $started = time;
	{
		local $ENV{LD_PRELOAD} = $names;
		$it->node->stop('fast');
		$it->node->start;
	}
	cmp_ok(time - $started, '<', 8, 'a dead name server: the server is restarted quickly');
	$it->is_refused(qr/connecting took longer than connect_timeout/, 'a dead name server after a restart');
	unlink "$dir/silent";
	$it->works_again('the name server answers');
}

my $worker = $it->worker_pid // '';
$it->works_again('at first');
$worker = $it->worker_pid;

# ---- events ----

$client->command('EVAL', "for i = 1, 200000 do redis.call('SET', 'other:' .. (i % 100), i) end", 0);
$it->goes_on('200000 events about other keys');

my $token = $it->lease('stock:1');
my $adopter = LeaseSessions->new($node);
$client->command('SET', 'stock:watched', 'them', 'PX', 60000);
my $adopted = $it->sql("BEGIN; SELECT token FROM lease_fence.adopt('stock:watched', 'them'); COMMIT");
ok($it->await('SELECT events FROM lease_fence.worker_status'), 'events are listened to');
$client->command('EVAL', "for i = 1, 200000 do redis.call('PUBLISH', '__keyspace\@0__:stock:watched', 'set') end", 0);
$it->goes_on('200000 events about a watched key', 3);
is($it->sql("SELECT state FROM lease_fence.leases WHERE token = $adopted"), 'live',
	'200000 events about a watched key: the lease is what it was');
$client->command('DEL', 'stock:watched');
ok($it->await("SELECT count(*) = 0 FROM lease_fence.leases WHERE token = $adopted AND state = 'live'"),
	'its end is seen after them');

# ---- time to live ----

is($client->command('SET', 'stock:2', 'them', 'PX', '9000000000000000000'), 'OK', 'a lock for 9 x 10^18 ms');
is($it->sql("BEGIN; SELECT expires_in > '300 days' AND expires_in < '10 years' FROM lease_fence.adopt('stock:2', 'them'); COMMIT"),
	't', 'a lock for 9 x 10^18 ms can be adopted');
is($it->try("SELECT lease_fence.acquire('stock:2', wait => '300ms', scope => 'session')"), '55P03',
	'a lock for 9 x 10^18 ms can be waited for');
$client->command('DEL', 'stock:2');
ok($it->await("SELECT count(*) = 0 FROM lease_fence.leases WHERE resource = 'stock:2' AND state = 'live'"),
	'and ends when it is gone');

# ---- connections ----

$it->works_again('before many connections');
my $session = LeaseSessions->new($node);
my $connect = sub {
	my ($number) = @_;
	$it->{altered}++;
	$session->query("ALTER SERVER locks OPTIONS (SET command_timeout '" . (2000 + $it->{altered}) . "ms')");
	return $session->query("SELECT count(*) FROM lease_fence.acquire('stock:fd$number', ttl => '1s', scope => 'detached', wait => '20s')");
};
$connect->($_) foreach 1 .. 10;
$it->works_again('after some connections');
my $files = files($worker);
my $connections = sub { $redis->cli('INFO', 'stats') =~ /total_connections_received:(\d+)/ ? $1 : 0 };
my $made = $connections->();
for my $number (11 .. 180)
{
	$connect->($number);
}
for (1 .. 30)
{
	my $last = $connections->();
	$client->command('CLIENT', 'KILL', 'TYPE', $_, 'SKIPME', 'yes') foreach 'normal', 'pubsub';
	wait_until('it is connected again', sub { $session->query(
		"SELECT count(*) FROM lease_fence.acquire('stock:kill$_', ttl => '1s', scope => 'detached', wait => '20s')") eq '1' });
}
cmp_ok($connections->() - $made, '>=', 200, '200 connections were made');
$it->works_again('after many connections');
cmp_ok(files($worker), '<=', $files + 3, '200 connections leave no file open');

# ---- leases ----

my $many = sub {
	my ($count) = @_;
	return $session->query(<<"SQL");
DO \$\$
DECLARE t bigint;
BEGIN
  FOR i IN 1 .. $count LOOP
    SELECT token INTO t FROM lease_fence.acquire('stock:' || i % 50, scope => 'detached', ttl => '30s', wait => '20s');
    PERFORM lease_fence.release(t);
  END LOOP;
END \$\$
SQL
};
is($it->sql("SELECT lease_fence.release($token)"), 't', 'the lease of before is released');
$many->(4000);
is($session->state, '00000', 'leases by the thousand') or diag($session->{text});
# What leaks grows each time; what is only needed for a moment, once.
my $least = 1e9;
for (1 .. 4)
{
	my $before = memory($worker);
	$many->(5000);
	is($session->state, '00000', '5000 leases') or diag($session->{text});
	my $grown = memory($worker) - $before;
	$least = $grown if $grown < $least;
}
cmp_ok($least, '<', 300, '20000 leases leave no memory taken');
is($it->worker_pid, $worker, 'it is the same worker still');

# ---- the clock of Redis ----

SKIP:
{
	skip 'no compiler here', 1 unless $clock;

	$token = $it->lease('stock:3', '6s');
	put('shift', 3600);
	wait_until('Redis has lost the lock', sub { $client->command('EXISTS', 'stock:3') == 0 });
	$it->await("SELECT count(*) = 0 FROM lease_fence.leases WHERE token = $token AND state = 'live'");
	is($it->write_as($token, 3), 'LF002', "Redis' clock put forward: the lease is over");
	cmp_ok($token = $it->lease('stock:3', '3s'), '>', 0, "Redis' clock put forward: the next one is granted");
	put('shift', 0);
	is($it->write_as($token, 3), '', "Redis' clock put back: the lease is what it was");
	$it->await("SELECT count(*) = 0 FROM lease_fence.leases WHERE token = $token AND state = 'live'");
	is($it->write_as($token, 3), 'LF002', "Redis' clock put back: the lease ends by ours");
	is($it->try("SELECT lease_fence.acquire('stock:3', wait => '20s', scope => 'session')"), '',
		"Redis' clock put back: and the lock is released then, an hour before Redis would") or diag($it->said);
	$it->goes_on("Redis' clock put back");
}

$node->stop('fast');
done_testing();
