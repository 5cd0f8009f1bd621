# The scripts that Redis runs, against a real Redis: what they say of every lock
# that may be there, and that they write what the libraries write.

use strict;
use warnings;

use FindBin;
use RedisClient;
use RedisPython;
use RedisServer;
use Test::More;

plan skip_all => 'no redis-server here' unless RedisServer::available();

my @states = qw(HELD OTHER ABSENT NO_EXPIRY WRONG_TYPE NO_GRANT);
my %first = map { $_ => slurp("${_}_first.lua") } qw(renew check);
my %whole = map { $_ => slurp("lock.lua") . slurp("$_.lua") } qw(acquire renew check release);
my %text = map { $_ => ($first{$_} // '') . $whole{$_} } keys %whole;

my $redis = RedisServer->new;
my $client = $redis->client;

sub slurp
{
	my ($name) = @_;
	open my $file, '<:raw', "$FindBin::Bin/../../src/lua/$name" or die "$name: $!";
	local $/;
	return scalar <$file>;
}

# What a script answers: its state by name, and the time left; or an error.  What it
# does not need is not sent.  Of renew: ttl alone means that it is held so long.
sub ask
{
	my ($script, $key, $shape, $value, %option) = @_;
	my @words = ($shape, $value, $script eq 'acquire' || $script eq 'renew' ? $option{ttl} // '' : ());
	push @words, $option{instead} // '' if $script eq 'acquire';
	my $answer = ($option{client} // $client)->command('EVAL', $option{text} // $text{$script}, 1, $key, @words);

	$answer = [ 0, $answer ] if $script eq 'renew' && defined $answer && $answer eq ($option{ttl} // '');
	return $answer // 'nothing' unless ref $answer;
	die "not two integers" unless @$answer == 2 && !grep { !/^-?\d+$/ } @$answer;
	return wantarray ? ($states[ $answer->[0] ], $answer->[1]) : $states[ $answer->[0] ];
}

sub check { return scalar ask('check', @_); }
sub acquire { return scalar ask('acquire', @_); }
sub renew { return scalar ask('renew', @_); }
sub release { return scalar ask('release', @_); }

sub redis
{
	my (@words) = @_;
	my $answer = $client->command(@words);
	die "@words: $answer" if defined $answer && $answer =~ /^-[A-Z]/;
	return $answer;
}

# What is stored under k, in a form that can be shown.
sub stored
{
	return unpack 'H*', redis('DUMP', 'k') // '';
}

sub left_is
{
	my ($left, $most, $what) = @_;
	ok($left <= $most && $left > $most - 50_000, "$what: $left of $most ms") or diag($left);
	return;
}

# ---- what is there, as one holder sees it ----

# Shape, how it came there, and what check says to holder a.
my @cases = (
	[ s => 'nothing is there', 'ABSENT', -1 ],
	[ s => 'a lock of the holder', 'HELD', 60000, [qw(SET k a PX 60000)] ],
	[ s => 'a lock of another', 'OTHER', 60000, [qw(SET k b PX 60000)] ],
	[ s => 'one whose holder begins alike', 'OTHER', 60000, [qw(SET k aa PX 60000)] ],
	[ s => 'one whose holder is the same in other letters', 'OTHER', 60000, [qw(SET k A PX 60000)] ],
	[ s => 'one that never runs out', 'NO_EXPIRY', -1, [qw(SET k a)] ],
	[ s => "another's that never runs out", 'OTHER', -1, [qw(SET k b)] ],
	[ s => 'an empty value', 'OTHER', 60000, [ 'SET', 'k', '', 'PX', 60000 ] ],
	[ s => "a writer's mark that it waits", 'OTHER', 60000, [qw(SET k a_WRITERWAITING PX 60000)] ],
	[ s => 'a number', 'OTHER', -1, [qw(SET k 1299705693.0)] ],
	[ s => 'a hash', 'WRONG_TYPE', -1, [qw(HSET k a 1)] ],
	[ s => 'a list', 'WRONG_TYPE', -1, [qw(RPUSH k a)] ],
	[ s => 'a set', 'WRONG_TYPE', -1, [qw(SADD k a)] ],
	[ s => 'a sorted set', 'WRONG_TYPE', 60000, [qw(ZADD k 1 a)], [qw(PEXPIRE k 60000)] ],
	[ s => 'a stream', 'WRONG_TYPE', -1, [qw(XADD k * a 1)] ],
	[ s => 'a value of one MB', 'OTHER', -1, [ 'SET', 'k', 'a' x 1_000_000 ] ],
	[ h => 'nothing is there', 'ABSENT', -1 ],
	[ h => 'a lock of the holder', 'HELD', 60000, [qw(HSET k a 1)], [qw(PEXPIRE k 60000)] ],
	[ h => 'one that was entered three times', 'HELD', 60000, [qw(HSET k a 3)], [qw(PEXPIRE k 60000)] ],
	[ h => 'a lock of another', 'OTHER', 60000, [qw(HSET k b 1)], [qw(PEXPIRE k 60000)] ],
	[ h => 'one that never runs out', 'NO_EXPIRY', -1, [qw(HSET k a 1)] ],
	[ h => 'a count of 0', 'NO_GRANT', 60000, [qw(HSET k a 0)], [qw(PEXPIRE k 60000)] ],
	[ h => 'a count of 0 that never runs out', 'NO_GRANT', -1, [qw(HSET k a 0)] ],
	[ h => 'a negative count', 'NO_GRANT', 60000, [qw(HSET k a -1)], [qw(PEXPIRE k 60000)] ],
	[ h => 'a count that is no number', 'NO_GRANT', 60000, [qw(HSET k a nan)], [qw(PEXPIRE k 60000)] ],
	[ h => 'an empty count', 'NO_GRANT', 60000, [ 'HSET', 'k', 'a', '' ], [qw(PEXPIRE k 60000)] ],
	[ h => 'a text about the holder in place of its count', 'HELD', 60000,
		[ 'HSET', 'k', 'a', '{"worker":"x","limit":1}' ], [qw(PEXPIRE k 60000)] ],
	[ h => 'a lock for readers', 'NO_GRANT', 60000, [qw(HSET k mode read a 1 b 1)], [qw(PEXPIRE k 60000)] ],
	[ h => "a writer's lock that the holder also reads under", 'NO_GRANT', 60000,
		[qw(HSET k mode write a:write 1 a 1)], [qw(PEXPIRE k 60000)] ],
	[ h => "a string", 'WRONG_TYPE', 60000, [qw(SET k a PX 60000)] ],
	[ h => "a set", 'WRONG_TYPE', -1, [qw(SADD k a)] ]);

foreach my $case (@cases)
{
	my ($shape, $what, $state, $most, @commands) = @$case;
	redis('DEL', 'k');
	redis(@$_) foreach @commands;
	my $before = stored();
	my $expected = $commands[0] ? "$state" : 'ABSENT';

	my ($found, $left) = ask('check', 'k', $shape, 'a');
	is($found, $expected, "$shape: $what");
	$most < 0 ? is($left, $most, "$shape: $what: time left") : left_is($left, $most, "$shape: $what");

	next if $state eq 'ABSENT' || $state eq 'HELD';
	is(renew('k', $shape, 'a', ttl => 90000), $state, "$shape: $what: not renewed");
	next if $state eq 'NO_EXPIRY';
	is(acquire('k', $shape, 'a', ttl => 90000), $state, "$shape: $what: not taken");
	is(acquire('k', $shape, 'a', ttl => 90000, instead => 'x'), $state, "$shape: $what: nor from another");
	is(release('k', $shape, 'a'), $state, "$shape: $what: not released");
	is(stored(), $before, "$shape: $what: as it was");
	cmp_ok(redis('PTTL', 'k'), '<=', $most, "$shape: $what: with the time it had");
}

# What is no holder, even to who names it.
redis('DEL', 'k');
foreach my $marker ([ s => '' ], [ s => 'x_WRITERWAITING' ], [ h => '' ], [ h => 'mode' ])
{
	my ($shape, $value) = @$marker;
	is(acquire('k', $shape, $value, ttl => 1000), 'NO_GRANT', "$shape: '$value' is not taken");
	is(redis('EXISTS', 'k'), 0, "$shape: '$value': nothing is written");
	redis($shape eq 's' ? ('SET', 'k', $value) : ('HSET', 'k', $value, 1));
	redis(qw(PEXPIRE k 60000));
	is(check('k', $shape, $value), 'NO_GRANT', "$shape: '$value' holds nothing");
	is(renew('k', $shape, $value, ttl => 90000), 'NO_GRANT', "$shape: '$value' is not renewed");
	is(release('k', $shape, $value), 'NO_GRANT', "$shape: '$value' is not released");
	left_is(redis(qw(PTTL k)), 60000, "$shape: '$value' keeps the time it had");
	redis('DEL', 'k');
}
redis(qw(HSET k mode write t:write 1));
redis(qw(PEXPIRE k 60000));
is(check('k', 'h', 't:write'), 'HELD', 'h: a writer alone holds a lock for readers and writers');
redis('SET', 'k', 'mode', 'PX', 60000);
is(check('k', 's', 'mode'), 'HELD', 's: mode is a holder like any other');

# ---- the first looks ----

# Alone, each answers in the usual case, and says and does nothing in any other.
sub first_look
{
	my ($script, $shape, $value, $ttl) = @_;
	my $answer = $client->command('EVAL', $first{$script}, 1, 'k', $shape, $value, $ttl);
	return defined $answer ? ref $answer ? "@$answer[0]" : $answer : 'nothing';
}

foreach my $script (sort keys %first)
{
	foreach my $case (@cases)
	{
		my ($shape, $what, $state, $most, @commands) = @$case;
		redis('DEL', 'k');
		redis(@$_) foreach @commands;
		my $before = stored();
		my $usual = $shape eq 's' && $commands[0] && $state eq 'HELD';

		is(first_look($script, $shape, 'a', 90000), !$usual ? 'nothing' : $script eq 'renew' ? 90000 : 0,
			"first look of $script: $shape: $what");
		is(stored(), $before, "first look of $script: $shape: $what: as it was");
		cmp_ok(redis('PTTL', 'k'), '<=', $usual && $script eq 'renew' ? 90000 : $most,
			"first look of $script: $shape: $what: the time");
	}
	foreach my $marker ('', 'x_WRITERWAITING')
	{
		redis('SET', 'k', $marker, 'PX', 60000);
		is(first_look($script, 's', $marker, 90000), 'nothing', "first look of $script: '$marker' holds nothing");
		left_is(redis(qw(PTTL k)), 60000, "first look of $script: '$marker'");
	}
}
redis(qw(SET k a PX 60000));
is(first_look('renew', 's', 'a', 50000), 'nothing', 'first look of renew: more is left');
left_is(redis(qw(PTTL k)), 60000, 'first look of renew: which stays');
is(first_look('renew', 's', 'a', '1e9'), 'nothing', 'first look of renew: a ttl that Redis refuses');

# ---- bytes ----

my $twenty = join '', map { chr } 0, 255, 10, 13, 0, 128, 200 .. 211, 0, 255;
my %bytes = (
	'twenty raw bytes' => $twenty,
	'bytes that phpredis packs' => "\x00\x00\x00\x02\x11\x04abcd",
	'a text that PHP serialises' => 's:4:"abcd";',
	'no UTF-8' => "\xc3\x28\xff",
	'one NUL' => "\0",
	'what Lua and formats make something of' => "%s%d%%]]\\0\"'--{}",
	'four kB' => join('', map { chr($_ % 256) } 1 .. 4096));

foreach my $shape ('s', 'h')
{
	foreach my $what (sort keys %bytes)
	{
		my $value = $bytes{$what};
		redis('DEL', 'k');
		is(acquire('k', $shape, $value, ttl => 60000), 'HELD', "$shape: $what: taken");
		is(unpack('H*', $shape eq 's' ? redis('GET', 'k') : redis('HGETALL', 'k')->[0]),
			unpack('H*', $value), "$shape: $what: as given");
		is(check('k', $shape, $value), 'HELD', "$shape: $what: held");
		is(check('k', $shape, substr($value, 0, -1)), 'OTHER', "$shape: $what: not by all but the last byte");
		is(check('k', $shape, "$value\0"), 'OTHER', "$shape: $what: nor with a NUL more");
		is(check('k', $shape, 'abcd'), 'OTHER', "$shape: $what: nor by the plain text");
		is(renew('k', $shape, $value, ttl => 90000), 'HELD', "$shape: $what: renewed");
		is(release('k', $shape, $value), 'HELD', "$shape: $what: released");
		is(redis('EXISTS', 'k'), 0, "$shape: $what: gone");
	}
	foreach my $key ('lock[1]', 'a*b', 'q?', 'a\\b', "two\nlines", "nul\0nul", "\xff\xfe", ' ', '',
		'{tag}:x', '{', 'k' x 1024)
	{
		my $shown = length $key > 99 ? 'of 1024 bytes' : $key =~ s/[^ -~]/./gr;
		redis('SET', 'lock1', 'other');
		is(acquire($key, $shape, 'a', ttl => 60000), 'HELD', "$shape: key $shown: taken");
		is(check($key, $shape, 'a'), 'HELD', "$shape: key $shown: held");
		is(redis('EXISTS', $key), 1, "$shape: key $shown: is that key");
		is(release($key, $shape, 'a'), 'HELD', "$shape: key $shown: released");
		is(redis('GET', 'lock1'), 'other', "$shape: key $shown: no other is touched");
	}
}

# ---- take, prolong, hand over, give up ----

foreach my $shape ('s', 'h')
{
	redis('FLUSHALL');
	my ($state, $left) = ask('acquire', 'k', $shape, 'a', ttl => 60000);
	is("$state $left", 'HELD 60000', "$shape: taken for as long as asked");
	my $dump = stored();

	($state, $left) = ask('acquire', 'k', $shape, 'b', ttl => 90000);
	is($state, 'OTHER', "$shape: not by a second");
	left_is($left, 60000, "$shape: who hears how long the first has it");
	is(acquire('k', $shape, 'a', ttl => 70000), 'HELD', "$shape: asked twice, taken once");
	is(stored(), $dump, "$shape: and nothing is counted");
	left_is(redis(qw(PTTL k)), 70000, "$shape: and prolonged");

	($state, $left) = ask('renew', 'k', $shape, 'a', ttl => 90000);
	is("$state $left", 'HELD 90000', "$shape: renewed");
	($state, $left) = ask('renew', 'k', $shape, 'a', ttl => 1000);
	is($state, 'HELD', "$shape: renewed for less than is left");
	left_is($left, 90000, "$shape: which stays");
	left_is(redis(qw(PTTL k)), 90000, "$shape: also in Redis");
	is(renew('k', $shape, 'b', ttl => 99000), 'OTHER', "$shape: not renewed by another");
	is(release('k', $shape, 'b'), 'OTHER', "$shape: not released by another");
	is(stored(), $dump, "$shape: and left as it was");

	is(acquire('k', $shape, 'b', ttl => 60000, instead => 'c'), 'OTHER', "$shape: not handed over by a third");
	($state, $left) = ask('acquire', 'k', $shape, 'b', ttl => 50000, instead => 'a');
	is("$state $left", 'HELD 50000', "$shape: handed over by the first");
	left_is(redis(qw(PTTL k)), 50000, "$shape: with the time of the new one");
	is(check('k', $shape, 'a'), 'OTHER', "$shape: which has it no longer");
	is(release('k', $shape, 'a'), 'OTHER', "$shape: its late release does nothing");
	is(check('k', $shape, 'b'), 'HELD', "$shape: the new one keeps it");

	($state, $left) = ask('release', 'k', $shape, 'b');
	is("$state $left", 'HELD 0', "$shape: released");
	is(release('k', $shape, 'b'), 'ABSENT', "$shape: once");
	is(renew('k', $shape, 'b', ttl => 1000), 'ABSENT', "$shape: and not revived");
	is(redis('DBSIZE'), 0, "$shape: nothing else is left");

	is(acquire('k', $shape, 'b', ttl => 60000, instead => 'a'), 'HELD', "$shape: taken when who was to be replaced has gone");
	redis(qw(PERSIST k));
	is(renew('k', $shape, 'b', ttl => 60000), 'NO_EXPIRY', "$shape: made to last for ever, it is not renewed");
	is(release('k', $shape, 'b'), 'HELD', "$shape: but released");

	is(acquire('k', $shape, 'a', ttl => 1), 'HELD', "$shape: taken for 1 ms");
	my $over = check('k', $shape, 'a');
	$over = check('k', $shape, 'a') while $over eq 'HELD';
	is($over, 'ABSENT', "$shape: it runs out");
	is(renew('k', $shape, 'a', ttl => 60000), 'ABSENT', "$shape: and is not revived");

	# Redis refuses these, and then nothing may stay behind, least of all for ever.
	foreach my $ttl ('9223372036854775807', 'x', '1.5', '')
	{
		like(acquire('k', $shape, 'a', ttl => $ttl), qr/^-ERR/, "$shape: a ttl of '$ttl' is refused");
		is(redis('EXISTS', 'k'), 0, "$shape: a ttl of '$ttl' takes nothing");
	}

	# Far more than a clock can bear.
	($state, $left) = ask('acquire', 'k', $shape, 'a', ttl => '9000000000000000000');
	is("$state $left", 'HELD 9000000000000000000', "$shape: taken for 9e18 ms");
	($state, $left) = ask('check', 'k', $shape, 'a');
	is($state, 'HELD', "$shape: held for 9e18 ms");
	cmp_ok($left, '>', 8.9e18, "$shape: and says so");
	is(renew('k', $shape, 'a', ttl => 1000), 'HELD', "$shape: renewed with 9e18 ms left");
	redis(qw(DEL k));
}

# Of a hash with more in it than the lock, the rest is not ours.
redis(qw(HSET k a 1 b 1));
redis(qw(PEXPIRE k 60000));
is(acquire('k', 'h', 'c', ttl => 60000, instead => 'a'), 'OTHER', 'h: not handed over by one of two');
is(release('k', 'h', 'a'), 'HELD', 'h: released by one of two');
is_deeply(redis(qw(HGETALL k)), [ 'b', 1 ], 'h: the other stays');

# ---- the same as the libraries write, and the same events ----

redis(qw(FLUSHALL));
redis(qw(CONFIG SET notify-keyspace-events KEA));
my $listener = $redis->client;
$listener->command('PSUBSCRIBE', '__keyevent@0__:*');
$listener->command('PSUBSCRIBE', 'redisson_lock__channel:*');

# The events of what is done, and what was published.
sub events
{
	my ($do) = @_;
	my @seen;

	$do->();
	redis('PUBLISH', 'redisson_lock__channel:end', 'end');
	while (my $message = $listener->answer)
	{
		my ($channel, $text) = @$message[ 2, 3 ];
		last if $text eq 'end';
		push @seen, $channel =~ /^__keyevent\@0__:(.*)/ ? $1 : "$channel=$text";
	}
	return "@seen";
}

# What Redisson sends, in short.
my $enter = <<'LUA';
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
	redis.call('hincrby', KEYS[1], ARGV[2], 1)
	redis.call('pexpire', KEYS[1], ARGV[1])
	return nil
end
return redis.call('pttl', KEYS[1])
LUA
my $leave = <<'LUA';
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return nil end
if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then return 0 end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], ARGV[2])
return 1
LUA
my $channel = 'redisson_lock__channel:{k}';

is(events(sub { redis(qw(SET k a NX PX 60000)) }), 'set expire', 's: the events of SET NX PX');
my $dump = stored();
redis(qw(DEL k));
events(sub { });
is(events(sub { acquire('k', 's', 'a', ttl => 60000) }), 'set expire', 's: those of our taking are the same');
is(stored(), $dump, 's: and so is what is stored');
is(events(sub { acquire('k', 's', 'b', ttl => 60000) }), '', 's: none when it was not to be had');
is(events(sub { check('k', 's', 'a') }), '', 's: none of a check');
is(events(sub { renew('k', 's', 'a', ttl => 60500) }), 'expire', 's: renewed');
is(events(sub { acquire('k', 's', 'b', ttl => 60000, instead => 'a') }), 'set expire', 's: handed over');
is(events(sub { release('k', 's', 'a') }), '', "s: none of another's release");
is(events(sub { release('k', 's', 'b') }), 'del', 's: released');

is(events(sub { redis('EVAL', $enter, 1, 'k', 60000, 'a') }), 'hincrby expire', 'h: the events of entering');
$dump = stored();
is(acquire('k', 'h', 'b', ttl => 1000), 'OTHER', 'h: who entered keeps us out');
is(check('k', 'h', 'a'), 'HELD', 'h: and is seen to hold it');
redis('EVAL', $enter, 1, 'k', 60000, 'a');
is(check('k', 'h', 'a'), 'HELD', 'h: also when it entered twice');
redis('EVAL', $leave, 2, 'k', $channel, 'a', 0);
is(check('k', 'h', 'a'), 'HELD', 'h: and left once');
events(sub { });
is(events(sub { redis('EVAL', $leave, 2, 'k', $channel, 'a', 0) }), "hincrby del $channel=0", 'h: the events of leaving');
is(events(sub { acquire('k', 'h', 'a', ttl => 60000) }), 'hincrby expire', 'h: those of our taking are the same');
is(stored(), $dump, 'h: and so is what is stored');
cmp_ok(redis('EVAL', $enter, 1, 'k', 60000, 'b'), '>', 0, 'h: we keep others out');
is(events(sub { acquire('k', 'h', 'b', ttl => 60000) }), '', 'h: none when it was not to be had');
is(events(sub { check('k', 'h', 'a') }), '', 'h: none of a check');
is(events(sub { renew('k', 'h', 'a', ttl => 60500) }), 'expire', 'h: renewed');
is(events(sub { acquire('k', 'h', 'b', ttl => 60000, instead => 'a') }), 'hincrby expire hdel', 'h: handed over');
is(events(sub { release('k', 'h', 'a') }), '', "h: none of another's release");
is(events(sub { release('k', 'h', 'b') }), "hincrby del $channel=0", 'h: our release is the same, and wakes who waits');
acquire('{x}:k', 'h', 'a', ttl => 60000);
events(sub { });
is(events(sub { release('{x}:k', 'h', 'a') }), 'hincrby del redisson_lock__channel:{x}:k=0', 'h: a name with a tag of its own');

# ---- redis-py's Lock ----

SKIP:
{
	skip 'no python with redis-py', 11 unless RedisPython::available();
	my $python = $redis->python;

	$python->run("lock = r.lock('py', timeout=60, thread_local=False)");
	is(acquire('py', 's', 'ours', ttl => 60000), 'HELD', 'redis-py: we take the lock');
	is($python->value('lock.acquire(blocking=False)'), 'False', 'redis-py: its Lock is kept out');
	is(release('py', 's', 'ours'), 'HELD', 'redis-py: we release it');
	is($python->value('lock.acquire(blocking=False)'), 'True', 'redis-py: its Lock takes it');
	my $holder = redis('GET', 'py');
	is(check('py', 's', $holder), 'HELD', 'redis-py: we see that it has it');
	is(acquire('py', 's', 'ours', ttl => 60000), 'OTHER', 'redis-py: and are kept out');
	is(release('py', 's', 'ours'), 'OTHER', 'redis-py: nor do we release it');
	is($python->value('lock.extend(90, replace_ttl=True)'), 'True', 'redis-py: it extends it');
	left_is((ask('check', 'py', 's', $holder))[1], 90000, 'redis-py: as we see');
	is($python->run('lock.release()'), '', 'redis-py: it releases it');
	is(acquire('py', 's', 'ours', ttl => 60000), 'HELD', 'redis-py: and we take it');
}

# ---- memory is full ----

redis(qw(FLUSHALL));
redis(qw(SET held-s a PX 60000));
redis(qw(HSET held-h a 1));
redis(qw(PEXPIRE held-h 60000));
$redis->memory_full;
foreach my $shape ('s', 'h')
{
	like(acquire('k', $shape, 'a', ttl => 60000), qr/^-OOM/, "$shape: memory full: nothing is taken");
	is(check('k', $shape, 'a'), 'ABSENT', "$shape: memory full: nor left behind");
	is(check("held-$shape", $shape, 'a'), 'HELD', "$shape: memory full: a check is answered");
	is(acquire("held-$shape", $shape, 'b', ttl => 60000), 'OTHER', "$shape: memory full: who has it is told");
	like(acquire("held-$shape", $shape, 'b', ttl => 60000, instead => 'a'), qr/^-OOM/, "$shape: memory full: not handed over");
	is(check("held-$shape", $shape, 'a'), 'HELD', "$shape: memory full: who has it keeps it");
	is(renew("held-$shape", $shape, 'a', ttl => 90000), 'HELD', "$shape: memory full: renewed");
	is(release("held-$shape", $shape, 'a'), 'HELD', "$shape: memory full: released");
	is(redis('EXISTS', "held-$shape"), 0, "$shape: memory full: and gone");
}
$redis->memory_free;

# ---- users who may not everything ----

redis(qw(ACL SETUSER narrow on >secret resetkeys ~lock:* resetchannels), '+@all');
redis(qw(ACL SETUSER short on >secret ~lock:* resetchannels), '+@all', '-pexpire');
my $narrow = $redis->client;
$narrow->command(qw(AUTH narrow secret));
is(acquire('lock:1', 'h', 'a', ttl => 60000, client => $narrow), 'HELD', 'without the channel: taken');
is(release('lock:1', 'h', 'a', client => $narrow), 'HELD', 'without the channel: released');
is(redis(qw(EXISTS lock:1)), 0, 'without the channel: and gone');
like(acquire('other', 's', 'a', ttl => 60000, client => $narrow), qr/^-NOPERM/, 'another key than allowed');
like(check('other', 's', 'a', client => $narrow), qr/^-NOPERM/, 'another key than allowed: no check');
my $short = $redis->client;
$short->command(qw(AUTH short secret));
like(acquire('lock:1', 'h', 'a', ttl => 60000, client => $short), qr/^-/, 'a command less than needed: refused');
is(redis(qw(EXISTS lock:1)), 0, 'a command less than needed: no lock is left that never runs out');
redis(qw(SET lock:1 a PX 60000));
like(renew('lock:1', 's', 'a', ttl => 90000, client => $short), qr/^-/, 'a command less than needed: nothing is renewed');
redis(qw(DEL lock:1));

# ---- a replica ----

my $replica = RedisServer->new(replicaof => '127.0.0.1 ' . $redis->port);
redis(qw(SET r a PX 60000));
redis(qw(HSET h a 1));
redis(qw(PEXPIRE h 60000));
redis(qw(WAIT 1 60000));
my $reader = $replica->client;
is(check('r', 's', 'a', client => $reader), 'HELD', 'a replica answers a check');
like(acquire('k', 's', 'a', ttl => 60000, client => $reader), qr/^-READONLY/, 'a replica: nothing is taken');
like(acquire('k', 'h', 'a', ttl => 60000, client => $reader), qr/^-READONLY/, 'a replica: nor as a hash');
like(renew('r', 's', 'a', ttl => 90000, client => $reader), qr/^-READONLY/, 'a replica: nothing is renewed');
like(renew('h', 'h', 'a', ttl => 90000, client => $reader), qr/^-READONLY/, 'a replica: nor a hash');
like(release('r', 's', 'a', client => $reader), qr/^-READONLY/, 'a replica: nothing is released');
$replica->stop;

# ---- a cluster, in which a script may touch one slot ----

my $cluster = RedisServer->new('cluster-enabled' => 'yes');
$cluster->must(qw(CLUSTER ADDSLOTSRANGE 0 16383));
my $member = $cluster->client;
my $ready = $cluster->cli(qw(CLUSTER INFO));
$ready = $cluster->cli(qw(CLUSTER INFO)) while $ready !~ /cluster_state:ok/;
foreach my $shape ('s', 'h')
{
	my $key = "plain-$shape";
	is(acquire($key, $shape, 'a', ttl => 60000, client => $member), 'HELD', "$shape: in a cluster: taken");
	is(renew($key, $shape, 'a', ttl => 90000, client => $member), 'HELD', "$shape: in a cluster: renewed");
	is(release($key, $shape, 'a', client => $member), 'HELD', "$shape: in a cluster: released");
}
$cluster->stop;

# ---- the library has these very scripts ----

my $library = "$FindBin::Bin/../../lease_fence.so";
SKIP:
{
	skip 'the library was not built here', 8 unless -e $library;
	open my $file, '<:raw', $library or die $!;
	my $binary = do { local $/; <$file> };

	foreach my $name (sort keys %text)
	{
		ok(index($binary, "$text{$name}\0") >= 0, "the library has the text of $name");
		like(redis('SCRIPT', 'LOAD', $text{$name}), qr/^[0-9a-f]{40}$/, "Redis takes it");
	}
}

$redis->stop;
done_testing;
