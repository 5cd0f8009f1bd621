# When a lease ends: with its transaction, its session, or its ttl; what renews
# it; and that no way of ending a backend leaves one behind.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use LeaseSessions qw(lease_node wait_until now);

my $node = lease_node('scopes', 'restart_after_crash = on');
my $dba = LeaseSessions->new($node, name => 'dba');
my $s = LeaseSessions->new($node, name => 'holder');

$dba->query('CREATE TABLE stock (id int PRIMARY KEY, n int)');
$dba->query('INSERT INTO stock SELECT g, 0 FROM generate_series(1, 20) g');
$dba->query(q{SELECT lease_fence.protect('stock', 'stock:{id}')});

# Seen from another session, in which nothing of the holder's is known.
sub state_of
{
	my ($resource) = @_;
	return $dba->query("SELECT state FROM lease_fence.leases WHERE resource = '$resource'");
}

# The default ttl is long: this is at its first third, ten seconds from now.
my $renewed = LeaseSessions->new($node, name => 'renewed');
$renewed->lease(q{'renewed', scope => 'session'});
my $in_transaction = LeaseSessions->new($node, name => 'renewed too');
$in_transaction->query('BEGIN');
$in_transaction->lease(q{'renewed too'});
$dba->lease(q{'not renewed', ttl => '25s', scope => 'session'});
$dba->lease(q{'not renewed, detached', scope => 'detached'});
my $watched_since = now();

# ---- transaction ----
for my $end (qw(COMMIT ROLLBACK), 'COMMIT AND CHAIN', 'SELECT 1/0; COMMIT')
{
	$s->query('BEGIN');
	my $token = $s->lease(q{'t'});
	is(state_of('t'), 'live', "before $end: live");
	$s->query($end);
	is(state_of('t'), 'released', "after $end: over");
	is($s->query("SELECT lease_fence.remaining($token) IS NULL"), 't', "after $end: nothing remains");
	$s->query('ROLLBACK');
}

# Rolling back to a savepoint undoes the presentation, not the grant.
$s->query('BEGIN');
$s->query('SAVEPOINT one');
my $token = $s->lease(q{'stock:1'});
$s->query('UPDATE stock SET n = 1 WHERE id = 1');
is($s->state, '00000', 'acquired in a savepoint: presented');
$s->query('ROLLBACK TO one');
is(state_of('stock:1'), 'live', 'rolled back to the savepoint: still held');
$s->query('SAVEPOINT two');
$s->query('UPDATE stock SET n = 1 WHERE id = 1');
is($s->state, 'LF003', 'but presented no more');
$s->query('ROLLBACK TO two');
is($s->lease(q{'stock:1'}), $token, 'acquiring it again is a re-entry');
$s->query('UPDATE stock SET n = 2 WHERE id = 1');
is($s->state, '00000', 'and presents it');
$s->query('SAVEPOINT three');
$s->query("SELECT lease_fence.release($token)");
$s->query("SELECT lease_fence.release($token)");
$s->query('ROLLBACK TO three');
is(state_of('stock:1'), 'released', 'a release is not undone by the savepoint');
$s->query('COMMIT');
is($dba->query('SELECT n FROM stock WHERE id = 1'), '2', 'what was written before is committed');

# in a function, the statement's transaction
$s->query(q{DO $$ BEGIN PERFORM lease_fence.acquire('stock:2'); UPDATE stock SET n = 1 WHERE id = 2; END $$});
is($s->state, '00000', 'in a DO block: the lease of its statement');
is(state_of('stock:2'), 'released', 'and over after it');
$s->query(q{SELECT lease_fence.acquire('stock:2')});
is($s->state, '25P01', 'as a statement of its own: 25P01');
$s->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
$s->query(q{SELECT lease_fence.acquire('stock:3', scope => 'detached')});
is($s->state, '25001', 'under REPEATABLE READ: 25001');
is($dba->query(q{SELECT count(*) FROM lease_fence.grants WHERE resource = 'stock:3'}), '0', 'before anything is granted');
$s->query('ROLLBACK');

# ---- session ----
$token = $s->lease(q{'session', scope => 'session'});
$s->query("BEGIN; SELECT 1; COMMIT; BEGIN; SELECT 1/0; ROLLBACK");
is(state_of('session'), 'live', 'a session lease survives commits and rollbacks');
$s->query('BEGIN');
is($s->lease(q{'session'}), $token, 're-entered with scope transaction: the same token');
$s->query('COMMIT');
is(state_of('session'), 'live', 'the wider scope stays');
$s->query("SELECT lease_fence.release($token)");
is(state_of('session'), 'released', 'the transaction took its count with it');

