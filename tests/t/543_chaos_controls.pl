# The control of 542: guards as people write them by hand, under the same holders
# and faults.  The checker finds what each of them lets through; else its silence
# about lease_fence would mean nothing.
#
# The faults are those of clients alone: to these guards Redis means nothing, and
# a holder that is stopped between its check and its commit is all it takes.
#
# CHAOS_SECONDS, CHAOS_SEED: longer, and the same again.

use strict;
use warnings;

use ChaosRun;
use Test::More;

my $seconds = $ENV{CHAOS_SECONDS} // 25;
my $seed = $ENV{CHAOS_SEED} // int(rand(1e9));

sub start
{
	my ($guard, $seed) = @_;
	return start_chaos('--seconds', $seconds, '--seed', $seed,
		'--guard', $guard, '--sql', 32, '--redis', 0, '--other', 0, '--per-process', 8,
		'--resources', 'pg:6', '--careless', 0.8,
		'--faults', 'client_stop,backend_stop,client_kill,cancel,terminate');
}

# All at the same time: they sleep most of theirs.
my @guards = ('none', 'stamp', 'check', 'share', 'split', 'fence');
my %run = map { $_ => start($_, $seed) } @guards;
my %output = map { $_ => output_of_chaos($run{$_}) } @guards;

foreach my $guard (grep { $_ ne 'fence' } @guards)
{
	my ($caught, $tries) = (undef, 0);

	# FOR SHARE is nearly good enough to come through once.
	while (!$caught && $tries++ < 3)
	{
		$output{$guard} = output_of_chaos(start($guard, $seed + $tries)) if $tries > 1;
		($caught) = $output{$guard} =~ /^the checker caught (.*)$/m;
	}
	ok($caught, "guard $guard is caught within " . $seconds * $tries . ' s') or diag $output{$guard};
	diag $caught if $caught;
	like($caught // '', qr/\bI[28] /, 'for a stale write, or for a lost update');
}

# With so few sessions it may have too few rejections to pass by itself.
like($output{fence}, qr/^no violation of I1 to I8$/m, 'the fence of lease_fence holds under the same')
  or diag $output{fence};

done_testing();
