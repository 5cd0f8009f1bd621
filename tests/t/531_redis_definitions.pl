# Servers, user mappings and profiles are changed while the worker and sessions
# run; passwords are seen by nobody who may not see user mappings; a copy of a
# database leaves the locks of the original alone.

use strict;
use warnings;

use LeaseSessions;
use RedisFaults;
use RedisServer;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'no redis-server here' unless RedisServer::available();

my $secret = 'Tr0ub4dor-and-3';
my $redis = RedisServer->new;
my $second = RedisServer->new;
my $it = RedisFaults->new($redis->port, name => 'definitions', conf => "log_statement = none\n");
my $node = $it->node;

# A session that was there before all changes.
my $session = LeaseSessions->new($node);

sub holds
{
	my ($server, $key) = @_;
	return $server->command('EXISTS', $key);
}

sub is_over
{
	my ($token) = @_;
	return $it->await("SELECT count(*) = 0 FROM lease_fence.leases WHERE token = $token AND state = 'live'");
}

# Until a lease in the old session is to be had: where its lock is.
sub new_lease
{
	my ($key) = @_;
	my $token = $session->query("SELECT token FROM lease_fence.acquire('$key', ttl => '60s', scope => 'detached', wait => '20s')");
	return $session->state eq '00000' ? $token : "$session->{state} $session->{text}";
}

# ---- ALTER SERVER ----

my $token = new_lease('stock:1');
is(holds($redis, 'stock:1'), 1, 'a lock is taken at the first Redis');
$it->sql("ALTER SERVER locks OPTIONS (SET port '" . $second->port . "')");
my $next = new_lease('stock:2');
like($next, qr/^\d+$/, 'another port: leases are granted');
is(holds($redis, 'stock:2') . holds($second, 'stock:2'), '01', 'another port: by the second Redis');
is_over($token);
is($it->write_as($token, 1), 'LF002', 'another port: leases of the first are over');
like($it->said, qr/ran out/, 'another port: as lapsed');
my $again = new_lease('stock:1');
cmp_ok($again, '>', $token, 'another port: the next grant has a higher token');

$it->sql("ALTER SERVER locks OPTIONS (SET port '" . RedisServer::free_port() . "')");
$it->is_refused(qr/Connection refused/, 'a wrong port');
is($it->write_as($again, 1), '', 'a wrong port: leases live on');
$it->sql("ALTER SERVER locks OPTIONS (SET port '" . $second->port . "')");
like(new_lease('stock:3'), qr/^\d+$/, 'the right port: leases are granted');
is($it->write_as($again, 1), '', 'the right port: the same Redis still has the lease');
is($it->sql("SELECT lease_fence.release($again)"), 't', 'the right port: and it can be released');
is(holds($second, 'stock:1'), 0, 'the right port: also there');

$it->sql("ALTER SERVER locks OPTIONS (ADD db '3')");
new_lease('stock:db');
my $client = $second->client;
$client->command('SELECT', 3);
is($client->command('EXISTS', 'stock:db'), 1, 'another db: locks are taken there');
$it->sql("ALTER SERVER locks OPTIONS (SET db '99')");
$it->is_refused(qr/DB index is out of range/, 'a db that is not there');
$it->sql("ALTER SERVER locks OPTIONS (DROP db)");
$it->works_again('no db');
$it->sql('ALTER SERVER locks RENAME TO renamed');
like(new_lease('stock:named'), qr/^LF020 .*"locks"/s, 'a renamed server is not there, by its name');
$it->sql('ALTER SERVER renamed RENAME TO locks');
like(new_lease('stock:named'), qr/^\d+$/, 'a server that is renamed back is there');

# ---- DROP SERVER ----

$token = new_lease('stock:4');
$it->sql('DROP SERVER locks');
like(new_lease('stock:5'), qr/^LF020 .*"locks"/s, 'a dropped server: LF020 names it');
is($it->write_as($token, 4), '', 'a dropped server: leases live until their deadline');
like($it->sql("SELECT string_agg(problem, ',') FROM lease_fence.check()"), qr/locks does not exist/,
	'a dropped server: check() says so');
