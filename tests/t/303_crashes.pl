# Processes that are terminated, killed or stopped: others take over, no lease
# that lapsed revives, and no token is given twice.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use Test::More;

my $node = new_server('crashes', 'restart_after_crash = on', 'autovacuum = off',
	"lease_fence.databases = 'shop'");
$node->start;
$node->safe_psql('postgres', 'CREATE DATABASE shop');
with_extension($node, 'shop');

my @tokens;

sub take
{
	my ($resource, $ttl) = @_;
	my $token = token_of($node, 'shop', $resource, $ttl);

	push @tokens, $token;
	return $token;
}

sub launcher_pid
{
	await_sql($node, 'postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'lease_fence launcher'");
	return $node->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'lease_fence launcher'");
}

# Every process was ended, and a session can connect again.
sub await_restart
{
	my ($started) = @_;

	return $node->poll_query_until('postgres',
		"SELECT pg_postmaster_start_time() IS NOT NULL AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $started)"
	);
}

# ---- pg_terminate_backend ----

my $token = take('stock:1');
my $pid = worker_pid($node, 'shop');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
ok( await_sql(
		$node, 'postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'lease_fence worker' AND pid <> $pid"
	),
	'a worker that is terminated is followed by another');
is(write_as($node, 'shop', $token), '', 'the lease lives on meanwhile');
is($node->safe_psql('shop', "SELECT lease_fence.renew(token => $token) IS NOT NULL"),
	't', 'and can be renewed');
cmp_ok(take('stock:2'), '>', $token, 'and others are granted');

my $launcher = launcher_pid();
$node->safe_psql('postgres', "SELECT pg_terminate_backend($launcher)");
ok( await_sql(
		$node, 'postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'lease_fence launcher' AND pid <> $launcher"
	),
	'a launcher that is terminated is followed by another');
$pid = worker_pid($node, 'shop');
isnt($pid, '', 'which leaves the running worker alone');

# A session waits for a lease while launcher and worker go.
my $waiter = $node->background_psql('shop', on_error_stop => 0);
$waiter->query_until(qr/asked/,
	"\\echo asked\nSELECT token FROM lease_fence.acquire(resource => 'stock:1', ttl => '1min', wait => '60s', scope => 'detached');\n\\echo had\n"
);
ok(await_sql($node, 'shop', "SELECT waiters = 1 FROM lease_fence.leases WHERE resource = 'stock:1'"),
	'a session waits for a lease');
$node->safe_psql('postgres',
	"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'lease_fence%'");
await_sql($node, 'postgres',
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'lease_fence worker' AND pid <> $pid");
is($node->safe_psql('shop', "SELECT lease_fence.release(token => $token)"), 't', 'the lease is released');
ok(await_sql($node, 'shop', "SELECT state = 'live' AND token > $token FROM lease_fence.leases WHERE resource = 'stock:1'"),
	'who waited gets it although launcher and worker were terminated meanwhile');
push @tokens, $node->safe_psql('shop', "SELECT token FROM lease_fence.leases WHERE resource = 'stock:1'");
$waiter->quit;
is(write_as($node, 'shop', $token), 'LF001', 'and the old token is superseded');

# ---- SIGSTOP of the worker, past the leases' ttl ----

my $session = $node->background_psql('shop');
my $watched = $session->query_safe(
	"SELECT token FROM lease_fence.acquire(resource => 'watched', scope => 'session')");
my $short = take('short', '1s');
$pid = await_worker($node, 'shop');
kill 'STOP', $pid;
ok(await_sql($node, 'shop', "SELECT lease_fence.remaining(token => $short) IS NULL"),
	'a lease lapses although the worker is stopped');
is(sqlstate_of($node, 'shop', "SELECT lease_fence.renew(token => $short)"),
	'LF002', 'a lapsed lease cannot be renewed meanwhile');
is(sqlstate_of($node, 'shop', "SELECT lease_fence.present($short)"), 'LF002', 'nor presented');
is(sqlstate_of($node, 'shop', "SET statement_timeout = '500ms'; SELECT lease_fence.acquire(resource => 'short', ttl => '1s', scope => 'detached', wait => NULL)"),
	'57014', 'nobody gets it, statement_timeout holds');
kill 'CONT', $pid;
cmp_ok(take('short', '1min'), '>', $short, 'when the worker goes on it is granted anew');
is(sqlstate_of($node, 'shop', "SELECT lease_fence.renew(token => $short)"),
	'LF001', 'the lapsed one has not revived');
is($session->query_safe("SELECT lease_fence.remaining(token => $watched) IS NOT NULL"),
	't', 'one that had not lapsed is still held');
is(worker_pid($node, 'shop'), $pid, 'it is the same worker');

# The watchdog must not revive what lapsed while it was stopped.
my $watchdog = $session->query_safe(
	"SELECT token FROM lease_fence.acquire(resource => 'stock:2x', scope => 'session', ttl => '1s')");
kill 'STOP', $pid;
await_sql($node, 'shop', "SELECT state = 'lapsed' FROM lease_fence.leases WHERE token = $watchdog");
kill 'CONT', $pid;
cmp_ok(take('after-stop'), '>', $watchdog, 'the worker works again');
is($node->safe_psql('shop', "SELECT state FROM lease_fence.leases WHERE token = $watchdog"),
	'lapsed', "a session's lease that lapsed meanwhile has not revived");
$session->quit;

# ---- kill -9: crash restart ----

foreach my $victim ('worker', 'launcher', 'backend')
{
	my $detached = take("crash:$victim");
	my $own = $node->background_psql('shop', on_error_stop => 0);
	my $mine = $own->query_safe(
		"SELECT token FROM lease_fence.acquire(resource => 'own:$victim', scope => 'session')");
	my $holder = $own->query_safe('SELECT pg_backend_pid()');
	my $killed =
	    $victim eq 'worker'   ? await_worker($node, 'shop')
	  : $victim eq 'launcher' ? launcher_pid()
	  :                         $holder;

	push @tokens, $mine;
	kill 'KILL', $killed;
	ok(await_restart($holder), "kill -9 of a $victim: the server restarts");
	eval { $own->quit };
	is(sqlstate_of($node, 'shop', "SELECT lease_fence.present($mine)"),
		'LF002', "a session's lease is over");
	is($node->safe_psql('shop', "SELECT lease_fence.remaining(token => $detached) > '9min'"),
		't', 'a detached one runs its ttl again');
	is($node->safe_psql('shop', 'SELECT count(*) FROM lease_fence.epochs'), '1', 'in the same epoch');
	my $next = take("own:$victim");
	cmp_ok($next, '>', $mine, 'and the next token is greater');
	is(sqlstate_of($node, 'shop', "SELECT lease_fence.present($mine)"), 'LF001', 'so the old one is superseded');
}

# ---- immediate stop, restart ----

my $before = take('stock:1:immediate');
$node->stop('immediate');
$node->start;
is($node->safe_psql('shop', "SELECT lease_fence.remaining(token => $before) > '9min'"),
	't', 'immediate stop: a detached lease runs its ttl again');
isnt(await_worker($node, 'shop'), '', 'the named worker is there by itself');
cmp_ok(take('x1'), '>', $before, 'tokens grow over it');
$node->restart;
is($node->safe_psql('shop', "SELECT lease_fence.remaining(token => $before) > '9min'"),
	't', 'restart: a detached lease runs its ttl again');
cmp_ok(take('x2'), '>', $before, 'tokens grow over it');
is($node->safe_psql('shop', 'SELECT count(*) FROM lease_fence.epochs'), '1', 'all in one epoch');

my $sorted = join ',', sort { $a <=> $b } @tokens;
is(join(',', @tokens), $sorted, 'every token was greater than the one before');
my %seen;
is(scalar(grep { $seen{$_}++ } @tokens), 0, 'none was given twice');

stop_fast_is_quick($node, 'after all that');
done_testing();
