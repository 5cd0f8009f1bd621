# Locks that others took are adopted: what is, what is not and why, and what
# becomes of the grant that was there before.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use RedisLeases;
use RedisServer;

plan skip_all => 'no redis-server here' unless RedisServer::available();

my $redis = RedisServer->new('notify-keyspace-events' => 'KA');
my $node = redis_node('adoption', $redis, undef, "lease_fence.drain_timeout = '60s'");
$node->safe_psql('postgres', q{
	SELECT lease_fence.add_profile('hashes', 'job:', '{locks}', shape => 'redisson');
	SELECT lease_fence.add_profile('external', 'etcd:', policy => 'external');
	CREATE ROLE app; CREATE ROLE outsider;
	GRANT USAGE ON SCHEMA lease_fence TO app, outsider;
	GRANT ALL ON stock TO app, outsider;
	SELECT lease_fence.add_profile('reserved', 'app:', '{locks}', roles => '{app}')});
my $s = session($node, 'one');
my $t = session($node, 'two');
my $dba = session($node, 'dba');

sub events { my ($on) = @_; $redis->config_set('notify-keyspace-events', $on ? 'KA' : ''); return; }

# A lock as a library would take it, whoever has it now.
sub lock
{
	my ($key, $holder, $ttl) = @_;
	$redis->must('SET', $key, $holder, 'PX', $ttl // 60000);
	return;
}

# The token, or the error as a whole.
sub adopt
{
	my ($session, $resource, $holder, $known) = @_;
	return $session->query("SELECT token FROM lease_fence.adopt('$resource', $holder" . ($known ? ", $known" : '') . ')');
}

sub grants_of
{
	my ($resource) = @_;
	return $dba->query("SELECT count(*) FROM lease_fence.grants WHERE resource = '$resource'");
}

sub wait_for_drain
{
	my ($session) = @_;
	my $pid = $session->pid;
	return wait_until('it waits for the writer in the way',
		sub { $dba->query("SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid") eq 'Lock' });
}

# Somebody writes row $id under an adopted token and does not commit yet.
sub open_writer
{
	my ($id, $holder) = @_;
	my $writer = session($node, 'writer');

	lock("stock:$id", $holder);
	$writer->query('BEGIN');
	$writer->{token} = adopt($writer, "stock:$id", "'$holder'");
	$writer->query("UPDATE stock SET n = n - 1 WHERE id = $id");
	is($writer->state, '00000', "$holder writes under its adopted token");
	return $writer;
}

# This takes ten seconds, in the meantime the others go on.
my $slow_writer = open_writer(39, 'slow writer');
my $slow_asker = session($node, 'asker');
lock('stock:39', 'asker');
my $asked = now();
$slow_asker->send("SELECT lease_fence.adopt('stock:39', 'asker')");

# ---- what is adopted ----

lock('stock:1', 'worker-7');
my $first = adopt($s, 'stock:1', "'worker-7'");
like($first, qr/^\d+$/, 'a lock is adopted');
is(write_as($s, 1, $first), '00000', 'its holder writes');
is($dba->query("SELECT convert_from(holder, 'UTF8'), coordinator, scope, state FROM lease_fence.leases WHERE resource = 'stock:1'"),
	'worker-7|redis|detached|live', 'it is in the view');
my $left = $s->query("SELECT extract(epoch FROM lease_fence.remaining($first))");
cmp_ok($left, '>', 50, 'for as long as the lock');
cmp_ok($left, '<=', 60, 'and no longer');

my $second = adopt($t, 'stock:1', "'worker-7'");
cmp_ok($second, '>', $first, 'the same bytes again are a new grant');
is_fenced($s, 1, $first, 'LF001', 'the older token is superseded');
is_fenced($t, 1, $second, '00000', 'the newer is not');

my $bytes = join '', map { chr } 0, 255, 1 .. 17, 0;
my $hex = unpack 'H*', $bytes;
lock('stock:2', $bytes);
like(my $token = adopt($s, 'stock:2', "'\\x$hex'::bytea"), qr/^\d+$/, 'a holder of 20 bytes that are no text');
is($dba->query("SELECT encode(holder, 'hex') FROM lease_fence.grants WHERE token = $token"), $hex, 'is kept byte for byte');
is(adopt($s, 'stock:2', "'\\x$hex'::bytea", $token), $token, 'and known by them');
adopt($s, 'stock:2', "'\\x" . substr($hex, 0, 38) . "'::bytea");
is($s->state, 'LF005', 'one byte less is another holder');

$redis->must(qw(HSET job:1 285475da:52 2));
$redis->must(qw(PEXPIRE job:1 60000));
like($token = adopt($s, 'job:1', "'285475da:52'"), qr/^\d+$/, 'a hash that was entered twice');
adopt($s, 'job:1', "'285475da:53'");
is($s->state, 'LF005', "another thread's is not");
is($redis->must(qw(HGET job:1 285475da:52)), 2, 'its count is left alone');

# ---- what is not ----

my @refused = (
	[ 'nothing there', 'stock:10', 'LF005', 'Nobody has the lock' ],
	[ "another holder's", 'stock:10', 'LF005', 'Another holder has the lock', [qw(SET stock:10 you PX 60000)] ],
	[ 'one that does not run out', 'stock:10', 'LF005', 'The lock has no expiry', [qw(SET stock:10 me)] ],
	[ 'an empty value', 'stock:10', 'LF005', 'Another holder has the lock', [ 'SET', 'stock:10', '', 'PX', 60000 ] ],
	[ 'a list', 'stock:10', 'LF005', 'another type', [qw(RPUSH stock:10 me)] ],
	[ 'a hash for a string', 'stock:10', 'LF005', 'another type', [qw(HSET stock:10 me 1)], [qw(PEXPIRE stock:10 60000)] ],
	[ 'a string for a hash', 'job:10', 'LF005', 'another type', [qw(SET job:10 me PX 60000)] ],
	[ 'a count of 0', 'job:10', 'LF005', 'no grant', [qw(HSET job:10 me 0)], [qw(PEXPIRE job:10 60000)] ],
	[ 'a negative count', 'job:10', 'LF005', 'no grant', [qw(HSET job:10 me -1)], [qw(PEXPIRE job:10 60000)] ],
	[ 'a hash that does not run out', 'job:10', 'LF005', 'no expiry', [qw(HSET job:10 me 1)] ],
	[ 'a lock for readers', 'job:10', 'LF005', 'no grant', [qw(HSET job:10 mode read me 1)], [qw(PEXPIRE job:10 60000)] ],
	[ 'a resource without a profile', 'other:1', '55000', 'not under a profile' ],
	[ 'a resource that others order', 'etcd:1', '55000', 'import_grant' ]);

foreach my $case (@refused)
{
	my ($what, $resource, $state, $message, @commands) = @$case;
	$redis->must('DEL', $resource);
	$redis->must(@$_) foreach @commands;
	my $text = adopt($s, $resource, "'me'");
	is($s->state, $state, "$what: refused");
	like($text, qr/\Q$message\E/, "$what: it says why");
	is(grants_of($resource), 0, "$what: nothing is minted");
}

lock('stock:11', 'me_WRITERWAITING');
like(adopt($s, 'stock:11', "'me_WRITERWAITING'"), qr/no grant/, 'who only waits for readers has no lock');
is($s->state, 'LF005', 'and is refused');

# It may have run out before it was looked at: then once more.
my $text = '';
for my $try (1 .. 50)
{
	lock('stock:12', 'me', 95);
	$text = adopt($s, 'stock:12', "'me'");
	last if $s->state ne 'LF005' || $text =~ /less than 100 ms/;
}
is($s->state, 'LF005', 'too little time left: refused');
like($text, qr/Less than 100 ms are left/i, 'and it says so');

foreach my $holder ("''", 'NULL', "''::bytea", 'NULL::bytea', "repeat('x', 256)")
{
	adopt($s, 'stock:13', $holder);
	is($s->state, '22023', "$holder is no holder");
}

$s->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
adopt($s, 'stock:1', "'worker-7'");
is($s->state, '25001', 'not under REPEATABLE READ');
$s->query('ROLLBACK');
is_fenced($t, 1, $second, '00000', 'which changes nothing');

# ---- a grant that is known ----

my $count = grants_of('stock:1');
my $minted = $dba->query('SELECT max(token) FROM lease_fence.grants');
$redis->must(qw(PEXPIRE stock:1 90000));
is(adopt($s, 'stock:1', "'worker-7'", $second), $second, 'a known token: the same grant');
cmp_ok(seconds($s, "lease_fence.remaining($second)"), '>', 75, 'with a deadline as Redis has it now');
is(grants_of('stock:1'), $count, 'no new row');
is($dba->query('SELECT max(token) FROM lease_fence.grants'), $minted, 'nothing is minted');
$redis->must(qw(PEXPIRE stock:1 150000));
cmp_ok(seconds($s, "lease_fence.renew($second)"), '>', 120, 'renew() does the same');
$s->query('BEGIN');
adopt($s, 'stock:1', "'worker-7'", $second);
$s->query('UPDATE stock SET n = n - 1 WHERE id = 1');
is($s->state, '00000', 'it counts as presented');
$s->query('COMMIT');
is($s->query("SELECT outcome FROM lease_fence.guarded_decrement('stock', '1', 'n', token => $second)"), 'applied',
	'a guarded function takes it');

my $hash_token = $token;
foreach my $case (
	[ "of another resource", $hash_token, '22023', "'worker-7'" ],
	[ 'that is superseded', $first, 'LF001', "'worker-7'" ],
	[ 'that was never minted', 4711, 'LF004', "'worker-7'" ],
	[ "of another holder", $second, 'LF001', "'worker-8'" ])
{
	my ($what, $known, $state, $holder) = @$case;
	adopt($s, 'stock:1', $holder, $known);
	is($s->state, $state, "a token $what");
	is_fenced($s, 1, $second, '00000', "a token $what: the grant lives on");
}

lock('app:1', 'me');
my $app = session($node, 'app');
$app->query('SET ROLE app');
$app->query("SET SESSION AUTHORIZATION app");
my $outsider = session($node, 'outsider');
$outsider->query('SET SESSION AUTHORIZATION outsider');
like($token = adopt($app, 'app:1', "'me'"), qr/^\d+$/, 'a role that the profile names adopts');
adopt($outsider, 'app:1', "'me'");
is($outsider->state, 'LF006', 'one that it does not name cannot');
adopt($outsider, 'app:1', "'me'", $token);
is($outsider->state, 'LF006', 'nor with the token');
lock('stock:14', 'me');
$token = adopt($app, 'stock:14', "'me'");
adopt($outsider, 'stock:14', "'me'", $token);
is($outsider->state, 'LF006', 'nor is a known token good for another role than it was minted for');

is($s->query("SELECT lease_fence.release($second)"), 't', 'an adopted lease is released');
is_fenced($s, 1, $second, 'LF002', 'it writes no more');
is(value_of($redis, 'stock:1'), 'worker-7', 'the lock is left alone');
adopt($s, 'stock:1', "'worker-7'", $second);
is($s->state, 'LF001', 'a token that is over is no grant any more');
like(adopt($s, 'stock:1', "'worker-7'"), qr/^\d+$/, 'without it: a new one');

lock('stock:15', 'me');
$token = adopt($s, 'stock:15', "'me'");
events(0);
$redis->must('DEL', 'stock:15');
adopt($s, 'stock:15', "'me'", $token);
is($s->state, 'LF001', 'a known token whose lock is gone');
is_fenced($s, 15, $token, 'LF002', 'is over with that');
lock('stock:15', 'me');
$token = adopt($s, 'stock:15', "'me'");
lock('stock:15', 'you');
adopt($s, 'stock:15', "'me'", $token);
is($s->state, 'LF001', "and one whose lock is another's");
is_fenced($s, 15, $token, 'LF001', 'is superseded with that');
events(1);

# ---- revoked ----

lock('stock:16', 'me');
$token = adopt($s, 'stock:16', "'me'");
is($dba->query(q{SELECT lease_fence.revoke('stock:16', 'a test')}), 't', 'an adopted lease is revoked');
is_fenced($s, 16, $token, 'LF002', 'it writes no more');
like(adopt($s, 'stock:16', "'me'"), qr/revoked/, 'who had it cannot adopt it again');
is($s->state, 'LF005', 'and is told so');
$redis->must(qw(PEXPIRE stock:16 70000));
adopt($s, 'stock:16', "'me'");
is($s->state, 'LF005', 'not after a renewal either');
$redis->must('DEL', 'stock:16');
like(adopt($s, 'stock:16', "'me'"), qr/Nobody|revoked/, 'until it was seen to let go of it');
lock('stock:16', 'me');
like(adopt($s, 'stock:16', "'me'"), qr/^\d+$/, 'when it has taken it anew it adopts');
$dba->query(q{SELECT lease_fence.revoke('stock:16')});
lock('stock:16', 'you');
like(adopt($t, 'stock:16', "'you'"), qr/^\d+$/, 'somebody else adopts at once');
$dba->query(q{SELECT lease_fence.revoke('stock:16')});
lock('stock:16', 'me');
wait_until('another holder was seen', sub { adopt($s, 'stock:16', "'me'"); $s->state eq '00000' });
pass('and so does the first, afterwards');

# ---- what was there before ----

# The lock of a session is stolen, and nobody tells.
events(0);
my $mine = $s->lease(q{'stock:17', scope => 'session'});
lock('stock:17', 'thief');
my $thiefs = adopt($t, 'stock:17', "'thief'");
cmp_ok($thiefs, '>', $mine, 'the thief of a session\'s lock adopts it');
is_fenced($s, 17, $mine, 'LF001', 'the session is superseded');
is_fenced($t, 17, $thiefs, '00000', 'the thief writes');
$s->query("SELECT lease_fence.release($mine)");
is(value_of($redis, 'stock:17'), 'thief', "the session's release leaves it alone");
events(1);

# One transaction, several locks, in the middle of it.
lock("stock:$_", 'me') foreach 18, 19;
$s->query('BEGIN');
$s->query('SELECT 1');
$token = adopt($s, 'stock:18', "'me'");
$s->query('SAVEPOINT one');
my $other = adopt($s, 'stock:19', "'me'");
is($s->query("SELECT outcome FROM lease_fence.guarded_decrement('stock', '18', 'n')"), 'applied', 'adopted in the middle');
$s->query('UPDATE stock SET n = n - 1 WHERE id IN (18, 19)');
is($s->state, '00000', 'and another one');
$s->query('ROLLBACK TO one');
$s->query('UPDATE stock SET n = n - 1 WHERE id = 19');
is($s->state, 'LF003', 'rolled back to before that it is not presented');
$s->query('ROLLBACK');
is_fenced($s, 19, $other, '00000', 'but still a grant');

# Two at once, with equal bytes.
lock('stock:20', 'me');
$s->send(q{SELECT token FROM lease_fence.adopt('stock:20', 'me')});
$t->send(q{SELECT token FROM lease_fence.adopt('stock:20', 'me')});
my @tokens = sort { $a <=> $b } $s->answer, $t->answer;
is(scalar(grep { /^\d+$/ } @tokens), 2, 'two that adopt at once both get a token');
cmp_ok($tokens[0], '<', $tokens[1], 'not the same one');
is_fenced($s, 20, $tokens[0], 'LF001', 'the earlier one is dead');
is_fenced($s, 20, $tokens[1], '00000', 'the later one lives');

# ---- writers in the way ----

# Two threads of one process with equal bytes, and unlock before COMMIT.
my $writer = open_writer(21, 'process');
$redis->must('DEL', 'stock:21');
lock('stock:21', 'process');
$s->send(q{SELECT token FROM lease_fence.adopt('stock:21', 'process')});
wait_for_drain($s);
is(grants_of('stock:21'), 1, 'the next thread waits for the writer in the way, unminted');
$writer->query('COMMIT');
is($writer->state, '00000', 'whose write came before');
cmp_ok($token = $s->answer, '>', $writer->{token}, 'then it has its token');
is($s->query('SELECT n FROM stock WHERE id = 21'), 999, 'and reads what was written');
is_fenced($writer, 21, $writer->{token}, 'LF001', 'the writer is superseded');

# Who goes on writing in the meantime is told.
$writer = open_writer(22, 'old');
lock('stock:22', 'new');
$s->send(q{SELECT token FROM lease_fence.adopt('stock:22', 'new')});
wait_for_drain($s);
$writer->query('UPDATE stock SET n = n - 1 WHERE id = 22');
is($writer->state, 'LF001', 'the old holder writes no more while the new one waits');
$writer->query('ROLLBACK');
like($s->answer, qr/^\d+$/, 'who gets its token then');

# The lock is lost while its adopter waits: with events it hears of it, without
# it looks again before the mint.
foreach my $on (1, 0)
{
	my $with = $on ? 'with events' : 'without events';
	my $id = 23 + $on;
	events($on);
	$writer = open_writer($id, 'old');
	lock("stock:$id", 'new');
	$s->send("SELECT lease_fence.adopt('stock:$id', 'new')");
	wait_for_drain($s);
	$redis->must('DEL', "stock:$id");
	if ($on)
	{
		like($s->answer, qr/Nobody has the lock/, "$with: who waits for a writer hears that its lock is gone");
		$writer->query('COMMIT');
	}
	else
	{
		$writer->query('COMMIT');
		like($s->answer, qr/Nobody has the lock/, "$with: after the wait it is looked at again");
	}
	is($s->state, 'LF005', "$with: it gets no token");
	is(grants_of("stock:$id"), 1, "$with: none is minted");
	is_fenced($writer, $id, $writer->{token}, 'LF001', "$with: the old holder's is dead all the same");
	lock("stock:$id", 'third');
	like(adopt($t, "stock:$id", "'third'"), qr/^\d+$/, "$with: the next one adopts");
}
events(1);

# In one's own way.
lock('stock:25', 'me');
$s->query('BEGIN');
adopt($s, 'stock:25', "'me'");
$s->query('UPDATE stock SET n = n - 1 WHERE id = 25');
adopt($s, 'stock:25', "'me'");
is($s->state, 'LF007', 'a transaction that wrote under the older grant is in its own way');
$s->query('ROLLBACK');
like(adopt($s, 'stock:25', "'me'"), qr/^\d+$/, 'rolled back, it is not');

$slow_asker->answer;
is($slow_asker->state, '55P03', 'after ten seconds with a writer in the way: not available');
cmp_ok(now() - $asked, '>', 9, 'not before');
is(grants_of('stock:39'), 1, 'nothing is minted');
$slow_writer->query('COMMIT');
is($slow_writer->state, '00000', 'and the writer commits');
like(adopt($t, 'stock:39', "'asker'"), qr/^\d+$/, 'after which it can be adopted');

# ---- a replica ----

lock('stock:26', 'me');
$token = adopt($s, 'stock:26', "'me'");
$redis->must('REPLICAOF', '127.0.0.1', RedisServer::free_port());
lock_is_refused('a replica');
$redis->must('REPLICAOF', 'NO', 'ONE');
wait_until('it is a master again', sub { lock('stock:26', 'me'); adopt($s, 'stock:26', "'me'"); $s->state eq '00000' });
is_fenced($s, 26, $token, 'LF001', 'promoted, it gives new grants only');

sub lock_is_refused
{
	my ($what) = @_;
	my $refusal = adopt($s, 'stock:26', "'me'");
	is($s->state, 'LF020', "$what says nothing that counts");
	like($refusal, qr/DETAIL:.*(master|replica)/i, "$what: the DETAIL says why");
	is(grants_of('stock:26'), 1, "$what: nothing is minted");
	wait_until('what it had granted is over', sub { state_of($dba, 'stock:26') ne 'live' });
	is(state_of($dba, 'stock:26'), 'lapsed', "$what: and the leases that it had handed out have lapsed");
	return;
}

$node->stop;
done_testing();
