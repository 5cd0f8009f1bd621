# CREATE, DROP, RENAME and copying of databases while workers run: the worker
# makes way and comes back, committed or rolled back, and blocks nobody.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use Test::More;
use Time::HiRes;

my $node = new_server('databases', 'max_prepared_transactions = 5');
$node->start;

sub create
{
	foreach my $database (@_)
	{
		$node->safe_psql('postgres', "CREATE DATABASE $database");
		with_extension($node, $database);
	}
	return;
}

# Runs a command that must succeed without waiting for anybody's time limit.
sub quick
{
	my ($sql, $what) = @_;
	my $started = Time::HiRes::time;

	is(sqlstate_of($node, 'postgres', $sql), '', $what);
	cmp_ok(Time::HiRes::time() - $started, '<', 5, '... at once');
	return;
}

create('kept', 'sub_a', 'sub_b');
my $kept = token_of($node, 'kept', 'stock:1');
my $kept_pid = worker_pid($node, 'kept');

# ---- DROP ----

token_of($node, 'sub_a', 'stock:1');
isnt(worker_pid($node, 'sub_a'), '', 'a worker runs in the database to be dropped');
my $in_block = 'BEGIN; DROP DATABASE sub_a; COMMIT';
is(sqlstate_of($node, 'postgres', $in_block), '25001', 'DROP DATABASE in a block fails');
isnt(worker_pid($node, 'sub_a'), '', 'and does not disturb the worker');
quick('DROP DATABASE sub_a', 'DROP DATABASE of a database with a worker and live leases');

token_of($node, 'sub_b', 'stock:1');
quick('DROP DATABASE sub_b WITH (FORCE)', 'DROP DATABASE ... WITH (FORCE)');

$node->safe_psql('postgres', 'CREATE DATABASE bystander');
quick('DROP DATABASE bystander', 'DROP DATABASE of another database while workers run');
is(worker_pid($node, 'kept'), $kept_pid, 'their workers run on');
is(write_as($node, 'kept', $kept), '', 'their leases live on');

# Somebody is connected: it fails, and the worker comes back.
create('busy');
my $busy = token_of($node, 'busy', 'stock:1');
my $first = worker_pid($node, 'busy');
my $session = $node->background_psql('busy', on_error_stop => 0);
$session->query('SELECT 1');
is(sqlstate_of($node, 'postgres', 'DROP DATABASE busy'), '55006',
	'DROP DATABASE of one that somebody uses fails as ever');
my $second = await_worker($node, 'busy');
isnt($second, $first, 'the worker that made way comes back');
is(write_as($node, 'busy', $busy), '', 'the lease of before still writes');
is($node->safe_psql('busy', "SELECT lease_fence.renew(token => $busy) IS NOT NULL"),
	't', 'and is renewed');

# Who may not do it does not disturb the worker.
$node->safe_psql('postgres', 'CREATE ROLE nobody_special LOGIN');
is(sqlstate_of($node, 'postgres', 'SET ROLE nobody_special; DROP DATABASE busy'),
	'42501', 'a role that may not drop it is refused');
is(sqlstate_of($node, 'postgres', 'SET ROLE nobody_special; CREATE DATABASE x TEMPLATE busy'),
	'42501', 'nor copy it');
is(worker_pid($node, 'busy'), $second, 'and the worker does not notice');

# Cancelled while it waits for the session.
$node->psql('postgres', "SET statement_timeout = '500ms'; DROP DATABASE busy");
isnt(await_worker($node, 'busy'), '', 'DROP DATABASE cancelled: the worker comes back');
is(write_as($node, 'busy', $busy), '', 'and the lease writes');
$session->quit;

# ---- RENAME ----

is(sqlstate_of($node, 'postgres', 'BEGIN; ALTER DATABASE busy RENAME TO other; ROLLBACK'),
	'', 'RENAME rolled back');
isnt(await_worker($node, 'busy'), '', 'the worker comes back under the old name');
quick('ALTER DATABASE busy RENAME TO renamed', 'RENAME committed');
isnt(await_worker($node, 'renamed'), '', 'the worker comes back under the new name');
is(write_as($node, 'renamed', $busy), '', 'a lease lives through it: it is the same database');
is($node->safe_psql('renamed', 'SELECT count(*) FROM lease_fence.epochs'), '1', 'and the same epoch');

