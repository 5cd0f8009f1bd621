# TLS to Redis where hiredis has it, against a real redis-server: who has no
# certificate of ours for that host is not talked to.  Where the library was
# built without TLS, a server that wants it cannot even be defined.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use File::Temp;
use LeaseSessions qw(lease_node wait_until);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedisServer;
use Test::More;

plan skip_all => 'no redis-server here' unless RedisServer::available();

my $node = lease_node('tls');
my $dir = File::Temp->newdir('lf_tls_XXXXXX', TMPDIR => 1);

# Makes $name.key and $name.crt, signed by $ca or by itself.
sub certificate
{
	my ($name, $ca, $alternative) = @_;
	my @sign = $ca ? ('-CA', "$dir/$ca.crt", '-CAkey', "$dir/$ca.key") : ();
	my @for = $alternative ? ('-addext', "subjectAltName=$alternative") : ();

	system('openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2',
		'-subj', "/CN=$name", '-keyout', "$dir/$name.key", '-out', "$dir/$name.crt",
		@sign, @for) == 0
	  or die "openssl failed";
}

# The outcome of SQL: its result, or SQLSTATE and detail.
sub outcome
{
	my ($sql) = @_;
	my ($code, $out, $err) = $node->psql('postgres', $sql,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);

	return $out if $code == 0;
	$err =~ /ERROR:\s+(\w{5}):.*?(?:DETAIL:\s+(.*?)\n|$)/s;
	return "$1 " . ($2 // '');
}

sub server_with
{
	my ($name, $port, $host, $ca) = @_;
	return outcome(
		"CREATE SERVER $name FOREIGN DATA WRAPPER lease_fence_redis
		 OPTIONS (host '$host', port '$port', tls 'on', ca_file '$dir/$ca.crt');
		 SELECT lease_fence.add_profile(name => '$name', prefix => '$name:', servers => '{$name}')");
}

if (outcome("CREATE SERVER probe FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (tls 'on')") =~ /^0A000/)
{
	pass('a server that wants TLS cannot be defined where the library has none');
	$node->stop;
	done_testing();
	exit;
}
pass('a server that wants TLS can be defined');

certificate('ca');
certificate('other_ca');
certificate('redis', 'ca', 'IP:127.0.0.1,DNS:localhost');
certificate('elsewhere', 'ca', 'DNS:redis.example.com');

sub tls_redis
{
	my ($certificate) = @_;
	my $port = RedisServer::free_port();

	return ($port, RedisServer->new(
		'tls-port' => $port, 'tls-auth-clients' => 'no', 'notify-keyspace-events' => 'KA',
		'tls-cert-file' => "$dir/$certificate.crt", 'tls-key-file' => "$dir/$certificate.key",
		'tls-ca-cert-file' => "$dir/ca.crt"));
}

chmod 0644, glob("$dir/*.key");
my ($port, $redis) = tls_redis('redis');
my ($other_port, $other) = tls_redis('elsewhere');

is(server_with('good', $port, '127.0.0.1', 'ca'), '', 'a server with an authority of its own');
is(server_with('named', $port, 'localhost', 'ca'), '', 'the same by its name');
is(server_with('forged', $port, '127.0.0.1', 'other_ca'), '', 'one whose certificate another authority signed');
is(server_with('wrong', $other_port, '127.0.0.1', 'ca'), '', 'one whose certificate is for another host');
is(server_with('plain', $redis->port, '127.0.0.1', 'ca'), '', 'one that does not speak TLS');

for my $name (qw(good named))
{
	like(outcome("SELECT token > 0 FROM lease_fence.acquire(resource => '$name:a', scope => 'detached')"),
		qr/^t$/, "a lease by TLS ($name)");
	like($redis->command('GET', "$name:a"), qr/:[0-9a-f]{16}$/, "its lock is in Redis ($name)");
}

$redis->must('SET', 'good:b', 'holder', 'PX', 60000);
my $token = outcome("SELECT token FROM lease_fence.adopt(resource => 'good:b', holder => 'holder')");
like($token, qr/^\d+$/, 'a lock is adopted by TLS');
ok($node->poll_query_until('postgres', "SELECT events FROM lease_fence.worker_status WHERE server = 'good'"),
	'events come by TLS');
$redis->must('DEL', 'good:b');
ok($node->poll_query_until('postgres', "SELECT lease_fence.remaining($token) IS NULL"),
	'and an event ends the lease');

for my $name (qw(forged wrong plain))
{
	like(outcome("SELECT lease_fence.acquire(resource => '$name:a', scope => 'detached')"),
		qr/^LF020 Nothing was granted: /, "no lease by a connection that is not to be trusted ($name)");
}
like(outcome("SELECT last_error FROM lease_fence.worker_status WHERE server = 'forged'"),
	qr/certificate/, 'the view says that the certificate is why');
is($other->command('DBSIZE'), 0, 'nothing was sent to the wrong host');

# Much at once: records of TLS that do not fit into one read.
is(outcome("SELECT count(*) FROM lease_fence.acquire_all(
		resources => ARRAY(SELECT 'good:many' || i FROM generate_series(1, 900) i), scope => 'detached')"),
	'900', 'many calls at once by TLS');
is($redis->command('DBSIZE'), 902, 'all of them are in Redis');

$node->stop;
done_testing();
