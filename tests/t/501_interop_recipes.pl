# The recipes of docs/interop.md: with the profile that each of them adds, a lock as
# its library writes it is found, and is its holder's to adopt.  What a library sends
# is replayed here; only redis-py is the real one (in 900_documentation.pl).

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use LeaseSessions qw(lease_node wait_until);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedisServer;
use Test::More;

my $document = "$FindBin::RealBin/../../docs/interop.md";
plan skip_all => 'no redis-server here' unless RedisServer::available();
plan skip_all => 'the documentation is not here' unless -f $document;

my $redis = RedisServer->new;
my $node = lease_node('recipes');
my $session = LeaseSessions->new($node, name => 'holder');
my $uuid = '5b3f6b1e-0c8e-4a53-9d0e-0f5a6d1c7e42';

# ---- the document's profiles, heading by heading ----

my %section;
my $text = slurp_file($document);
$section{$1} = $2 while $text =~ /^## (.+?)\n(.*?)(?=^## |\z)/msg;

my $port = $redis->port;
my ($server) = $text =~ /^(CREATE SERVER .*?;)$/ms;
like($server, qr/\b6379\b/, 'the document creates a server');
$session->query($server =~ s/\b6379\b/$port/r =~ s/;\z//r);

foreach my $heading (sort keys %section)
{
	while ($section{$heading} =~ /^(SELECT lease_fence\.add_profile\([^;]*\);)( *-- ERROR)?/mg)
	{
		my ($statement, $fails) = ($1, $2);

		next if $fails;
		chop $statement;	# its semicolon
		$session->query($statement);
		is($session->state, '00000', "$heading: its profile") or diag($statement);
	}
}

# ---- locks as their libraries write them ----

sub hash_lock
{
	my ($key, @fields) = @_;
	return (map { [ 'HINCRBY', $key, $_, 1 ] } @fields), [ 'PEXPIRE', $key, 30000 ];
}

sub bytea { return "'\\x" . unpack('H*', $_[0]) . "'::bytea"; }

sub adopt
{
	my ($resource, $holder) = @_;
	my $token = $session->query("SELECT token FROM lease_fence.adopt(resource => '$resource', holder => $holder)");
	return ($session->state, $token);
}

# Heading, what it is, resource, holder as in SQL, commands.
my @locks = (
	[ 'redis-py', 'a lock', 'stock:1001', bytea('0f1e2d3c4b5a69788796a5b4c3d2e1f0'),
		[ 'SET', 'stock:1001', '0f1e2d3c4b5a69788796a5b4c3d2e1f0', 'NX', 'PX', 30000 ] ],
	[ 'node-redlock', 'a lock', 'seat:17', "'9f86d081884c7d659a2feaa0c55ad015'",
		[ 'SET', 'seat:17', '9f86d081884c7d659a2feaa0c55ad015', 'PX', 30000 ] ],
	[ 'Redisson', 'RLock', 'account:7', "'$uuid:42'", hash_lock('account:7', "$uuid:42") ],
	[ 'Redisson', 'RLock, entered again', 'account:8', "'$uuid:42'",
		hash_lock('account:8', "$uuid:42", "$uuid:42") ],
	[ 'Redisson', 'the write lock', 'account:9', "'$uuid:42:write'",
		[ 'HSET', 'account:9', 'mode', 'write' ], hash_lock('account:9', "$uuid:42:write") ],
	[ 'Spring Integration', 'a lock', 'order:7', "'$uuid'",
		[ 'SET', 'shop:order:7', $uuid, 'PX', 60000 ] ],
	[ 'ShedLock', 'a lock', 'report:daily', "'ADDED:2026-09-01T03:00:00.123Z\@app-1:$uuid'",
		[ 'SET', 'job-lock:shop:report:daily', "ADDED:2026-09-01T03:00:00.123Z\@app-1:$uuid", 'NX', 'PX', 600000 ] ],
	[ 'Laravel', 'a lock', 'invoice:88', "decode('" . unpack('H*', 'Zk3pQ9xW2mN7vB1c') . "', 'hex')",
		[ 'SET', 'shop_database_shop_cache_invoice:88', 'Zk3pQ9xW2mN7vB1c', 'EX', 30, 'NX' ] ],
	[ 'Laravel', 'a value that php serialized', 'invoice:89', bytea('s:16:"Zk3pQ9xW2mN7vB1c";'),
		[ 'SET', 'shop_database_shop_cache_invoice:89', 's:16:"Zk3pQ9xW2mN7vB1c";', 'EX', 30, 'NX' ] ],
	[ 'Laravel', 'a value that igbinary packed', 'invoice:90', bytea("\0\0\0\2\x11\x10Zk3pQ9xW2mN7vB1c\xff"),
		[ 'SET', 'shop_database_shop_cache_invoice:90', "\0\0\0\2\x11\x10Zk3pQ9xW2mN7vB1c\xff", 'EX', 30, 'NX' ] ]);

foreach my $lock (@locks)
{
	my ($heading, $what, $resource, $holder, @commands) = @$lock;
	my ($state) = adopt($resource, $holder);

	is($state, 'LF005', "$heading: $what: nobody has it yet");
	$redis->must(@$_) foreach @commands;
	($state, my $token) = adopt($resource, $holder);
	is($state, '00000', "$heading: $what is adopted");
	like($token, qr/^\d{13,16}$/, "$heading: $what has a token");

	my $other = $holder =~ /bytea|decode/ ? bytea('another') : "'another'";
	($state) = adopt($resource, $other);
	is($state, 'LF005', "$heading: $what is not another's");
	is($session->query("SELECT lease_fence.release(token => $token)"), 't', "$heading: $what: its lease ends");
	is($redis->command('EXISTS', $commands[0][1]), 1, "$heading: $what: the lock stays");
}

# The resource of each recipe's program is the one that was replayed for it.
foreach my $lock (grep { $_->[1] =~ /^(a lock|RLock)$/ } @locks)
{
	my ($heading, undef, $resource) = @$lock;
	my ($program) = $section{$heading} =~ /^```(?:python|js|java|php)\n(.*?)^```/ms;

	like($program, qr/(["'])\Q$resource\E\1/, "$heading: its program takes the lock of $resource");
}

# ---- what the document says cannot be adopted ----

my @none = (
	[ 'redis-py without a timeout', 'stock:1', "'t'", [ 'SET', 'stock:1', 't' ] ],
	[ 'Laravel without seconds', 'invoice:1', "'t'", [ 'SET', 'shop_database_shop_cache_invoice:1', 't' ] ],
	[ "Redisson's read lock", 'account:1', "'$uuid:1'",
		[ 'HSET', 'account:1', 'mode', 'read' ], hash_lock('account:1', "$uuid:1") ],
	[ "Redisson's FasterMultiLock", 'account:2', "'$uuid:1'",
		[ 'HSET', 'account:2', 'c4ca4238a0b923820dcc509a6f75849b', "$uuid:1" ], [ 'PEXPIRE', 'account:2', 30000 ] ],
	[ 'the field mode', 'account:3', "'mode'",
		[ 'HSET', 'account:3', 'mode', 'write' ], hash_lock('account:3', "$uuid:1:write") ],
	[ 'a semaphore', 'stock:2', "'$uuid'",
		[ 'ZADD', 'stock:2', 1756700000000, $uuid ], [ 'PEXPIRE', 'stock:2', 30000 ] ],
	[ 'a writer that waits', 'stock:3', "'h_WRITERWAITING'", [ 'SET', 'stock:3', 'h_WRITERWAITING', 'PX', 30000 ] ]);

foreach my $lock (@none)
{
	my ($what, $resource, $holder, @commands) = @$lock;

	$redis->must(@$_) foreach @commands;
	my ($state) = adopt($resource, $holder);
	is($state, 'LF005', "$what is not adopted");
}

# ---- two traps that the document names ----

# Spring: two threads of one process have equal bytes; the later adoption counts.
my @spring = (bytea($uuid), [ 'SET', 'shop:order:20', $uuid, 'PX', 60000 ]);
$redis->must(@{ $spring[1] });
my (undef, $first) = adopt('order:20', $spring[0]);
my (undef, $second) = adopt('order:20', $spring[0]);
cmp_ok($second, '>', $first, 'Spring: equal bytes are a new grant each time');
$session->query("SELECT lease_fence.renew(token => $first)");
is($session->state, 'LF001', 'Spring: the thread that adopted before is superseded');

# ShedLock: the default extend writes over a successor's value, and unlock deletes it.
foreach my $case (
	[ 'extends', [ 'SET', 'job-lock:shop:report:late', 'ADDED:late', 'XX', 'PX', 600000 ], 'LF001' ],
	[ 'unlocks', [ 'DEL', 'job-lock:shop:report:late' ], 'LF002' ])
{
	my ($what, $command, $expected) = @$case;

	$redis->must('SET', 'job-lock:shop:report:late', 'ADDED:next', 'PX', 600000);
	my (undef, $token) = adopt('report:late', "'ADDED:next'");
	$redis->must(@$command);
	$session->query("SELECT token FROM lease_fence.adopt(resource => 'report:late', holder => 'ADDED:next', known_token => $token)");
	is($session->state, 'LF001', "ShedLock: a late job $what: the grant is not the same any more");
	$session->query("SELECT lease_fence.renew(token => $token)");
	is($session->state, $expected, "ShedLock: a late job $what: its successor's lease is over");
}

$session->quit;
$node->stop;
done_testing();
