# Behind a pooler in transaction mode, with one connection for two clients: no
# token, transaction lease or detached lease of one ever serves the other.  What
# scope session does there is shown as well: it belongs to the shared backend.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use LeaseSessions qw(lease_node wait_until now);

my ($pgbouncer) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin';
plan skip_all => 'pgbouncer is not installed' unless $pgbouncer;

my $node = lease_node('pooled');
my $dba = LeaseSessions->new($node, name => 'dba');
my $me = getpwuid $<;

$dba->query('CREATE TABLE stock (id int PRIMARY KEY, n int)');
$dba->query('INSERT INTO stock SELECT g, 0 FROM generate_series(1, 20) g');
$dba->query(q{SELECT lease_fence.protect('stock', 'stock:{id}')});

# A pgbouncer with that many connections; its socket's folder and port.
my @poolers;

sub start_pooler
{
	my ($size) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir_short();
	my $port = PostgreSQL::Test::Cluster::get_free_port();

	append_to_file("$dir/users", qq{"$me" ""\n});
	append_to_file("$dir/pgbouncer.ini", sprintf q{
[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr =
listen_port = %s
unix_socket_dir = %s
auth_type = any
auth_file = %s/users
pool_mode = transaction
default_pool_size = %s
ignore_startup_parameters = extra_float_digits
logfile = %s/log
pidfile = %s/pid
}, $node->host, $node->port, $port, $dir, $dir, $size, $dir, $dir);
	# auth_type any ignores who the client says it is
	my $ini = slurp_file("$dir/pgbouncer.ini");
	$ini =~ s/^(\* = .*)$/$1 user=$me/m;
	unlink "$dir/pgbouncer.ini";
	append_to_file("$dir/pgbouncer.ini", $ini);

	my $pid = fork;
	die "fork: $!" unless defined $pid;
	if (!$pid)
	{
		open STDOUT, '>', "$dir/out";
		open STDERR, '>&', \*STDOUT;
		exec $pgbouncer, "$dir/pgbouncer.ini" or POSIX::_exit(127);
	}
	push @poolers, $pid;
	wait_until('pgbouncer listens', sub { -S "$dir/.s.PGSQL.$port" });
	return ($dir, $port);
}

END
{
	local $?;
	if (@poolers) { kill 'INT', @poolers; waitpid $_, 0 for @poolers; }
}

for my $size (1, 2)
{
	my ($dir, $port) = start_pooler($size);
	my @c = map { LeaseSessions->new($node, host => $dir, port => $port, name => "c$_") } 0 .. 1;
	my $with = "a pool of $size";

	is($c[0]->query('SELECT pg_backend_pid()') == $c[1]->query('SELECT pg_backend_pid()') ? 1 : 0,
		1, "$with: the two clients share a backend") if $size == 1;

	# a transaction lease ends with its transaction
	$c[0]->query('BEGIN');
	my $token = $c[0]->lease(q{'stock:1'});
	$c[0]->query('UPDATE stock SET n = n + 1 WHERE id = 1');
	is($c[0]->state, '00000', "$with: a transaction lease serves its client");
	$c[0]->query('COMMIT');
	$c[1]->query('UPDATE stock SET n = 100 WHERE id = 1');
	is($c[1]->state, 'LF003', "$with: but not the other one, after its COMMIT");
	$c[1]->query('BEGIN');
	my $second = $c[1]->lease(q{'stock:1'});
	cmp_ok($second, '>', $token, "$with: who takes it next gets a grant of its own");
	$c[1]->query('ROLLBACK');

	# the same under two clients' open transactions, one after the other
	$c[0]->query('BEGIN');
	$c[0]->query("SELECT lease_fence.present($second)");
	is($c[0]->state, 'LF002', "$with: a transaction lease of the other is over");
	$c[0]->query('ROLLBACK');

	# a detached one belongs to who has its number
	my $detached = $c[0]->lease(q{'stock:2', scope => 'detached', ttl => '1h'});
	$c[1]->query('UPDATE stock SET n = 100 WHERE id = 2');
	is($c[1]->state, 'LF003', "$with: a detached lease of one does not serve the other");
	is($c[1]->query(q{SELECT token IS NULL FROM lease_fence.try_acquire('stock:2', scope => 'detached')}),
		't', "$with: nor is it re-entered");
	$c[1]->query('BEGIN');
	is($c[1]->query(q{SELECT token IS NULL FROM lease_fence.try_acquire('stock:2')}),
		't', "$with: nor by a transaction lease");
	$c[1]->query('COMMIT');
	$c[0]->query("BEGIN; SELECT lease_fence.present($detached); UPDATE stock SET n = n + 1 WHERE id = 2");
	is($c[0]->state, '00000', "$with: it serves who presents it");
	$c[0]->query('COMMIT');
	$c[1]->query('UPDATE stock SET n = 100 WHERE id = 2');
	is($c[1]->state, 'LF003', "$with: and nobody after that transaction");

	# SET LOCAL and its careless brother SET
	$c[0]->query("BEGIN; SET LOCAL lease_fence.token = '$detached'; UPDATE stock SET n = n + 1 WHERE id = 2");
	is($c[0]->state, '00000', "$with: SET LOCAL counts in its transaction");
	$c[0]->query('COMMIT');
	$c[1]->query('UPDATE stock SET n = 100 WHERE id = 2');
	is($c[1]->state, 'LF003', "$with: and not after it");
	$c[0]->query("SET lease_fence.token = '$detached'");
	is($c[1]->query('SHOW lease_fence.token'), $detached,
		"$with: a plain SET leaks to the other client, as a value") if $size == 1;
	$c[1]->query('UPDATE stock SET n = 100 WHERE id = 2');
	is($c[1]->state, 'LF003', "$with: but never counts");
	$c[1]->query('BEGIN');
	$c[1]->query('UPDATE stock SET n = 100 WHERE id = 2');
	is($c[1]->state, 'LF003', "$with: not in a block either");
	$c[1]->query('ROLLBACK');
	$c[0]->query('UPDATE stock SET n = 100 WHERE id = 2');
	is($c[0]->state, 'LF003', "$with: not even for who set it");
	$c[1]->query('BEGIN');
	$c[1]->query('SELECT 1/0');
	$c[1]->query('ROLLBACK');
	$c[1]->query('UPDATE stock SET n = 100 WHERE id = 2');
	is($c[1]->state, 'LF003', "$with: nor does a rollback bring it to life");
	$c[0]->query('RESET lease_fence.token');
	$c[1]->query('RESET lease_fence.token');
	$c[0]->query("SELECT lease_fence.release($detached)");

	# many transactions of both, interleaved by the pooler: each client writes
	# under the tokens of its own leases, and tries the other's row
	for my $i (0, 1)
	{
		my ($mine, $others) = $i ? (4, 3) : (3, 4);
		$c[$i]->{script} = join "\n", (
			qq{BEGIN;
			SELECT 1 FROM lease_fence.acquire('stock:$mine');
			UPDATE stock SET n = n + 1 WHERE id = $mine;
			COMMIT;
			UPDATE stock SET n = n + 1000 WHERE id = $others;
			UPDATE stock SET n = n + 1000 WHERE id = $mine;}) x 30;
	}
	$_->send($_->{script}) for @c;
	$_->answer for @c;
	is($dba->query('SELECT string_agg(n::text, $$ $$ ORDER BY id) FROM stock WHERE id IN (3, 4)'),
		join(' ', (30 * $size) x 2),
		"$with: interleaved transactions, only those under a lease have written");

	# scope session is for a backend of one's own: it serves whoever comes next
	next if $size > 1;
	$c[0]->lease(q{'stock:5', scope => 'session'});
	$c[1]->query('UPDATE stock SET n = n + 1 WHERE id = 5');
	is($c[1]->state, '00000', "$with: a session lease serves every client of its backend (as documented)");
	$c[0]->query('DISCARD ALL');
	$_->quit for @c;
}

is($dba->query('SELECT count(*) FROM stock WHERE n >= 100'), '0', 'no write came through that had no lease');
$dba->quit;
$node->stop;
done_testing();
