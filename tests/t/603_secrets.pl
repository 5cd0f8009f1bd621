# The password of a lock service is in no view, log or error that is not
# PostgreSQL's own, whatever the server answers, also at debug5; and what a server
# says cannot write lines of its own into the log.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use FakeRedis;
use LeaseSessions qw(lease_node wait_until);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedisServer;
use Test::More;

plan skip_all => 'no redis-server here' unless RedisServer::available();

my $secret = 'open-sesame-4711';
my $node = lease_node('secrets', 'log_min_messages = debug5', 'log_connections = on');
my $redis = RedisServer->new(user => 'worker on >' . $secret . ' ~* &* +@all');
my $fake = FakeRedis->new($redis);

# What PostgreSQL itself would log, docs/security.md says how to keep quiet.
sub server_with_password
{
	my ($name, $port) = @_;

	$node->safe_psql('postgres', qq{
		SET log_min_messages = panic;
		SET log_min_error_statement = panic;
		SET log_statement = none;
		CREATE SERVER $name FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (host '127.0.0.1', port '$port');
		CREATE USER MAPPING FOR PUBLIC SERVER $name OPTIONS (username 'worker', password '$secret');
		SELECT lease_fence.add_profile(name => '$name', prefix => '$name:', servers => '{$name}', ttl => '3s');
	});
	return;
}

# All that an error says to its client, at most verbosity.
sub error_of
{
	my ($sql) = @_;
	my $stderr = '';

	$node->psql('postgres', "\\set VERBOSITY verbose\n$sql", stderr => \$stderr, on_error_stop => 0);
	return $stderr;
}

# As a superuser sees them.
sub all_views
{
	return join "\n", map { $node->safe_psql('postgres', "SELECT t::text FROM $_ AS t") } qw(
	  lease_fence.worker_status lease_fence.leases lease_fence.grants lease_fence.profiles lease_fence.stat
	  lease_fence.guards lease_fence.rejected_writes lease_fence.operations lease_fence.epochs lease_fence.check()
	  pg_stat_activity pg_settings);
}

sub last_error
{
	my ($server) = @_;
	return $node->safe_psql('postgres', "SELECT last_error FROM lease_fence.worker_status WHERE server = '$server'");
}

# ---- all is well ----

server_with_password('good', $fake->port);
my $listener = LeaseSessions->new($node, name => 'listener');
$listener->query('LISTEN lease_fence');
like(error_of("SELECT token FROM lease_fence.acquire(resource => 'good:1', ttl => '10min', scope => 'detached')"), qr/^$/,
	'a lease is had with the password');
unlike(all_views(), qr/\Q$secret\E/, 'the password is in no view');

my $holder = LeaseSessions->new($node, name => 'holder');
$holder->lease("resource => 'good:held', scope => 'session'");
ok($node->poll_query_until('postgres', "SELECT events FROM lease_fence.worker_status WHERE server = 'good'"),
	'events of a lock are listened to');

# ---- a server that does not know AUTH repeats it in its answer ----

my $renamed = RedisServer->new('rename-command' => 'AUTH ""');
server_with_password('renamed', $renamed->port);
my $error = error_of("SELECT token FROM lease_fence.acquire(resource => 'renamed:1', scope => 'detached')");
like($error, qr/LF020.*AUTH was refused/s, 'AUTH is not known there: the client hears that much');
unlike($error, qr/\Q$secret\E/, 'and not the password');
like(last_error('renamed'), qr/^AUTH was refused/, 'nor does worker_status show it');

# On the connection that only listens: PING, which it sends every second, ends it,
# and the next one is made while the other is good.
$fake->misbehave('echo', 'AUTH|PING');
my $refused;
wait_until('the connection for events was refused', sub { ($refused = last_error('good')) =~ /AUTH|sesame/ });
like($refused, qr/^AUTH was refused/, 'the same of the connection for events');
$fake->behave;

$holder->quit;

# ---- a wrong one: what Redis says to that can be shown ----

my $strict = RedisServer->new(requirepass => 'another');
server_with_password('strict', $strict->port);
$error = error_of("SELECT token FROM lease_fence.acquire(resource => 'strict:1', scope => 'detached')");
like($error, qr/LF020.*WRONGPASS/s, 'a wrong password: Redis says so');
unlike($error, qr/\Q$secret\E/, 'and the error does not say which one');

# ---- what a server says is text of one line ----

$fake->misbehave('rude');
$error = error_of("SELECT token FROM lease_fence.acquire(resource => 'good:2', scope => 'detached')");
# hiredis 1.x takes no line with such bytes for a reply
my $harmless = qr/\QERR ?[31m????LOG:  forged??\E|connection lost: Bad simple string value/;
like($error, qr/LF020.*$harmless/s, 'an answer of control characters and broken UTF-8 is made printable');
like(last_error('good'), qr/^(?:$harmless)$/, 'in the view, too');
$fake->behave;

# ---- commands that fail ----

like(error_of("SET log_min_messages = panic; SET log_min_error_statement = panic;"
	  . " CREATE USER MAPPING FOR CURRENT_USER SERVER good OPTIONS (user 'x', password '$secret')"),
	qr/invalid option "user"/, 'a user mapping is refused');
unlike(error_of("SET log_min_messages = panic; SET log_min_error_statement = panic;"
		  . " CREATE USER MAPPING FOR CURRENT_USER SERVER good OPTIONS (username '', password '$secret')"),
	qr/ERROR.*\Q$secret\E/, 'and no message shows its password');

# ---- everything else that was said meanwhile ----

$node->safe_psql('postgres', q{SELECT lease_fence.revoke(resource => 'good:1', reason => 'test')});
ok($node->poll_query_until('postgres', "SELECT notifications > 0 FROM lease_fence.stat"), 'somebody is notified');
unlike($listener->query('SELECT 1'), qr/\Q$secret\E/, 'without the password');
$listener->quit;
unlike(all_views(), qr/\Q$secret\E/, 'the password is in no view');
$node->stop;
my $log = slurp_file($node->logfile);
like($log, qr/DEBUG:/, 'the log is of level debug5');
unlike($log, qr/\Q$secret\E/, 'and does not have the password');
unlike($log, qr/^LOG:  forged/m, 'nor a line that the server made up');
unlike($log, qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');

done_testing();