is($it->try("SELECT lease_fence.acquire('own:1', scope => 'session')"), '', 'a dropped server: others go on');
$it->sql("CREATE SERVER locks FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (host '127.0.0.1', port '" . $second->port . "')");
like(new_lease('stock:5'), qr/^\d+$/, 'a server that is created again: leases are granted');
is($it->sql('SELECT count(*) FROM lease_fence.worker_status'), 1, 'worker_status knows one server');

# ---- user mappings ----

$second->config_set('requirepass', $secret);
my $admin = $second->client;
$admin->command('AUTH', $secret);
sub cut
{
	$admin->command('CLIENT', 'KILL', 'TYPE', $_, 'SKIPME', 'yes') foreach 'normal', 'pubsub';
	$it->try("SELECT lease_fence.acquire('stock:cut', ttl => '1s', scope => 'detached')");
	return;
}
cut();
$it->is_refused(qr/NOAUTH/, 'no user mapping');
$it->sql("CREATE USER MAPPING FOR PUBLIC SERVER locks OPTIONS (password '$secret')");
like(new_lease('stock:6'), qr/^\d+$/, 'a user mapping is added: leases are granted');
$it->sql("ALTER USER MAPPING FOR PUBLIC SERVER locks OPTIONS (SET password 'wrong-$secret')");
$it->is_refused(qr/WRONGPASS/, 'a user mapping is altered');
$it->sql("ALTER USER MAPPING FOR PUBLIC SERVER locks OPTIONS (SET password '$secret')");
like(new_lease('stock:7'), qr/^\d+$/, 'a user mapping is altered back: leases are granted');
$it->sql('DROP USER MAPPING FOR PUBLIC SERVER locks');
$it->is_refused(qr/NOAUTH/, 'a user mapping is dropped');
$it->sql("CREATE USER MAPPING FOR CURRENT_USER SERVER locks OPTIONS (username 'default', password '$secret')");
like(new_lease('stock:8'), qr/^\d+$/, "the owner's user mapping counts");

# ---- secrets ----

# One that does not know AUTH repeats its arguments in the error.
my $deaf = RedisServer->new('rename-command' => 'AUTH ""');
$it->sql("ALTER SERVER locks OPTIONS (SET port '" . $deaf->port . "')");
$it->is_refused(qr/AUTH was refused/, 'a Redis without AUTH');
my $refusal = $it->said;
$it->sql("ALTER SERVER locks OPTIONS (SET port '" . $second->port . "')");
$it->try("CREATE USER MAPPING FOR PUBLIC SERVER locks OPTIONS (password '" . $secret x 60 . "')");
my $invalid = $it->said;

$it->sql(<<'SQL');
CREATE ROLE app LOGIN;
CREATE ROLE watcher LOGIN;
GRANT pg_monitor TO watcher;
GRANT USAGE ON SCHEMA lease_fence TO app, watcher;
GRANT SELECT, UPDATE ON stock TO app;
SQL

