# 10 000 leases of scope session in Redis, with a ttl of 3 s, are kept alive by
# the worker for as long as their sessions live: none is lost.
#
# LEASE_RENEWAL_SECONDS: for how long, 15 if not given.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use LeaseSessions qw(lease_node wait_until now);
use POSIX ();
use RedisServer;
use Time::HiRes qw(sleep);

plan skip_all => 'no redis-server here' unless RedisServer::available();

my $seconds = $ENV{LEASE_RENEWAL_SECONDS} // 15;
my ($sessions, $batches, $batch) = (2, 5, 1000);
my $leases = $sessions * $batches * $batch;

my $redis = RedisServer->new;
my $node = lease_node('renewals', 'lease_fence.max_leases = 20000',
	'lease_fence.max_resources_per_transaction = 1000');
my $dba = LeaseSessions->new($node, name => 'dba');

$dba->query("CREATE SERVER locks FOREIGN DATA WRAPPER lease_fence_redis
	OPTIONS (host '127.0.0.1', port '" . $redis->port . "')");
$dba->query("SELECT lease_fence.add_profile(name => 'many', prefix => 'many:', servers => '{locks}', ttl => '3s')");

# user and system time of a process so far
sub cpu
{
	my ($pid) = @_;
	open my $file, '<', "/proc/$pid/stat" or return 0;
	my @field = split ' ', (<$file> =~ s/.*\) //r);
	return ($field[11] + $field[12]) / POSIX::sysconf(POSIX::_SC_CLK_TCK());
}

# How many are live, the fewest renewals of one, and a digest of the tokens.
sub leases
{
	return split /\|/, $dba->query(q{
		SELECT count(*), coalesce(min(renewals), 0), round(extract(epoch FROM min(expires_in)) * 1000),
		       coalesce(md5(string_agg(resource || '=' || token, ',' ORDER BY resource)), '')
		FROM lease_fence.leases WHERE state = 'live' AND coordinator = 'redis'});
}

# ---- taking them ----

my $began = now();
my @holder = map { LeaseSessions->new($node, name => "holder $_") } 1 .. $sessions;
for my $round (0 .. $batches - 1)
{
	foreach my $i (0 .. $#holder)
	{
		my $from = ($i * $batches + $round) * $batch;
		my $to = $from + $batch - 1;
		$holder[$i]->send("SELECT count(*) FROM lease_fence.acquire_all(
			(SELECT array_agg('many:' || g) FROM generate_series($from, $to) g),
			scope => 'session', wait => '60s')");
	}
	$_->answer for @holder;
}
note sprintf '%d leases taken in %.1f s', $leases, now() - $began;

my ($live, $renewals, $left, $tokens) = leases();
is($live, $leases, "$leases leases are live");

# ---- keeping them ----

my $worker = $dba->query('SELECT pid FROM lease_fence.worker_status');
my %pid = (worker => $worker, redis => $redis->pid);
my %cpu = map { $_ => cpu($pid{$_}) } keys %pid;

$began = now();
my $least = $left;
while (now() < $began + $seconds)
{
	sleep 0.5;
	my $now_left = (leases())[2];
	$least = $now_left if $now_left < $least;
}
my $passed = now() - $began;
note sprintf 'CPU time of the %s: %.2f s in %.0f s (%.0f %% of one core)', $_, cpu($pid{$_}) - $cpu{$_},
  $passed, 100 * (cpu($pid{$_}) - $cpu{$_}) / $passed
  foreach sort keys %pid;
note "the least time that a lease had left: $least ms";

my ($live_then, $renewals_then, undef, $tokens_then) = leases();
is($live_then, $leases, "after $seconds s, $leases are live");
is($tokens_then, $tokens, 'under the tokens that they had');
note "renewals of the one that was renewed least: $renewals, then $renewals_then";
cmp_ok($renewals_then - $renewals, '>=', int($seconds / 3), 'each was renewed, and again');
is($redis->cli('DBSIZE'), $leases, "Redis has $leases keys");
is($dba->query('SELECT lapsed + taken_over + revoked FROM lease_fence.stat'), 0, 'none was lost on the way');
is($dba->query('SELECT pid FROM lease_fence.worker_status'), $worker, 'it was one worker all the time');

# ---- giving them back ----

$_->quit for @holder;
wait_until('Redis is empty', sub { $redis->cli('DBSIZE') == 0 });
pass('all are given back when their sessions end');

$node->stop;
done_testing();