# While it is open, nobody else gets in, and the worker stays away.
$session = $node->background_psql('postgres', on_error_stop => 0);
$session->query('BEGIN; ALTER DATABASE renamed RENAME TO other');
is(worker_pid($node, 'renamed'), '', 'the worker stays away while a RENAME is open');
$node->safe_psql('postgres', 'CREATE DATABASE meanwhile');
quick('DROP DATABASE meanwhile', 'other databases come and go meanwhile');
my $backend = $session->query_safe('SELECT pg_backend_pid()');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($backend)");
isnt(await_worker($node, 'renamed'), '', 'the session ends: the worker comes back');
eval { $session->quit };

# ---- TEMPLATE ----

my $live = token_of($node, 'renamed', 'stock:2');
quick('CREATE DATABASE copy TEMPLATE renamed', 'CREATE DATABASE of a template with a worker and live leases');
isnt(await_worker($node, 'renamed'), '', "the template's worker comes back");
is(write_as($node, 'renamed', $live, 2), '', 'and its leases write on');
is($node->safe_psql('copy', 'SELECT count(*) > 0 FROM lease_fence.grants'),
	't', 'the copy has the grants of before');
my $state = write_as($node, 'copy', $live, 2);
like($state, qr/^(LF004|LF021)$/, 'but a token of before is not good in it');
my $of_copy = token_of($node, 'copy', 'stock:2');
is(write_as($node, 'copy', $live, 2), 'LF004', 'it is unknown once the epoch has begun');
is($node->safe_psql('copy', 'SELECT count(*) FROM lease_fence.epochs'), '2', 'the copy begins an epoch of its own');
cmp_ok($of_copy, '>', $live, 'whose tokens are greater');
is(write_as($node, 'copy', $of_copy, 2), '', 'and write to the rows that bear stamps of before');
is( $node->safe_psql(
		'copy',
		'SELECT floor >= (SELECT max(fence_token) FROM stock WHERE id = 1) FROM lease_fence.epochs ORDER BY id DESC LIMIT 1'
	),
	't', 'the floor of it is above the stamps');
is($node->safe_psql('copy', "SELECT count(*) FROM lease_fence.grants WHERE ended_at IS NULL AND token <> $of_copy"),
	'0', 'the grants of before have ended in the copy');
is(sqlstate_of($node, 'postgres', 'CREATE DATABASE copy TEMPLATE renamed'), '42P04',
	'CREATE DATABASE fails for its own reason');
isnt(await_worker($node, 'renamed'), '', "and the template's worker comes back");
is(write_as($node, 'renamed', $live, 2), '', 'with its leases');
quick('CREATE DATABASE copy2 TEMPLATE renamed STRATEGY file_copy', 'the other strategy of copying');
isnt(await_worker($node, 'renamed'), '', 'works as well');

# ---- in a loop ----

foreach my $round (1 .. 4)
{
	$node->safe_psql('postgres', 'CREATE DATABASE looped TEMPLATE renamed');
	token_of($node, 'looped', 'stock:1');
	$node->safe_psql('postgres', 'DROP DATABASE looped');
}
ok(1, 'a database is copied, used and dropped again and again');
is(worker_pid($node, 'kept'), $kept_pid, 'and the worker that has nothing to do with it never left');
is(write_as($node, 'kept', $kept), '', 'nor its lease');
is( $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_stat_activity a WHERE backend_type = 'lease_fence worker' AND NOT EXISTS (SELECT FROM pg_database d WHERE d.oid = a.datid)"
	),
	'0', 'no worker is left of a database that is gone');
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');

# ---- while the server stops ----

$session = $node->background_psql('postgres', on_error_stop => 0);
$session->query('BEGIN; ALTER DATABASE renamed RENAME TO other');
stop_fast_is_quick($node, 'while a RENAME DATABASE is open');
eval { $session->quit };
done_testing();
