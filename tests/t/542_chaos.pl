# Holders of every kind and faults of every kind: first safety, while processes
# are stopped and killed, servers restarted and promoted, Redis emptied, the
# network cut, clocks moved; then liveness, without faults.  The recorded history
# and the committed one keep I1 to I8.
#
# CHAOS_SECONDS, CHAOS_SEED: longer, and the same again.

use strict;
use warnings;

use ChaosRun;
use Test::More;

my $seconds = $ENV{CHAOS_SECONDS} // 90;
my @seed = defined $ENV{CHAOS_SEED} ? ('--seed', $ENV{CHAOS_SEED}) : ();

my $output = output_of_chaos(start_chaos('--seconds', $seconds, @seed),
	qr/^(seed|operations|grants|errors|faults|committed|lost|slowest)/);
is($?, 0, "nothing is violated in $seconds s, and there is progress afterwards") or diag $output;
like($output, qr/^no violation of I1 to I8$/m, 'the checker says so');
my ($faults) = $output =~ /^faults: (.*)$/m;
my $kinds = () = ($faults // '') =~ /\d+/g;
cmp_ok($kinds, '>=', 10, 'of at least ten kinds of faults');

done_testing();
