# What went wrong for people whose locks are in Redis: each kind of it with a real
# Redis, and what the fence makes of it.  Numbered as their list is, where a
# report stands for several its first; those that must never come back by name.
#
# Elsewhere: 23 and 24 need several servers, which profiles do not have yet.
# A limit to how often a lock may be prolonged (50) is not offered.

use strict;
use warnings;

use File::Temp;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use FakeRedis;
use LeaseSessions qw(wait_until);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedisProxy;
use RedisServer;
use RemoteLocks;
use Test::More;
use Time::HiRes qw(sleep);

plan skip_all => 'no redis-server here' unless RedisServer::available();

my $node = lock_node('lock_reports');
my $redis = RedisServer->new;
my $events = "set_events 'on'";

add_server('s', $redis->port, options => $events);
ask("SELECT lease_fence.add_profile(name => 'h', prefix => 'h:', servers => '{s}', shape => 'redisson')");

# Worker and server are ready, before a lock's time counts.
redis('SET', 's:first', 'a', 'PX', 60000);
wait_until('the worker is there', sub { adopt('s:first', 'a') =~ /^\d+$/ });

sub redis { return $redis->must(@_); }

# Takes a lock as a client with SET NX PX does, and adopts it.
sub lock_and_adopt
{
	my ($resource, $holder, $ms) = @_;
	is(redis('SET', $resource, $holder, 'NX', 'PX', $ms // 60000), 'OK', "$holder takes $resource")
	  or return '';
	my $token = adopt($resource, $holder);
	like($token, qr/^\d+$/, "$holder adopts it") or diag(the_error());
	return $token;
}

# The same with a hash, as Redisson does.
sub enter
{
	my ($key, $holder, $ms, $count) = @_;
	redis('HSET', $key, $holder, $count // 1);
	redis('PEXPIRE', $key, $ms // 60000);
	return;
}

sub await_gone { my ($key) = @_; return wait_until("$key is gone", sub { !$redis->command('EXISTS', $key) }); }

sub is_stale { my ($resource, $token, $what) = @_; return is(write_under($resource, $token), 'LF001', $what); }
sub is_over { my ($resource, $token, $what) = @_; return is(write_under($resource, $token), 'LF002', $what); }
sub writes { my ($resource, $token, $what) = @_; return is(write_under($resource, $token), '', $what); }

# ---- leases that lapse, and holders who come back ----

# 1: a watchdog skips a renewal, another gets the lock while the first still works
{
	my $r = resource('h');
	enter($r, 'uuid-a:1', 500);
	my $a = adopt($r, 'uuid-a:1');
	await_gone($r);
	enter($r, 'uuid-b:1');
	my $b = adopt($r, 'uuid-b:1');
	is_growing('1: a skipped renewal', $a, $b);
	is_stale($r, $a, '1: who skipped it does not write');
	writes($r, $b, '1: its successor does');
}

# 3: granted to who never writes; 4: renewed for ever by a dead thread
{
	my $r = resource('s');
	my $a = lock_and_adopt($r, 'a');
	is(ask("SELECT coordinator || ' ' || state FROM lease_fence.leases WHERE token = $a"), 'redis live',
		'3: a holder who never writes is shown');
	redis('EVAL', "for i = 1, 1000 do redis.call('PEXPIRE', KEYS[1], 60000 + i) end", 1, $r);
	ask("DO \$\$ BEGIN FOR i IN 1..50 LOOP PERFORM lease_fence.adopt(resource => '$r', holder => 'a', known_token => $a); END LOOP; END \$\$");
	is(ask("SELECT count(*) FROM lease_fence.grants WHERE resource = '$r'"), '1',
		'4: renewals make no further token');
	is(ask("SELECT count(*) FROM lease_fence.rejected_writes WHERE resource = '$r'"), '0', '3: and nothing else comes of it');
	writes($r, $a, '4: its token is still good');
}

# 5: a pause is longer than the ttl, and nobody else took the lock
{
	ask(q{CREATE TABLE late (name text PRIMARY KEY, n int NOT NULL DEFAULT 0)});
	ask(q{SELECT lease_fence.protect('late', resource => '{name}', inserts => 'free', lapsed => 'accept')});
	my $r = resource('s');
	ask("INSERT INTO late VALUES ('$r')");
	my $a = lock_and_adopt($r, 'a', 800);
	await_gone($r);
	await_over($a);
	is_over($r, $a, '5: after the pause it does not write');
	like(the_error(), qr/its time ran out/, '5: and is told why');
	is(ask_for("SELECT outcome FROM lease_fence.guarded_increment(relation => 'late', key => '$r', column_name => 'n', token => $a)"),
		'applied', '5: unless the guard accepts what nobody took since');
	my $b = lock_and_adopt($r, 'b');
	is(ask_for("SELECT outcome FROM lease_fence.guarded_increment(relation => 'late', key => '$r', column_name => 'n', token => $a)"),
		'LF001', '5: until somebody does');
}

# 6, 21: deleted under its holder, who cannot reach Redis any more
{
	my $r = resource('s');
	my $a = lock_and_adopt($r, 'a');
	redis('DEL', $r);
	my $b = lock_and_adopt($r, 'b');
	is_growing('21: deleted under its holder', $a, $b);
	$redis->stop_signal;
	is_stale($r, $a, '6: refused by the database alone, Redis is silent');
	writes($r, $b, '6: and the live one is not held up');
	$redis->continue;
	await_status('s', 'connected');
}

# 8: a release that failed half-way leaves a count of 0
{
	my $r = resource('h');
	enter($r, 'a', 60000, 0);
	is(adopt($r, 'a'), 'LF005', '8: a count of 0 is no grant');
	like(the_error(), qr/no grant/, '8: which it is told');
	enter($r, 'a', 60000, 1);
	my $a = adopt($r, 'a');
	writes($r, $a, '8: a count of 1 is');
	enter($r, 'a', 60000, 0);
	await_over($a);
	is_over($r, $a, '8: until a release fails half-way');
}

# 18: handed out with hardly any time left
{
	my $r = resource('s');
	redis('SET', $r, 'a', 'PX', 60);
	is(adopt($r, 'a'), 'LF005', '18: no token for a lock that is as good as over');
	like(the_error(), qr/Less than 100 ms are left|Nobody has the lock/, '18: which it is told');
}

# 19: the old object is kept after the lock was prolonged by SET
{
	my $r = resource('s');
	my $a = lock_and_adopt($r, 'a', 5000);
	redis('SET', $r, 'a', 'PX', 60000);
	is(adopt($r, 'a', $a), $a, '19: prolonged by SET, it is the same grant');
	writes($r, $a, '19: and writes');
}

# 15 (must pass)
{
	my $name = 'redlock-rb#36: an extend that revives a lost lock gives three grants';
	my $r = resource('s');
	my $t1 = lock_and_adopt($r, 'a', 700);
	await_gone($r);
	my $t2 = lock_and_adopt($r, 'b', 60000);
	redis('DEL', $r);
	is_deeply([ redis('SET', $r, 'a', 'PX', 60000), redis('GET', $r) ], [ 'OK', 'a' ], "$name: a is back");
	my $t3 = adopt($r, 'a');
	is_growing($name, $t1, $t2, $t3);
	is_stale($r, $t1, "$name: the first does not write though the lock is a's again");
	is_stale($r, $t2, "$name: nor the second");
	is(adopt($r, 'a', $t1), 'LF001', "$name: nor is the first one taken for the same grant");
	writes($r, $t3, "$name: the third does");

	$r = resource('s');
	$t1 = lock_and_adopt($r, 'a', 700);
	await_gone($r);
	await_over($t1);
	redis('SET', $r, 'a', 'PX', 60000);
	is(adopt($r, 'a', $t1), 'LF001', "$name: nor when the one between was never seen");
	is_over($r, $t1, "$name: then too the first is over");
	is_growing($name, $t1, adopt($r, 'a'));
}

# 29, 45: one id for a whole process
{
	my $r = resource('s');
	my $a = lock_and_adopt($r, '10', 60000);
	my $b = adopt($r, '10');
	is_growing('29: two who use one id', $a, $b);
	is_stale($r, $a, '29: only the later of them writes');
	redis('PEXPIRE', $r, 700);
	await_gone($r);
	my $c = lock_and_adopt($r, '10');
	is_growing('45: the same id takes it again', $b, $c);
	is_stale($r, $b, '45: the thread before it is fenced');
}

# 31: released and prolonged without looking whose it is
{
	my $r = resource('s');
	my $a = lock_and_adopt($r, 'a', 700);
	await_gone($r);
	my $b = lock_and_adopt($r, 'b');
	redis('DEL', $r);
	my $c = lock_and_adopt($r, 'c');
	is_growing("31: a frees b's lock", $a, $b, $c);
	is_stale($r, $b, '31: b does not write under what c has');

	redis('SET', $r, 'a', 'XX', 'PX', 60000);
	await_over($c);
	is_stale($r, $c, "31: a prolongs c's lock by overwriting it: c is stale before a comes");
	my $again = adopt($r, 'a');
	is_growing('31: and a has a new grant', $c, $again);
	is_stale($r, $a, "31: a's old one stays refused");
	writes($r, $again, "31: a's new one is not");
}

# 26, 30: the value is a time; taken over by GETSET
{
	my $r = resource('s');
	redis('SET', $r, '1299705693.0');
	is(adopt($r, '1299705693.0'), 'LF005', '26: a time in place of an expiry is none');
	like(the_error(), qr/no expiry/, '26: which it is told');
	redis('SET', $r, '1299705693.0', 'PX', 60000);
	my $a = adopt($r, '1299705693.0');
	redis('SET', $r, '1299705777.5', 'XX', 'GET', 'PX', 60000);
	await_over($a);
	is_stale($r, $a, '30: taken over with nothing deleted, it is superseded at once');
	is_growing('30: taken over', $a, adopt($r, '1299705777.5'));
}

# 27: SETNX without EXPIRE; 25 (must pass): leases of days
{
	my $name = 'lyokato/redlock#21: a ttl multiplied twice';
	my $r = resource('s');
	redis('SETNX', $r, 'a');
	is(adopt($r, 'a'), 'LF005', '27: a lock that never runs out is not adopted');
	is(ask_for("SELECT token FROM lease_fence.acquire(resource => '$r', wait => '200ms', scope => 'detached')"),
		'55P03', '27: and waited for as any other');

	foreach my $ms ('9000000000000000000', '40000000000')
	{
		$r = resource('s');
		my $a = lock_and_adopt($r, 'a', $ms);
		writes($r, $a, "$name: $ms ms are accepted");
		is(ask("SELECT lease_fence.remaining($a) BETWEEN '364 days' AND '366 days'"), 't',
			"$name: but nothing runs for longer than a year");
		is(ask("SELECT expires_in > '364 days' FROM lease_fence.adopt(resource => '$r', holder => 'a')"),
			't', "$name: what adopt says is a time");
		is(ask("SELECT count(*) FROM lease_fence.leases WHERE resource = '$r'"), '1', "$name: and so does the view");
	}
	is(worker_pid() =~ /^\d+$/ ? 'running' : '', 'running', "$name: the worker lives on");
}

# 32 (must pass)
{
	my $name = 'laravel/framework#36337: a serializer packs the owner';
	foreach my $packed ("\x00\x00\x00\x02\x11\x04abcd", join('', map { chr } 0 .. 9, 0xf0 .. 0xff), 's:4:"abcd";')
	{
		my $r = resource('s');
		my $hex = unpack 'H*', $packed;
		redis('SET', $r, $packed, 'PX', 60000);
		is(adopt($r, 'abcd'), 'LF005', "$name: $hex is not the plain owner");
		my $short = "'\\x" . unpack('H*', substr $packed, 0, -1) . "'::bytea";
		is(adopt($r, \$short), 'LF005', "$name: nor a part of it");
		my $bytes = "'\\x$hex'::bytea";
		my $a = adopt($r, \$bytes);
		like($a, qr/^\d+$/, "$name: the exact bytes are adopted") or diag(the_error());
		writes($r, $a, "$name: and write");
		is(ask("SELECT encode(holder, 'hex') FROM lease_fence.grants WHERE token = $a"), $hex,
			"$name: and are kept whole");
		is(ask("SELECT count(*) FROM lease_fence.leases WHERE token = $a"), '1', "$name: and shown");
	}
}

# 33: deleted by an operator; 37: a past expiry gives `del`, not `expired`
{
	foreach my $case ([ '33: DEL by an operator', 'DEL' ], [ '37: an expiry in the past', 'PEXPIRE', -1 ])
	{
		my ($what, $command, @rest) = @$case;
		my $r = resource('s');
		my $a = lock_and_adopt($r, 'a');
		redis($command, $r, @rest);
		cmp_ok(await_over($a), '<', 15, "$what: seen without waiting for the next look");
		is_over($r, $a, "$what: its holder does not write any more");
	}
}

# 34 (must pass)
{
	my $name = 'redis/hiredis PR 888: FLUSHALL says nothing, and all grants end';
	my ($r1, $r2) = (resource('s'), resource('s'));
	my ($a, $b) = (lock_and_adopt($r1, 'a', 9000), lock_and_adopt($r2, 'b', 9000));
	my $pid = worker_pid();
	$redis->flushall;
	my $c = lock_and_adopt($r1, 'c');
	is_growing($name, $a, $c);
	is_stale($r1, $a, "$name: who was flushed does not write beside who came");
	writes($r1, $c, "$name: who came does");
	cmp_ok(await_over($b), '<', 6, "$name: the other is over well before its deadline");
	is(how_ended($b), 'released', "$name: by a look, not by its deadline");
	is_over($r2, $b, "$name: nor does the other write");
	is(worker_pid(), $pid, "$name: the worker lives on");
}

# ---- a Redis that cannot, or does not know ----

# 16: after SCRIPT FLUSH nothing works until the process restarts
{
	my $r = resource('s');
	my $a = lock_and_adopt($r, 'a');
	redis('SCRIPT', 'FLUSH');
	my $before = ask('SELECT clock_timestamp()');
	my $b = adopt($r, 'a');
	is_growing('16: SCRIPT FLUSH', $a, $b);
	await_status('s', "last_success > '$before'");
	pass('16: the view shows when something was last asked with success');
	redis('SCRIPT', 'FLUSH');
	is(ask("SELECT lease_fence.release(token) FROM lease_fence.acquire(resource => '" . resource('s') . "', scope => 'detached')"),
		't', '16: nor does what writes stop');
}

# 20: cannot save; 35: memory is full; 22: locks share a cache that evicts
{
	my $r = resource('s');
	redis('SET', $r, 'a', 'PX', 60000);
	my $other = resource('s');
	my $acquire = "SELECT token FROM lease_fence.acquire(resource => '$other', scope => 'detached', wait => '5s')";

	$redis->memory_full;
	my $a = adopt($r, 'a');
	like($a, qr/^\d+$/, '35: with memory full what only reads goes on') or diag(the_error());
	is(ask_for($acquire), 'LF020', '35: a lock cannot be taken then');
	like(the_error(), qr/OOM/, '35: which is said');
	is(ask("SELECT count(*) FROM lease_fence.grants WHERE resource = '$other'"), '0', '35: no grant is invented');
	$redis->memory_free;

	mkdir $redis->dir . '/dump.rdb' or die $!;
	$redis->config_set('save', '3600 1000000');
	redis('BGSAVE');
	wait_until('saving has failed', sub { $redis->cli('INFO', 'persistence') =~ /rdb_last_bgsave_status:err/ });
	like($redis->command('SET', 'x', 1), qr/^-MISCONF/, '20: Redis cannot save and takes no writes');
	is_growing('20: a check is none', $a, adopt($r, 'a'));
	is(ask_for($acquire), 'LF020', '20: a lock cannot be taken');
	like(the_error(), qr/MISCONF/, '20: which is said');
	rmdir $redis->dir . '/dump.rdb';
	$redis->config_set('save', '');
	like(ask_for($acquire), qr/^\d+$/, '20: until it can again') or diag(the_error());

	my $cache = RedisServer->new('maxmemory-policy' => 'volatile-lru');
	add_server('cache', $cache->port, options => $events);
	$r = resource('cache');
	$cache->must('SET', $r, 'a', 'PX', 60000);
	$a = adopt($r, 'a');
	await_status('cache', 'warning IS NOT NULL');
	like(status('cache', 'warning'), qr/maxmemory-policy is volatile-lru/, '22: the view warns of a cache that evicts');
	is(ask("SELECT severity || ' ' || (problem ~ 'volatile-lru') FROM lease_fence.check() WHERE object ~ 'cache'"),
		'warning true', '22: and so does check()');
	$cache->config_set('maxmemory', 1);
	$cache->command('SET', 'x', 1);
	await_gone_on($cache, $r);
	await_over($a);
	is_over($r, $a, '22: a lock that was evicted is over');
	$cache->config_set('maxmemory-policy', 'noeviction');
	$cache->stop;
	ask("SELECT lease_fence.drop_profile('cache')");
	ask('DROP SERVER cache');
}

sub await_gone_on
{
	my ($server, $key) = @_;
	return wait_until("$key is gone", sub { !$server->command('EXISTS', $key) });
}

# ---- names, permissions, clusters ----

# 11: logical and real names
{
	ask("SELECT lease_fence.add_profile(name => 'order', prefix => 'order:', servers => '{s}', lock_key => 'app:{resource}')");
	my $r = resource('order');
	redis('SET', $r, 'a', 'PX', 60000);
	is(adopt($r, 'a'), 'LF005', '11: a lock under another name protects nothing, and is not taken for it');
	like(the_error(), qr/Nobody has the lock/, '11: which is said');
	redis('SET', "app:$r", 'a', 'PX', 60000);
	my $a = adopt($r, 'a');
	writes($r, $a, '11: the template says where it is');
	redis('DEL', $r);
	redis('DEL', "app:$r");
	cmp_ok(await_over($a), '<', 15, '11: and events are those of the real name');
}

# 13: a token of another counter; 46: that counter begins anew
{
	my $r = resource('h');
	enter($r, 'a:1');
	redis('SET', "redisson_lock_token:{$r}", 41);
	my $a = adopt($r, 'a:1');
	is(write_under($r, 41), 'LF004', "13: another counter's token is unknown");
	redis('DEL', "redisson_lock_token:{$r}");
	is_growing('46: that counter is lost', $a, adopt($r, 'a:1'));
}

# 43: names that are patterns
{
	my %names = map { $_ => undef } 'lock[1]', 'a*b', 'a\b', 'q?', "two\nlines", '{x}', '{{', "tab\t", ' ', 'x' x 510;
	foreach my $name (sort keys %names)
	{
		my $r = resource('s', $name);
		redis('SET', $r, 'a', 'PX', 60000);
		$names{$name} = adopt($r, 'a');
		like($names{$name}, qr/^\d+$/, '43: adopted: ' . substr $name =~ s/\s/_/gr, 0, 20) or diag(the_error());
	}
	# What a pattern would match besides.
	foreach my $other (qw(s:lock1 s:axxb s:ab s:qq))
	{
		redis('SET', $other, 'b', 'PX', 60000);
		redis('DEL', $other);
	}
	my $last = (sort keys %names)[-1];
	redis('DEL', "s:$last");
	await_over($names{$last});
	foreach my $name (grep { $_ ne $last } sort keys %names)
	{
		ok(is_live($names{$name}), '43: not by what its pattern matches: ' . substr $name =~ s/\s/_/gr, 0, 20);
		redis('DEL', "s:$name");
		cmp_ok(await_over($names{$name}), '<', 15, '43: but by its own event');
	}
}

# 49: an empty name
{
	is(ask_for("SELECT lease_fence.adopt(resource => '', holder => 'a')"), '22023', "49: '' is no resource");
	is(ask_for("SELECT lease_fence.adopt(resource => NULL, holder => 'a')"), '22023', '49: nor is NULL');
	is(ask_for("SELECT lease_fence.adopt(resource => 's:1', holder => NULL::text)"), '22023', '49: nor NULL a holder');
	is(ask_for("SELECT lease_fence.adopt(resource => 's:1', holder => '')"), '22023', "49: nor ''");
	ask("CREATE TABLE subscription (id int PRIMARY KEY, tenant text, n int DEFAULT 0)");
	ask("SELECT lease_fence.protect('subscription', resource => 's:{tenant}', inserts => 'free')");
	my $r = resource('s');
	my $a = lock_and_adopt($r, 'a');
	ask('INSERT INTO subscription VALUES (1, NULL)');
	isnt(ask_for("SELECT * FROM lease_fence.guarded_increment(relation => 'subscription', key => '1', column_name => 'n', token => $a)"),
		'applied', '49: NULL never means that nothing is to be looked at');
}

# 17: times that are none
{
	my $r = resource('s');
	foreach my $ttl ('1.5ms', '0', '-1s', 'NaN', '-infinity')
	{
		my $state = ask_for("SELECT token FROM lease_fence.acquire(resource => '$r', ttl => '$ttl', scope => 'detached')");
		like($state, qr/^220(23|07|08)$/, "17: a ttl of $ttl is refused");
		like(the_error(), $ttl eq '0' ? qr/00:00:00/ : $ttl eq '-1s' ? qr/-00:00:01/ : $ttl eq '1.5ms' ? qr/0015/ : qr/\Q$ttl\E/,
			'17: and named');
		like(ask_for("ALTER SERVER s OPTIONS (ADD command_timeout '$ttl')"), qr/^(22023|HV...)$/,
			"17: a time-out of $ttl is refused");
		like(the_error(), qr/\Q$ttl\E/, '17: and named');
		is(ask_for("ALTER SYSTEM SET lease_fence.drain_timeout = '$ttl'"), '22023', "17: a setting of $ttl is refused")
		  if $ttl !~ /^(1.5ms|0)$/;
	}
	is(ask('SHOW lease_fence.drain_timeout'), '2s', '17: the setting stays as it was');
	like(ask("SELECT token FROM lease_fence.acquire(resource => '$r', scope => 'detached')"), qr/^\d+$/,
		'17: and nothing is the worse for it');
}

# 10: a user who may reach some keys; 44: and no channel
{
	redis(qw(ACL SETUSER narrow on >secret ~lock:yes:* resetchannels +@all));
	add_server('lock', $redis->port, user => "username 'narrow', password 'secret'");
	my ($yes, $no) = (resource('lock', 'yes:1'), resource('lock', 'no:1'));
	redis('SET', $_, 'a', 'PX', 6000) foreach $yes, $no;

	my $errors = $redis->cli('INFO', 'errorstats') =~ /errorstat_NOPERM:count=(\d+)/ ? $1 : 0;
	my $a = adopt($yes, 'a');
	await_status('lock', "last_error ~ 'NOPERM'");
	my $connections = $redis->cli('INFO', 'stats') =~ /total_connections_received:(\d+)/ ? $1 : 0;
	is(adopt($no, 'a'), 'LF020', '10: a key that is out of reach');
	like(the_error(), qr/NOPERM/, '10: is said to be');
	writes($yes, $a, '10: what is within reach goes on');
	is(status('lock', 'connected'), 't', '10: the connection is kept');

	redis('SET', $yes, 'b', 'PX', 60000);
	await_over($a);
	is_stale($yes, $a, '44: without events the next look finds the new holder');
	is_growing('44: without events', $a, adopt($yes, 'b'));
	my $now = $redis->cli('INFO', 'errorstats') =~ /errorstat_NOPERM:count=(\d+)/ ? $1 : 0;
	cmp_ok($now - $errors, '<=', 3, '44: what is not allowed is not tried again and again');
	$now = $redis->cli('INFO', 'stats') =~ /total_connections_received:(\d+)/ ? $1 : 0;
	cmp_ok($now - $connections, '<', 10, '44: nor connected for');	# those of this test
	my @lines = slurp_file($node->logfile) =~ /^.*NOPERM.*subscri.*$/mgi;
	cmp_ok(scalar @lines, '<=', 1, '44: and the log is not filled with it');
}

# 9: keys and channels in different slots of a cluster
{
	my $cluster = RedisServer->new('cluster-enabled' => 'yes', 'cluster-port' => RedisServer::free_port());
	$cluster->must('CLUSTER', 'ADDSLOTSRANGE', 0, 16383);
	wait_until('the cluster is up', sub { $cluster->cli('CLUSTER', 'INFO') =~ /cluster_state:ok/ });
	add_server('cluster', $cluster->port);
	ask("SELECT lease_fence.add_profile(name => 'slots', prefix => 'slots:', servers => '{cluster}', shape => 'redisson')");
	foreach my $prefix (qw(cluster slots))
	{
		my $r = resource($prefix);
		my $token = ask_for("SELECT token FROM lease_fence.acquire(resource => '$r', scope => 'detached')");
		writes($r, $token, "9: $prefix: a key without braces works in a cluster");
		is(ask_for("SELECT lease_fence.renew($token) > '0'"), 't', "9: $prefix: renewed");
		is(ask_for("SELECT lease_fence.release($token)"), 't', "9: $prefix: released");
		await_gone_on($cluster, $r);
		pass("9: $prefix: and gone there");
	}
	$cluster->must('SET', 'cluster:x', 'a', 'PX', 60000);
	writes('cluster:x', adopt(resource('cluster', 'x'), 'a'), '9: adopted');
}

# ---- events that do not come, and a network that lets nothing through ----

# 38: the subscriber hears nothing
{
	my $mute = RedisServer->new;	# its events are off
	my $deaf = FakeRedis->new($mute);
	add_server('deaf', $deaf->port);
	my $r = resource('deaf');
	$mute->must('SET', $r, 'a', 'PX', 6000);
	my $a = adopt($r, 'a');
	await_status('deaf', 'events');
	$mute->must('SET', $r, 'b', 'PX', 60000);
	cmp_ok(await_over($a), '<', 5, '38: no event came, and a look saw the new holder before the deadline');
	is_stale($r, $a, '38: the old one does not write');
	is_growing('38: no event', $a, adopt($r, 'b'));

	# The subscription takes its time, and in that time the lock is deleted.
	ask("ALTER SERVER deaf OPTIONS (ADD command_timeout '20s')");
	adopt($r, 'b');
	await_status('deaf', 'events');
	my $pings = sub { return scalar grep { /PING/i } $deaf->commands };
	my $so_far = $pings->();
	wait_until('the new connection has looked at all', sub { $pings->() > $so_far + 1 });
	$deaf->misbehave('dribble', 'SUBSCRIBE');
	$r = resource('deaf');
	$mute->must('SET', $r, 'a', 'PX', 60000);
	$a = adopt($r, 'a');
	$mute->must('DEL', $r);
	cmp_ok(await_over($a), '<', 15, '38: what happened before the subscription began is found when it does');
	$deaf->behave;
	ask("ALTER SERVER deaf OPTIONS (DROP command_timeout)");
	wait_until('it is connected anew', sub { adopt('deaf:1', 'b') =~ /^\d+$/ });

	# 47: one answer does not come in time
	$r = resource('deaf');
	$mute->must('SET', $r, 'a', 'PX', 20000);
	$a = adopt($r, 'a');
	$deaf->misbehave('silent');
	is(ask_for("SELECT lease_fence.adopt(resource => '" . resource('deaf') . "', holder => 'a')"), 'LF020',
		'47: an answer that does not come in time');
	writes($r, $a, '47: it does not end a lease');
	$deaf->behave;
	my $before = ask('SELECT clock_timestamp()');
	await_status('deaf', "last_success > '$before'");
	ok(is_live($a), '47: nor afterwards');
	writes($r, $a, '47: it writes on');
	is(adopt($r, 'a', $a), $a, '47: and is prolonged') or diag(the_error());
	$deaf->stop;
	$mute->stop;
	ask("SELECT lease_fence.drop_profile('deaf')");
	ask('DROP SERVER deaf');
}

# 39: a slow subscriber is cut off
{
	my $r = resource('s');
	my $a = lock_and_adopt($r, 'a');
	$redis->config_set('client-output-buffer-limit', 'pubsub 1mb 1mb 1');
	await_status('s', 'events');
	my $worker = worker_pid();
	kill 'STOP', $worker;
	redis('EVAL', "for i = 1, 200000 do redis.call('SET', KEYS[1], 'a', 'PX', 60000) end", 1, $r);
	wait_until('the subscriber is cut off', sub { $redis->cli('CLIENT', 'LIST', 'TYPE', 'pubsub') !~ /\bsub=[1-9]/ });
	redis('SET', $r, 'b', 'PX', 60000);
	kill 'CONT', $worker;
	await_over($a);
	is_stale($r, $a, '39: what happened while the subscriber was cut off is found');
	is_growing('39: a subscriber that was cut off', $a, adopt($r, 'b'));
	await_status('s', 'connected AND events');
	is(worker_pid(), $worker, '39: by the same worker, which listens again');
	$redis->config_set('client-output-buffer-limit', 'pubsub 32mb 8mb 60');
}

# 40 (must pass)
{
	my $name = 'ioredis#1451: a network that loses everything, silently';
	my $proxy = RedisProxy->new($redis->port);
	add_server('far', $proxy->port);
	my ($r, $long) = (resource('far'), resource('far'));
	redis('SET', $r, 'a', 'PX', 3000);
	redis('SET', $long, 'a', 'PX', 60000);
	my ($a, $l) = (adopt($r, 'a'), adopt($long, 'a'));
	$proxy->lose;
	redis('SET', $r, 'b', 'PX', 60000);
	redis('SET', $long, 'b', 'PX', 60000);

	is(adopt($r, 'b'), 'LF020', "$name: nobody is granted anything");
	writes($long, $l, "$name: a lease lives until its deadline");
	await_over($a);
	is_over($r, $a, "$name: and no longer");
	is(status('far', "NOT connected AND last_error ~ 'command_timeout'"), 't', "$name: which the view shows");
	is(ask_for("SELECT lease_fence.acquire(resource => '" . resource('far') . "', scope => 'detached')"),
		'LF020', "$name: still nothing is granted");

	$proxy->resume;
	await_status('far', 'connected');
	await_over($l);
	is_stale($long, $l, "$name: when it is over, all leases are looked at");
	is_growing($name, $a, adopt($r, 'b'));
	is_growing($name, $l, adopt($long, 'b'));
	ask("SELECT lease_fence.drop_profile('far')");
	ask('DROP SERVER far');
}

# ---- another server than before ----

# 14: a failover; 41: a client stays with who is no master any more
{
	my ($first, $second) = (RedisServer->new, RedisServer->new);
	$second->must('REPLICAOF', '127.0.0.1', $first->port);
	wait_until('the replica is up to date', sub { $second->cli('INFO', 'replication') =~ /master_link_status:up/ });
	add_server('pair', $first->port, options => $events);
	my $r = resource('pair');
	$first->must('SET', $r, 'a', 'PX', 60000);
	$first->must('WAIT', 1, 5000);
	my $a = adopt($r, 'a');

	$second->must('REPLICAOF', 'NO', 'ONE');
	$second->must('SET', $r, 'b', 'PX', 60000);
	$first->must('REPLICAOF', '127.0.0.1', $second->port);
	await_over($a);
	isnt(write_under($r, $a), '', '41: its holder does not write any more');
	is(adopt($r, 'a'), 'LF020', '41: who is no master any more grants nothing');
	like(the_error(), qr/replica/, '41: which is said, and a script that succeeds there is no proof');

	ask("ALTER SERVER pair OPTIONS (SET port '" . $second->port . "')");
	wait_until('the new master is asked', sub { adopt($r, 'b') =~ /^\d+$/ });
	is(adopt($r, 'a'), 'LF005', '14: the new master knows who has it');
	my $b = adopt($r, 'b');
	is_growing('14: a failover', $a, $b);
	isnt(write_under($r, $a), '', '14: the old holder is refused');
	$second->must('SET', $r, 'c', 'PX', 60000);
	await_over($b);
	is_stale($r, $b, '14: events come from the new master');
}

# 48: the same name after a restart
{
	my $saved = RedisServer->new;
	add_server('saved', $saved->port);
	my $r = resource('saved');
	$saved->must('SET', $r, 'a', 'PX', 60000);
	my $a = adopt($r, 'a');
	$saved->must('SAVE');
	$saved->restart;
	is($saved->cli('GET', $r), 'a', '48: the lock is there after a restart');
	await_over($a);
	is_over($r, $a, '48: but that it was there all the time nobody knows');
	is_growing('48: the same holder after a restart', $a, adopt($r, 'a'));
	isnt(write_under($r, $a), '', '48: and its grant from before stays refused');
}

# 36: Redis' clock is moved
SKIP:
{
	my $dir = File::Temp->newdir;
	skip 'no C compiler', 9
	  if system("cc -shared -fPIC -o $dir/clock.so $FindBin::RealBin/../clock_shim.c >$dir/log 2>&1") != 0;
	my $set = sub {
		open my $file, '>:raw', "$dir/seconds.new" or die $!;
		close $file;
		open $file, -e "$dir/seconds" ? '+<:raw' : '>:raw', "$dir/seconds" or die $!;
		syswrite $file, pack 'q', $_[0];
		close $file;
	};
	$set->(0);
	my $moved = RedisServer->new(environment => { LD_PRELOAD => "$dir/clock.so", CLOCK_SHIM_FILE => "$dir/seconds" });
	add_server('moved', $moved->port, options => $events);
	my $hour = sub {
		my $before = $moved->command('TIME')->[0];
		$set->($_[0] * 3600);
		wait_until('the clock has moved', sub { abs($moved->command('TIME')->[0] - $before) > 1800 });
	};

	my ($r, $kept) = (resource('moved'), resource('moved'));
	$moved->must('SET', $_, 'a', 'PX', 60000) foreach $r, $kept;
	my $a = adopt($r, 'a');
	$hour->(1);
	is($moved->must('SET', $r, 'b', 'NX', 'PX', 60000), 'OK', '36: forward: all locks have run out');
	my $b = adopt($r, 'b');
	is_growing('36: forward', $a, $b);
	is_stale($r, $a, '36: forward: who had it does not write');
	writes($r, $b, '36: forward: who has it does');
	is(ask("SELECT lease_fence.remaining($b) BETWEEN '50 seconds' AND '60 seconds'"), 't',
		"36: forward: Redis' clock is not compared with ours");

	$hour->(0);
	is_stale($r, $a, '36: backward: no token comes back to life');
	is($moved->command('SET', $r, 'c', 'NX', 'PX', 60000), undef, '36: backward: the lock lasts for longer');
	is(adopt($r, 'b', $b), $b, '36: backward: it is still the same grant');
	$moved->must('DEL', $r);
	$moved->must('SET', $r, 'c', 'PX', 60000);
	my $c = adopt($r, 'c');
	is_growing('36: backward', $b, $c);
	is_stale($r, $b, '36: backward: and superseded like any other');
}

unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');
done_testing();