my $log = slurp_file($node->logfile);
my @said = ($refusal, $invalid =~ s/^LINE.*//gmr);
foreach my $role ('app', 'watcher')
{
	my $one = LeaseSessions->new($node, user => $role, name => $role);
	push @said, $one->query($_) foreach
	  'SELECT * FROM pg_user_mappings', 'SELECT * FROM pg_user_mapping', 'SELECT * FROM lease_fence.worker_status',
	  'SELECT * FROM lease_fence.profiles', 'SELECT * FROM lease_fence.check()', 'SELECT * FROM lease_fence.server_states()',
	  'SELECT * FROM information_schema.user_mapping_options', 'SELECT query FROM pg_stat_activity',
	  'SELECT * FROM lease_fence.leases';
	if ($role eq 'app')
	{
		$one->query("SELECT * FROM lease_fence.worker_status");
		is($one->state, '42501', 'a plain role does not see worker_status');
		$one->query("SELECT * FROM lease_fence.server_states()");
		is($one->state, '42501', 'nor server_states');
		$one->query("SELECT token FROM lease_fence.acquire('stock:1', scope => 'session')");
		is($one->state, '00000', 'a role without USAGE on the server takes leases');
		push @said, $one->query("SELECT srvoptions FROM pg_foreign_server"),
		  $one->query("ALTER SERVER locks OPTIONS (SET port '1')");
		is($one->state, '42501', 'and may not alter the server');
		$one->query("SELECT lease_fence.add_profile(name => 'mine', prefix => 'mine:', servers => '{locks}')");
		is($one->state, '42501', 'nor add a profile');
	}
	else
	{
		is($one->query("SELECT count(*) FROM lease_fence.worker_status WHERE server = 'locks'"), 1,
			'pg_monitor sees worker_status');
	}
	$one->quit;
}
unlike(join("\n", @said), qr/Tr0ub4dor/, 'the password is in nothing that they can see');
# What the server itself logs of a statement that fails is not ours.
$log =~ s/^.*STATEMENT:.*\n(?:\t.*\n)*//gm;
unlike($log, qr/Tr0ub4dor/, 'the password is not in the log');

# ---- profiles ----

$it->sql("SELECT lease_fence.drop_profile('locks')");
like($token = new_lease('stock:11'), qr/^\d+$/, 'without a profile: leases are granted');
is($admin->command('EXISTS', 'stock:11'), 0, "without a profile: by PostgreSQL itself");
$it->sql("SELECT lease_fence.add_profile(name => 'locks', prefix => 'stock:', servers => '{locks}', lock_key => 'app:{resource}', roles => '{app}')");
new_lease('stock:12');
is($admin->command('EXISTS', 'app:stock:12'), 1, 'a profile is added: its key is used by a running session');
is($it->try("SET ROLE watcher; SELECT lease_fence.acquire('stock:13', scope => 'session')"), 'LF006',
	'a role that the profile does not name is refused');
is($it->try("SET SESSION AUTHORIZATION app; SELECT lease_fence.acquire('stock:13', scope => 'session')"), '',
	'one that it names is not');
$it->sql("SELECT lease_fence.drop_profile('locks'); SELECT lease_fence.add_profile(name => 'locks', prefix => 'stock:', servers => '{locks}')");

# ---- two databases ----

$node->safe_psql('postgres', 'CREATE DATABASE other');
$it->set_up('other', '', host => '127.0.0.1', port => $second->port);
$it->sql("CREATE USER MAPPING FOR PUBLIC SERVER locks OPTIONS (password '$secret')", 'other');
$token = new_lease('stock:20');
is($it->try("SELECT lease_fence.acquire('stock:20', scope => 'session', wait => '300ms')", 'other'), '55P03',
	'two databases with one Redis exclude each other');
$it->sql("SELECT lease_fence.release($token)");
is($it->try("SELECT lease_fence.acquire('stock:20', scope => 'session', wait => '10s')", 'other'), '',
	'and take turns');
$it->sql("SELECT lease_fence.drop_profile('locks')", 'other');
like(new_lease('stock:21'), qr/^\d+$/, "what is changed in one changes nothing in the other");

# ---- a copy ----

$session->quit;
$token = $it->lease('stock:30');
$it->sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres' AND backend_type = 'client backend' AND pid <> pg_backend_pid()");
$node->safe_psql('template1', 'CREATE DATABASE copy TEMPLATE postgres');
is($it->try("SELECT lease_fence.acquire('stock:31', scope => 'session')", 'copy'), '55000', 'a copy: acquire is refused');
like($it->said, qr/belongs to another system or database/, 'a copy: and says why');
is($it->try("BEGIN; SELECT lease_fence.adopt('stock:31', 'x')", 'copy'), '55000', 'a copy: so is adopt');
is($it->try("SELECT lease_fence.renew($token)", 'copy') =~ /^(LF\d+|55000)$/ ? 1 : 0, 1, 'a copy: so is renew');
is($it->try("SELECT lease_fence.acquire('own:31', scope => 'session')", 'copy'), '', "a copy: PostgreSQL's own are granted");
is($it->sql('SELECT count(*) FROM lease_fence.worker_status WHERE server IS NOT NULL', 'copy'), 0, 'a copy: its worker knows no Redis');
is($admin->command('EXISTS', 'stock:30'), 1, "a copy: the original's lock is as it was");
is($it->write_as($token, 3), 'LF003', "a copy: the original's lease covers what it covered");
is($admin->command('EXISTS', 'stock:31'), 0, 'a copy: nothing was taken in Redis');

$node->stop('fast');
done_testing();
