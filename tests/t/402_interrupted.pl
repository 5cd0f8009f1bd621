# A wait for a lease that is interrupted, at any point and by any means, is never
# a grant: the lease is to be had at once by the next, nothing is left behind,
# and a late answer does not meet the session's next request.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use LeaseSessions qw(lease_node wait_until now has_points);

my $node = lease_node('interrupted', "deadlock_timeout = '10s'");
my $dba = LeaseSessions->new($node, name => 'dba');

$dba->query('CREATE TABLE stock (id int PRIMARY KEY, n int)');
$dba->query('INSERT INTO stock SELECT g, 0 FROM generate_series(1, 100) g');
$dba->query(q{SELECT lease_fence.protect('stock', 'stock:{id}')});

my $holder = LeaseSessions->new($node, name => 'holder');
my $probe = LeaseSessions->new($node, name => 'probe');

sub worker_pid { return $dba->query('SELECT pid FROM lease_fence.worker_status'); }

sub wait_for
{
	my ($what, $query) = @_;
	wait_until($what, sub { $dba->query($query) eq 't' });
}

sub set_point
{
	my ($point) = @_;
	$node->append_conf('postgresql.conf', "lease_fence.test_point = '$point'");
	$node->reload;
}

# The victim asks until the worker stops at the point: it may answer before it
# has heard of it.
sub ask_until_at_point
{
	my ($victim, $point, $sql) = @_;
	my $from = -s $node->logfile;
	my $stopped = qr/waits at point $point/;

	set_point("$point=wait");
	for (1 .. 1000)
	{
		$victim->send($sql);
		wait_until('it is answered or at the point',
			sub { slurp_file($node->logfile, $from) =~ $stopped || !$victim->busy });
		return if slurp_file($node->logfile, $from) =~ $stopped;
		$victim->query('DISCARD ALL');
	}
	die "the worker never comes to $point";
}

# ---- what the victim is in the middle of ----
my %situation = (
	'queued' => {
		begin => sub { $holder->lease("'$_[0]', scope => 'session'") },
		reached => sub { "SELECT waiters = 1 FROM lease_fence.leases WHERE resource = '$_[0]'" },
		end => sub { $holder->query('DISCARD ALL') },
	},
	'behind writers' => {
		begin => sub {
			my ($id) = $_[0] =~ /(\d+)/;
			$holder->query('BEGIN');
			my $token = $holder->lease("'$_[0]', ttl => '10min'");
			$holder->query("UPDATE stock SET n = n + 1 WHERE id = $id");
			$holder->query("SELECT lease_fence.release($token)");
		},
		reached => sub { "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $_[1]" },
		end => sub { $holder->query('COMMIT') },
	},
	'while the worker is stopped' => {
		begin => sub { kill 'STOP', $_[0]->{worker} = worker_pid() },
		reached => sub { "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $_[1]" },
		end => sub { kill 'CONT', worker_pid() },
	},
);

# ---- how it is interrupted; what the victim says ----
my %interruption = (
	'pg_cancel_backend' => [ '', sub { $dba->query("SELECT pg_cancel_backend($_[0]{pid})") }, '57014' ],
	'statement_timeout' => [ q{SET statement_timeout = '200ms'}, sub { }, '57014' ],
	'pg_terminate_backend' => [ '', sub { $dba->query("SELECT pg_terminate_backend($_[0]{pid})") }, 'gone' ],
	'a client that vanishes' => [ '', sub { $_[0]->vanish }, '' ],
	'the end of the wait' => [ '', sub { }, '55P03' ],
	'lock_timeout' => [ q{SET lock_timeout = '200ms'}, sub { }, '55P03' ],
);

