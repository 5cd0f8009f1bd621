# What a client with USAGE, and no more, can do to others: their tokens in another
# database, the locks behind tokens, all the places for leases, waits without end.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use LeaseSessions qw(lease_node wait_until);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use Test::More;

my $node = lease_node('clients', 'lease_fence.max_leases = 16', 'max_connections = 40');
$node->safe_psql('postgres', 'CREATE ROLE victim LOGIN; CREATE ROLE attacker LOGIN; CREATE DATABASE other');
with_extension($node, 'other');
$node->safe_psql('postgres', q{
	CREATE TABLE stock (id int PRIMARY KEY, n int);
	INSERT INTO stock VALUES (1, 1), (2, 2);
	SELECT lease_fence.protect(relation => 'stock', resource => 'stock:{id}')});
$node->safe_psql($_, 'GRANT USAGE ON SCHEMA lease_fence TO victim, attacker; GRANT ALL ON stock TO victim, attacker')
  foreach ('postgres', 'other');

# ---- a token of one database in another ----

my $here = token_of($node, 'postgres', 'stock:1');
my $there = token_of($node, 'other', 'stock:1');
isnt($here, $there, 'two databases, two numbers');
is(write_as($node, 'other', $here), 'LF004', 'a token of another database writes nothing')
  or diag("$here $there");
is(write_as($node, 'postgres', $there), 'LF004', 'and the other way round');
is(sqlstate_of($node, 'other', "SELECT lease_fence.release($here)"), 'LF004', 'nor can it be released there');
is(write_as($node, 'other', $there), '', 'where it was minted it writes');

# ---- the locks behind tokens ----

my $victim = LeaseSessions->new($node, user => 'victim', name => 'victim');
my $attacker = LeaseSessions->new($node, user => 'attacker', name => 'attacker');
my $token = $victim->lease(q{resource => 'stock:2', scope => 'detached'});

# Advisory locks of its number, and of those that come next, in all the ways there are.
$attacker->query("SELECT pg_advisory_lock(t), pg_advisory_lock_shared(t), pg_advisory_lock((t >> 32)::int, (t & 2147483647)::int)"
	  . " FROM generate_series($token::bigint - 5, $token::bigint + 20) AS t");
is($attacker->state, '00000', 'an attacker has locked the numbers of tokens');
is($victim->query(qq{SELECT outcome FROM lease_fence.guarded_update('stock', '2', '{"n": 5}', token => $token)}), 'applied',
	'the victim writes');
$victim->query("SELECT lease_fence.release($token)");
my $next = $victim->lease(q{resource => 'stock:2', scope => 'detached', wait => '5s'});
cmp_ok($next, '>', $token, 'and gets its next lease');
$attacker->query('SELECT pg_advisory_unlock_all()');

# Tables of ours: nothing that conflicts with anybody.
foreach my $table (qw(grants epochs rejected_writes operations profiles guard_modes))
{
	$attacker->query("LOCK TABLE lease_fence.$table IN ROW SHARE MODE");
	isnt($attacker->state, '00000', "$table cannot be locked");
	$attacker->query('BEGIN');
	$attacker->query("LOCK TABLE lease_fence.$table IN ACCESS EXCLUSIVE MODE");
	is($attacker->state, '42501', "$table: nor in a transaction");
	$attacker->query('ROLLBACK');
	$attacker->query("SELECT FROM lease_fence.$table FOR UPDATE");
	is($attacker->state, '42501', "$table: nor its rows");
	$attacker->query("ALTER TABLE lease_fence.$table DISABLE TRIGGER ALL");
	is($attacker->state, '42501', "$table: nor changed");
	$attacker->query("CREATE TRIGGER t BEFORE INSERT ON lease_fence.$table FOR EACH ROW EXECUTE FUNCTION lease_fence.drop_replicated()");
	is($attacker->state, '42501', "$table: nor given a trigger");
}

# ---- waits without end ----

my $holder = LeaseSessions->new($node, user => 'victim', name => 'holder');
$holder->lease(q{resource => 'stock:wanted', scope => 'session'});
my @waiters = map { LeaseSessions->new($node, user => 'attacker', name => "waiter $_") } 1 .. 10;
$_->send(q{SELECT token FROM lease_fence.acquire(resource => 'stock:wanted', wait => NULL, scope => 'session')}) foreach @waiters;
ok($node->poll_query_until('postgres', q{SELECT waiters = 10 FROM lease_fence.leases WHERE resource = 'stock:wanted'}),
	'ten wait for what the victim has, for as long as it takes');
is($victim->query(qq{SELECT outcome FROM lease_fence.guarded_update('stock', '2', '{"n": 6}', token => $next)}), 'applied',
	'others write');
like($victim->lease(q{resource => 'stock:unwanted', scope => 'session', wait => '5s'}), qr/^\d+$/, 'and lease what they do not wait for');
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'waiter%' AND pg_cancel_backend(pid)}), '10',
	'all of them are cancelled');
$_->answer foreach @waiters;
is(join(' ', map { $_->state } @waiters), join(' ', ('57014') x 10), 'and hear so');
$_->quit foreach @waiters, $holder;

# ---- all the places ----

my $taken = 0;
while ($taken < 500)
{
	$attacker->query("SELECT token FROM lease_fence.acquire(resource => 'hoard:$taken', ttl => '1h', scope => 'detached', wait => '0')");
	last if $attacker->state ne '00000';
	$taken++;
}
is($attacker->state, 'LF021', 'one role takes leases until there is no place left: docs/security.md says so');
cmp_ok($taken, '>=', 10, 'but for some spare ones these are lease_fence.max_leases');
is($victim->query(qq{SELECT outcome FROM lease_fence.guarded_update('stock', '2', '{"n": 7}', token => $next)}), 'applied',
	'who has a lease goes on writing');
is($victim->query("SELECT lease_fence.renew($next) > '1 s'"), 't', 'and renews it');
is($node->safe_psql('postgres', q{SELECT role FROM lease_fence.leases WHERE state = 'live' GROUP BY role ORDER BY count(*) DESC LIMIT 1}), 'attacker',
	'a DBA sees whose they are');
$node->safe_psql('postgres', q{REVOKE USAGE ON SCHEMA lease_fence FROM attacker;
	SELECT lease_fence.revoke(resource => resource, reason => 'hoarding') FROM lease_fence.leases WHERE role = 'attacker' AND state = 'live'});
like($victim->lease(q{resource => 'stock:new', scope => 'session', wait => '10s'}), qr/^\d+$/, 'takes them away, and others get on');

# ---- a name of a resource is nobody's, unless a profile reserves it ----

$node->safe_psql('postgres', q{GRANT USAGE ON SCHEMA lease_fence TO attacker;
	SELECT lease_fence.add_profile(name => 'ours', prefix => 'ours:', policy => 'external', roles => '{victim}')});
$attacker->query(q{SELECT lease_fence.import_grant(resource => 'ours:1', number => 9223372036854775807)});
is($attacker->state, 'LF006', 'a prefix that a profile reserves is out of reach');
$victim->query(q{SELECT lease_fence.import_grant(resource => 'ours:1', number => 1)});
is($victim->state, '00000', 'for all but those that it names');

$_->quit foreach $victim, $attacker;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');
$node->stop;
done_testing();
