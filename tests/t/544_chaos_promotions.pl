# Histories over promotions: clients go on with a standby that takes its primary's
# place, four times.  A synchronous one lacks nothing that was acknowledged; an
# asynchronous one lacks what it had not received, and nothing else: the tokens
# after it are above all that anybody ever had, and those from before are refused.
#
# CHAOS_SECONDS, CHAOS_SEED: longer, and the same again.

use strict;
use warnings;

use ChaosRun;
use Test::More;

my $seconds = $ENV{CHAOS_SECONDS} // 40;
my @seed = defined $ENV{CHAOS_SEED} ? ('--seed', $ENV{CHAOS_SEED}) : ();

my $run = start_chaos('--seconds', $seconds, @seed, '--every', 1,
	'--faults', 'promote_sync:2,promote_async:2,cancel,terminate,client_stop,worker_stop');
my $output = output_of_chaos($run, qr/^(seed|operations|faults|committed|lost|slowest)/);
is($?, 0, "nothing is violated in $seconds s, and there is progress afterwards") or diag $output;
like($output, qr/^no violation of I1 to I8$/m, 'the checker says so');
like($output, qr/^faults: .*promote_async \d+, promote_sync \d+/m, 'promotions of both kinds');
like($output, qr/^lost with asynchronous standbys: [1-9]/m, 'asynchronous standbys did lack something');

done_testing();
