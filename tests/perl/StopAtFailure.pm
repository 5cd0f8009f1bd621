# Loaded by scripts/mutants into every test: the first failure is enough, and what
# comes after it may wait for something that never happens.  It ends a second later,
# when the test has said what it got.

package StopAtFailure;

use strict;
use warnings;

use Test2::API qw(test2_add_callback_post_load test2_stack);

test2_add_callback_post_load(
	sub {
		test2_stack()->top->listen(
			sub {
				my ($hub, $event) = @_;
				return unless $event->causes_fail;
				$SIG{ALRM} = sub { exit 1 };
				alarm 1;
			});
	});

1;