$s->query('BEGIN');
$token = $s->lease(q{'session'});
is($s->lease(q{'session', scope => 'session'}), $token, 'a transaction lease becomes wider');
$s->query('COMMIT');
is(state_of('session'), 'live', 'and survives the transaction');
$s->query('DISCARD ALL');
is(state_of('session'), 'released', 'DISCARD ALL ends it');
is($s->query("SELECT lease_fence.remaining($token) IS NULL"), 't', 'for this session too');

$token = $s->lease(q{'stock:4', scope => 'session'});
$s->query('UPDATE stock SET n = 1 WHERE id = 4');
is($s->state, '00000', 'a session lease counts in later transactions');
$s->query("SELECT lease_fence.release($token)");
$s->query('UPDATE stock SET n = 1 WHERE id = 4');
is($s->state, 'LF003', 'until it is released: then nothing is presented');

# ---- detached ----
$token = $dba->lease(q{'detached', scope => 'detached', ttl => '1min'});
my $other = LeaseSessions->new($node, name => 'other');
is($other->query("SELECT lease_fence.renew($token, '10min') > '9min'"), 't',
	'a detached lease is renewed from another connection');
is($other->query("SELECT lease_fence.release($token)"), 't', 'and released from another one');
is($other->query("SELECT lease_fence.release($token)"), 'f', 'once');
$other->query("SELECT lease_fence.renew($token)");
is($other->state, 'LF002', 'what is over is not renewed');

my $first = $dba->lease(q{'again', scope => 'detached', holder => 'worker 7'});
my $second = $other->lease(q{'again', scope => 'detached', holder => 'worker 7'});
cmp_ok($second, '>', $first, 'a detached request that names the present holder is a new grant');
$dba->query("SELECT lease_fence.renew($first)");
is($dba->state, 'LF001', 'and the old one is superseded');

# two random holders are never one
$dba->lease(q{'nobody else', scope => 'detached'});
is($dba->query(q{SELECT token IS NULL FROM lease_fence.try_acquire('nobody else', scope => 'detached')}), 't',
	'detached without a holder: two calls are two holders');

# ---- fixed ttl ----
$token = $s->lease(q{'fixed', ttl => '150ms', scope => 'session'});
$s->query('SELECT pg_sleep(0.2)');
is($s->query("SELECT lease_fence.remaining($token) IS NULL"), 't', 'a fixed ttl lapses under an active session');
wait_until('its end is written', sub {
	$dba->query("SELECT how_ended FROM lease_fence.grants WHERE token = $token") eq 'lapsed' });
pass('and its end says lapsed');
$s->query("SELECT lease_fence.renew($token)");
is($s->state, 'LF002', 'it cannot be renewed then');

# ---- PREPARE TRANSACTION ----
$s->query('BEGIN');
$s->lease(q{'p'});
my $text = $s->query(q{PREPARE TRANSACTION 'p1'});
is($s->state, '0A000', 'PREPARE with a transaction lease is refused');
like($text, qr/HINT:.*"session" or "detached"/, 'with a hint');
is(state_of('p'), 'released', 'the transaction, and its lease, are over');
$s->query('ROLLBACK');
for my $scope (qw(session detached))
{
	my $id = $scope eq 'session' ? 5 : 6;
	$s->query('BEGIN');
	$s->lease("'stock:$id', scope => '$scope'");
	$s->query("UPDATE stock SET n = 1 WHERE id = $id");
	$s->query(qq{PREPARE TRANSACTION 'p$id'});
	is($s->state, '00000', "PREPARE with a lease of scope $scope is allowed");
	is(state_of("stock:$id"), 'live', 'the lease stays');
	$s->query(qq{COMMIT PREPARED 'p$id'});
	is($dba->query("SELECT n FROM stock WHERE id = $id"), '1', 'and the write is committed');
}

