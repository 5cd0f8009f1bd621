# Loaded by scripts/mutants into every test: the first failure is enough, and what
# comes after it may wait for something that never happens.

package StopAtFailure;

use strict;
use warnings;

use Test2::API qw(test2_add_callback_post_load test2_stack);

test2_add_callback_post_load(
	sub {
		test2_stack()->top->listen(
			sub {
				my ($hub, $event) = @_;
				exit 1 if $event->causes_fail;
			});
	});

1;
