# What docs/operations.md says of Redis: the user that it defines may do all that
# the worker does, and no more; a Redis that may evict locks is warned of.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use LeaseSessions qw(lease_node);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedisServer;
use Test::More;
use Text::ParseWords;

plan skip_all => 'no redis-server here' unless RedisServer::available();

my $redis = RedisServer->new('maxmemory-policy' => 'allkeys-lru');
my $node = lease_node('warning');
my $findings = q(SELECT severity, object, problem FROM lease_fence.check() WHERE object = 'server locks');
my $warning = 'maxmemory-policy is allkeys-lru: locks can be evicted before they run out';

$node->safe_psql('postgres', "CREATE SERVER locks FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (port '"
	  . $redis->port . "')");
$node->safe_psql('postgres',
	q{SELECT lease_fence.add_profile(name => 'locks', prefix => 'stock:', servers => '{locks}')});
is($node->safe_psql('postgres', $findings), '', 'nothing is known of a server that nobody has used');

# Somebody listens all the time: the policy is looked at again every ten seconds.
$node->safe_psql('postgres',
	q{SELECT token FROM lease_fence.acquire(resource => 'stock:1', ttl => '1h', scope => 'detached')});
is($node->safe_psql('postgres', 'SELECT warning FROM lease_fence.worker_status'), $warning,
	'worker_status warns of a policy that evicts');
is($node->safe_psql('postgres', $findings), "warning|server locks|$warning", 'and so does check()');
ok($node->log_contains(qr/lease_fence: server "locks": \Q$warning\E/), 'and the log');

$redis->config_set('maxmemory-policy', 'noeviction');
ok($node->poll_query_until('postgres', 'SELECT warning IS NULL FROM lease_fence.worker_status'),
	'the warning goes when the policy is changed');
is($node->safe_psql('postgres', $findings), '', 'also from check()');

# ---- the user ----

my $document = "$FindBin::RealBin/../../docs/operations.md";

SKIP:
{
	skip 'the documentation is not here', 9 unless -f $document;
	my ($line) = slurp_file($document) =~ /(ACL SETUSER (?:.*\\\n)*.*)/;
	$line =~ s/\\\n\s*/ /g;
	my @words = map { s/seat:/u:/r } shellwords($line);
	my ($password) = map { /^>(.*)/ } @words;

	is($redis->must(@words), 'OK', 'the user is defined');
	$redis->must('ACL', 'LOG', 'RESET');
	$node->safe_psql('postgres', "CREATE SERVER restricted FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (port '"
		  . $redis->port . "', set_events 'on')");
	$node->safe_psql('postgres', 'CREATE USER MAPPING FOR CURRENT_USER SERVER restricted'
		  . " OPTIONS (username '$words[2]', password '$password')");
	foreach my $shape ('string', 'redisson')
	{
		$node->safe_psql('postgres', "SELECT lease_fence.add_profile(name => '$shape', prefix => 'u:$shape:',"
			  . " servers => '{restricted}', shape => '$shape')");
		my $holder = LeaseSessions->new($node, name => 'holder');
		my $waiter = LeaseSessions->new($node, name => 'waiter');
		my $token = $holder->lease("'u:$shape:1', scope => 'session'");

		is($holder->query("SELECT lease_fence.renew(token => $token) > '20 s'"), 't', "$shape: renewed");
		$waiter->send("SELECT count(*) FROM lease_fence.acquire(resource => 'u:$shape:1', wait => '1min', scope => 'session')");
		is($holder->query("SELECT lease_fence.release(token => $token)"), 't', "$shape: released");
		is($waiter->answer, '1', "$shape: had by who waited");
		$waiter->quit;
		$holder->quit;
	}
	is($node->safe_psql('postgres', q(SELECT last_error FROM lease_fence.worker_status WHERE server = 'restricted')),
		'', 'the worker was refused nothing');
	is_deeply($redis->command('ACL', 'LOG'), [], 'says Redis, too');
}

$node->stop;
done_testing();
