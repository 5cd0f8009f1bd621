# 64 SQL sessions and 64 clients with redis-py on 8 resources for 30 s, while
# Redis is killed and comes back empty three times: the recorded history, with
# the committed changes as logical decoding delivers them, keeps I1 to I8.
# Before that, the checker refuses histories that break them.
#
# CHAOS_SECONDS, CHAOS_SEED: longer, and the same again.

use strict;
use warnings;

use FindBin;
use RedisPython;
use RedisServer;
use Test::More;

my $chaos = "$FindBin::RealBin/../chaos";
my $python = RedisPython::available();

plan skip_all => 'no redis-server here' unless RedisServer::available();
plan skip_all => 'no python with redis and psycopg2 here'
  unless $python && system("$python -c 'import psycopg2, redis' >/dev/null 2>&1") == 0;

# ---- the checker itself ----

foreach my $line (`$python $chaos/test_checker.py 2>/dev/null`)
{
	my ($not, $name) = $line =~ /^(not )?ok \d+ - (.*)/ or next;
	ok(!$not, "checker: $name");
}
is($?, 0, 'the tests of the checker ran to their end');

# ---- the history ----

my $seconds = $ENV{CHAOS_SECONDS} // 30;
my @seed = defined $ENV{CHAOS_SEED} ? ('--seed', $ENV{CHAOS_SEED}) : ();

open my $run, '-|', $python, "$chaos/run.py", '--seconds', $seconds, @seed,
  '--sql', 64, '--redis', 64, '--other', 0, '--per-process', 8, '--resources', 'red:8',
  '--faults', 'redis_restart:3'
  or die "$python: $!";
my $output = '';
while (my $line = <$run>)
{
	$output .= $line;
	note $line;
}
close $run;
is($?, 0, "nothing is violated in $seconds s") or diag $output;
like($output, qr/^no violation of I1 to I8$/m, 'the checker says so');
like($output, qr/^faults: redis_restart 3$/m, 'Redis came back empty three times');

done_testing();
