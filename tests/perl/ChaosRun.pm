# Runs of tests/chaos/run.py, as scripts/chaos has them.
#
#   my $run = start_chaos('--seconds', 40, ...);
#   my $output = output_of_chaos($run, qr/^seed/);    # shows such lines; $? is its status
#
# Skips all tests where it cannot run.

package ChaosRun;

use strict;
use warnings;

use Exporter 'import';
use FindBin;
use RedisPython;
use RedisServer;
use Test::More;

our @EXPORT = qw(start_chaos output_of_chaos);

my $python = RedisPython::available();

plan skip_all => 'no redis-server here' unless RedisServer::available();
plan skip_all => 'no python with redis and psycopg2 here'
  unless $python && system("$python -c 'import psycopg2, redis' >/dev/null 2>&1") == 0;

sub start_chaos
{
	my (@arguments) = @_;
	open my $run, '-|', $python, "$FindBin::RealBin/../chaos/run.py", @arguments
	  or die "$python: $!";
	return $run;
}

sub output_of_chaos
{
	my ($run, $shown) = @_;
	my $output = '';
	while (my $line = <$run>)
	{
		$output .= $line;
		diag $line if defined $shown && $line =~ $shown;
	}
	close $run;
	return $output;
}

1;