# ---- ends of the backend ----
my %end = (
	'quits' => sub { $_[0]->quit },
	'vanishes' => sub { $_[0]->vanish },
	'is terminated' => sub { $dba->query("SELECT pg_terminate_backend($_[0]{pid})") },
);
for my $how (sort keys %end)
{
	my $mortal = LeaseSessions->new($node, name => 'mortal');
	$mortal->lease(q{'m session', scope => 'session'});
	$mortal->query('BEGIN');
	$mortal->lease(q{'m transaction'});
	$mortal->lease(q{'stock:7'});
	$mortal->query('UPDATE stock SET n = n + 1 WHERE id = 7');
	my $detached = $mortal->lease(q{'m detached', scope => 'detached'});
	$end{$how}->($mortal);
	for my $resource ('m session', 'm transaction', 'stock:7')
	{
		like($other->query("SELECT token FROM lease_fence.acquire('$resource', wait => '9s', scope => 'session')"),
			qr/^\d+$/, "a session $how in its transaction: $resource is free");
	}
	is(state_of('m detached'), 'live', "a session $how: a detached lease stays");
	$other->query("DISCARD ALL");
	$other->query("SELECT lease_fence.release($detached)");
	$mortal->quit;
}
is($dba->query('SELECT n FROM stock WHERE id = 7'), '0', 'none of their writes is there');

# ---- the watchdog ----
wait_until('the first third of the default ttl is over', sub { now() > $watched_since + 11.5 });
is($dba->query(
		q{SELECT string_agg(resource || ' ' || (renewals > 0) || ' ' || (expires_in > '20s'), ', ' ORDER BY resource)
		  FROM lease_fence.leases WHERE resource IN ('renewed', 'renewed too')}),
	'renewed true true, renewed too true true', 'default ttl: renewed, in a session and in a transaction');
is($dba->query(
		q{SELECT string_agg(resource || ' ' || renewals || ' ' || (expires_in < '19s'), ', ' ORDER BY resource)
		  FROM lease_fence.leases WHERE resource LIKE 'not renewed%'}),
	'not renewed 0 true, not renewed, detached 0 true', 'a fixed ttl, and a detached lease: never');

# The idle limit: an idle session, one that waits for a lease for long, and one
# that is at work.  Only the last one is renewed.
$node->append_conf('postgresql.conf', "lease_fence.idle_limit = '200ms'");
$node->reload;
my $waiting = LeaseSessions->new($node, name => 'waiting');
my $idle = LeaseSessions->new($node, name => 'idle');
my $working = LeaseSessions->new($node, name => 'working');
$dba->lease(q{'long', ttl => '1h', scope => 'session'});
$idle->lease(q{'of idle', scope => 'session'});
$waiting->lease(q{'of waiting', scope => 'session'});
$working->lease(q{'of working', scope => 'session'});
$working->send('SELECT pg_sleep(100)');
$waiting->send(q{SELECT lease_fence.acquire('long', wait => '100s', scope => 'session')});
my $idle_since = now();
wait_until('a third of the default ttl is over', sub { now() > $idle_since + 11.5 });
is($dba->query(
		q{SELECT string_agg(resource || ' ' || (renewals > 0), ', ' ORDER BY resource)
		  FROM lease_fence.leases WHERE resource LIKE 'of %'}),
	'of idle false, of waiting false, of working true',
	'idle_limit: not renewed while idle, nor while waiting for a lease; renewed at work');
$_->quit for $waiting, $idle, $working, $renewed, $in_transaction, $s;

# ---- crash: a backend is killed, all of shared memory is lost ----
my $detached = $other->lease(q{'c detached', scope => 'detached', ttl => '1h'});
my $mortal = LeaseSessions->new($node, name => 'mortal');
my $session = $mortal->lease(q{'c session', scope => 'session', ttl => '1h'});
$mortal->query('BEGIN');
my $transaction = $mortal->lease(q{'c transaction', ttl => '1h'});
kill 'KILL', $mortal->pid;
$_->quit for $mortal, $other, $dba;
$node->poll_query_until('postgres', q{SELECT worker = 'running' AND epoch_confirmed FROM lease_fence.worker_status});
my $after = LeaseSessions->new($node, name => 'after');
is($after->query("SELECT lease_fence.remaining($detached) > '59min'"), 't',
	'after a crash a detached lease runs its ttl');
is($after->query("SELECT lease_fence.remaining($session) IS NULL, lease_fence.remaining($transaction) IS NULL"),
	't|t', 'those of the transaction and the session are over');
for my $resource ('c session', 'c transaction')
{
	cmp_ok($after->lease("'$resource', scope => 'session'"), '>', $detached, "$resource is to be had again");
}
$after->quit;
$node->stop;
done_testing();