# Everybody else gets the lease now; nothing of the victim's is left.
sub nothing_is_left
{
	my ($what, $resource, $victim) = @_;
	my $begun = now();
	my $token = $probe->query(
		"SELECT token FROM lease_fence.acquire('$resource', wait => '60s', scope => 'session')");

	like($token, qr/^\d+$/, "$what: the next one gets it");
	cmp_ok(now() - $begun, '<', 10, "$what: at once");
	if ($victim->{child})
	{
		# a late answer would be the other resource's token
		$victim->lease(q{'next', scope => 'session'});
		is($victim->query(
				"SELECT g.resource || ' ' || (g.token = l.token) || ' ' || (l.pid = pg_backend_pid())
				 FROM lease_fence.grants g JOIN lease_fence.leases l USING (resource)
				 WHERE g.resource = 'next' ORDER BY g.token DESC LIMIT 1"),
			'next true true', "$what: the session's next request is answered as it was asked");
		$victim->query('DISCARD ALL');
	}
	is($dba->query(
			"SELECT count(*) FILTER (WHERE state = 'live'), sum(waiters) FROM lease_fence.leases
			 WHERE resource = '$resource'"),
		'1|0', "$what: nothing is left but the next one's lease");
	$probe->query("SELECT lease_fence.release($token)");
	wait_for('its end is written',
		"SELECT count(*) = 0 FROM lease_fence.grants WHERE resource = '$resource' AND ended_at IS NULL");
}

my $number = 0;
for my $where (sort keys %situation)
{
	for my $how (sort keys %interruption)
	{
		# lock_timeout is about locks: there are some only behind writers
		next if $how eq 'lock_timeout' && $where ne 'behind writers';

		# nobody hears of the end of the wait from a stopped worker but the session
		my $resource = 'stock:' . ++$number;
		my $victim = LeaseSessions->new($node, name => 'victim');
		my ($before, $interrupt, $state) = @{ $interruption{$how} };
		my $wait = $how eq 'the end of the wait' ? '200ms' : '100s';
		my $what = "$where, $how";

		$situation{$where}{begin}->($where =~ /worker/ ? {} : $resource);
		$victim->query($before) if $before;
		$victim->send(
			"SELECT token FROM lease_fence.acquire('$resource', wait => '$wait', scope => 'session')");
		wait_for("the victim is $where", $situation{$where}{reached}->($resource, $victim->pid))
		  if $wait eq '100s' && !$before;
		$interrupt->($victim);
		if ($victim->{child})
		{
			my $begun = now();
			my $text = $victim->answer;
			is($victim->state, $state, "$what: $state") or diag($text);
			cmp_ok(now() - $begun, '<', 10, "$what: at once");
			$victim->quit if $state eq 'gone';
			$victim->query('RESET ALL') unless $state eq 'gone';
		}
		$situation{$where}{end}->();
		nothing_is_left($what, $resource, $victim);
		$victim->quit;
	}
}

# ---- interrupted between any two steps of the worker ----
SKIP:
{
	skip 'a build without test points', 1 unless has_points($node);
	for my $point (qw(mint-begun mint-drained mint-inserted mint-committed mint-published mint-unanswered))
	{
		for my $call ('acquire', 'acquire_all')
		{
			my $resource = 'step:' . ++$number;
			my $victim = LeaseSessions->new($node, name => 'victim');
			my $what = "$call cancelled at $point";

			ask_until_at_point($victim, $point,
				$call eq 'acquire' ?
				"SELECT token FROM lease_fence.acquire('$resource', wait => '100s', scope => 'session')" :
				"SELECT token FROM lease_fence.acquire_all('{$resource,$resource b}', wait => '100s', scope => 'session')");
			$dba->query('SELECT pg_cancel_backend(' . $victim->pid . ')');
			$victim->answer;
			is($victim->state, '57014', "$what: 57014");
			set_point('');
			nothing_is_left($what, $resource, $victim);
			nothing_is_left("$what, the second", "$resource b", $victim) if $call eq 'acquire_all';
			$victim->quit;
		}
	}
}

# ---- caught in a block of its own ----
# The wait behind writers is in a subtransaction of the extension: an error that
# is caught must undo that one as well, not only it.
$holder->query('BEGIN');
my $token = $holder->lease(q{'stock:99', ttl => '10min'});
$holder->query('UPDATE stock SET n = n + 1 WHERE id = 99');
$holder->query("SELECT lease_fence.release($token)");
$dba->query('CREATE TABLE note (t text)');
my $victim = LeaseSessions->new($node, name => 'victim');
$victim->query(q{SET lock_timeout = '100ms'});
$victim->query(
	q{DO $$ BEGIN
		BEGIN
			INSERT INTO note VALUES ('undone');
			PERFORM lease_fence.acquire('stock:99', wait => '100s', scope => 'session');
		EXCEPTION WHEN lock_not_available THEN
			INSERT INTO note VALUES ('caught');
		END;
		INSERT INTO note VALUES ('after');
	END $$});
is($victim->state, '00000', 'an error of the wait behind writers is caught in a block');
is($dba->query(q{SELECT string_agg(t, ' ' ORDER BY t) FROM note}), 'after caught',
	'the block is undone, what came after it is committed with its statement');
$victim->query('BEGIN');
$victim->query(q{INSERT INTO note VALUES ('1'); SAVEPOINT s; INSERT INTO note VALUES ('2')});
$victim->query(q{SELECT lease_fence.acquire('stock:99', wait => '100s', scope => 'session')});
is($victim->state, '55P03', 'in a savepoint: lock_timeout');
$victim->query('ROLLBACK TO s');
$victim->query(q{INSERT INTO note VALUES ('3')});
$victim->query('COMMIT');
is($dba->query(q{SELECT string_agg(t, ' ' ORDER BY t) FROM note}), '1 3 after caught',
	'rolled back to the savepoint, the transaction goes on');
$holder->query('COMMIT');
$victim->quit;

# ---- no worker at all ----
my $lonely = PostgreSQL::Test::Cluster->new('lonely');
$lonely->init;
$lonely->append_conf('postgresql.conf', q{
shared_preload_libraries = 'lease_fence'
max_worker_processes = 1
max_logical_replication_workers = 0
});
$lonely->start;
$lonely->safe_psql('postgres', 'CREATE EXTENSION lease_fence');
my $asker = LeaseSessions->new($lonely);
my $other = LeaseSessions->new($lonely);
$other->query(q{SET statement_timeout = '300ms'});
$other->query(q{SELECT lease_fence.acquire('a', scope => 'session')});
is($other->state, '57014', 'no place for a worker: the wait ends with statement_timeout');
$asker->send(q{SELECT lease_fence.acquire('a', scope => 'session')});
wait_until('it waits', sub {
	$lonely->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE pid = } . $asker->pid .
		q{ AND wait_event_type = 'Extension'}) eq '1' });
$lonely->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $asker->pid . ')');
$asker->answer;
is($asker->state, '57014', 'no place for a worker: the wait can be cancelled');
my $text = $asker->query(q{SELECT lease_fence.acquire('a', scope => 'session')});
is($asker->state, 'LF021', 'no place for a worker: LF021');
like($text, qr/HINT:.*max_worker_processes/, 'the hint names the setting');
$_->quit for $asker, $other;
$lonely->stop;

$_->quit for $dba, $holder, $probe;
$node->stop;
done_testing();
