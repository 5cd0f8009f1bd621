# CREATE and DROP EXTENSION, again and again, while sessions take leases and write
# under them, commit and roll back: each new extension works at once, nothing of an
# old one is good in it, and no process gets larger for it.
#
# LF_CYCLES=1000 for more of it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use LeaseSessions;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use Test::More;
use Time::HiRes qw(time);

my $cycles = $ENV{LF_CYCLES} // 40;
my $node = new_server('cycles', "lease_fence.databases = 'postgres'", 'fsync = off', 'max_connections = 30');
$node->start;

# What a process has for itself, in kB.
sub memory_of
{
	my ($pid) = @_;
	my ($private) = slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB/m;
	return $private;
}

sub pid_of
{
	my ($type) = @_;
	return $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type = '$type'");
}

sub memory
{
	my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /\A(\d+)/;
	my %pid = (postmaster => $postmaster, launcher => pid_of('lease_fence launcher'), worker => pid_of('lease_fence worker'));
	return \%pid, { map { $_ => memory_of($pid{$_}) } keys %pid };
}

my $ddl = LeaseSessions->new($node, name => 'ddl');
my @load = map { LeaseSessions->new($node, name => 'load') } 1 .. 4;
my $stale = 0;
my $deadlocks = 0;
my $last = 0;
my ($pids, $before);
my ($granted, $written) = (0, 0);
my %states;

$ddl->query('CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL); INSERT INTO stock SELECT i, 0 FROM generate_series(1, 9) i');

# Takes a lease and writes, ten times; what it is told is not the point, but that
# it is told something, and soon.
sub send_load
{
	my ($session, $id) = @_;

	$session->send("SET statement_timeout = '30s';\n" . join ";\n",
		("BEGIN;\nSELECT lease_fence.acquire(resource => 'stock:$id', wait => '5s');\n"
			. "UPDATE stock SET n = n + 1 WHERE id = $id;\nCOMMIT") x 10);
	return;
}

sub collect_load
{
	foreach my $session (@load)
	{
		next if $session->busy;
		$states{ $session->state }++;
		send_load($session, 1 + int rand 9);
	}
	return;
}

# In the way of the load's locks it may be the victim of a deadlock, as any DDL.
sub ddl
{
	my ($sql, $what) = @_;

	for (1 .. 20)
	{
		$ddl->query($sql);
		return 1 if $ddl->state eq '00000';
		last if $ddl->state ne '40P01';
		$deadlocks++;
	}
	diag($ddl->answer);
	return fail($what);
}

my $started = time;
send_load($_, 1 + int rand 9) foreach @load;
foreach my $cycle (1 .. $cycles)
{
	my $rolls_back = $cycle % 5 == 0;

	# Sometimes one that never was.
	if ($rolls_back)
	{
		$ddl->query("BEGIN;\nCREATE EXTENSION lease_fence;\nSELECT lease_fence.protect('stock', 'stock:{id}');\nROLLBACK");
	}
	ddl('CREATE EXTENSION lease_fence', "cycle $cycle: CREATE EXTENSION");
	ddl("SELECT lease_fence.protect('stock', 'stock:{id}')", "cycle $cycle: protect");
	collect_load();

	my $token = $ddl->query("SELECT token FROM lease_fence.acquire(resource => 'mine', scope => 'detached', ttl => '1h', wait => '30s')");
	if ($token !~ /^\d+$/)
	{
		fail("cycle $cycle: a lease at once: $token");
		last;
	}
	cmp_ok($token, '>', $last, "cycle $cycle: a token above those of the extensions before") if $token <= $last;
	if ($last)
	{
		$ddl->query("SELECT lease_fence.present($last)");
		$stale++ if $ddl->state ne 'LF004';
	}
	$last = $token;
	$granted++;
	collect_load();
	ddl('DROP EXTENSION lease_fence CASCADE', "cycle $cycle: DROP EXTENSION");
	ddl('ALTER TABLE stock DROP COLUMN fence_token', "cycle $cycle: DROP COLUMN") if $cycle % 2;
	collect_load();

	# The first ones fill caches.
	($pids, $before) = memory() if $cycle == int($cycles / 4);
}
my $took = time - $started;
$_->answer foreach @load;
my ($pids_after, $after) = memory();

is($granted, $cycles, "$cycles cycles, each with a lease");
is($stale, 0, 'a token of an extension that was dropped is unknown to the next one');
is_deeply($pids_after, $pids, 'no process had to be started again');
note(sprintf '%d cycles in %.1f s, %d deadlocks; the load ended with %s', $cycles, $took, $deadlocks,
	join ', ', map { "$_: $states{$_}" } sort keys %states);

# What is left per cycle is a few kB in PostgreSQL's own catalog caches
# (CacheMemoryContext), in the worker as in any session; nothing of ours grows.
my $limit = 3000 + 10 * $cycles;
foreach my $process (sort keys %$after)
{
	note("$process: $before->{$process} kB, then $after->{$process} kB");
	cmp_ok($after->{$process} - $before->{$process}, '<', $process eq 'worker' ? $limit : 500, "the $process does not grow");
}
is(join(' ', grep { !/^(00000|3F000|42883|42P01|42703|25P02|40P01|55000|LF0..|55P03|57014)$/ } sort keys %states),
	'', 'the load was told what is so');

# And it is as good as new.
$ddl->query("CREATE EXTENSION lease_fence;\nSELECT lease_fence.protect('stock', 'stock:{id}')");
my $token = token_of($node, 'postgres', 'stock:1');
is(sqlstate_of($node, 'postgres', "BEGIN; SET LOCAL lease_fence.token = '$token'; UPDATE stock SET n = 0 WHERE id = 1; COMMIT"),
	'', 'the last one guards');
is(sqlstate_of($node, 'postgres', 'UPDATE stock SET n = 0'), 'LF003', 'and refuses');
is($node->safe_psql('postgres', "SELECT count(*) FROM lease_fence.check() WHERE severity = 'error' AND object <> 'fsync'"),
	'0', 'check() has nothing to say');
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');
$_->quit foreach $ddl, @load;
stop_fast_is_quick($node, 'after all that');
done_testing();
