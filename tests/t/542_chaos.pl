# Holders of every kind and faults of every kind: first safety, while processes
# are stopped and killed, servers restarted and promoted, Redis emptied, the
# network cut, clocks moved; then liveness, without faults.  The recorded history
# and the committed one keep I1 to I8.
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

my $seconds = $ENV{CHAOS_SECONDS} // 90;
my @seed = defined $ENV{CHAOS_SEED} ? ('--seed', $ENV{CHAOS_SEED}) : ();

open my $run, '-|', $python, "$chaos/run.py", '--seconds', $seconds, @seed
  or die "$python: $!";
my $output = '';
while (my $line = <$run>)
{
	$output .= $line;
	diag $line if $line =~ /^(seed|operations|grants|errors|faults|committed|lost|slowest)/;
}
close $run;
is($?, 0, "nothing is violated in $seconds s, and there is progress afterwards") or diag $output;
like($output, qr/^no violation of I1 to I8$/m, 'the checker says so');
my ($faults) = $output =~ /^faults: (.*)$/m;
my $kinds = () = ($faults // '') =~ /\d+/g;
cmp_ok($kinds, '>=', 10, 'of at least ten kinds of faults');

done_testing();
