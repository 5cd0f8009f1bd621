# The wall clock of the server is put forward and back: no lease ends, lives on or
# is renewed by it, and a new epoch begins above every token that was handed out.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../perl";
use Concurrency;
use File::Temp;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = File::Temp->newdir;
plan skip_all => 'no C compiler'
  if system("cc -shared -fPIC -o $dir/clock.so $FindBin::Bin/../clock_shim.c >$dir/log 2>&1") != 0;

# Mapped by the running server: written in place.
open my $clock, '+>:raw', "$dir/seconds" or die $!;

sub put_clock
{
	my ($hours) = @_;
	sysseek $clock, 0, 0;
	syswrite $clock, pack 'q', $hours * 3600;
	return;
}

put_clock(0);
my $node;
{
	local $ENV{LD_PRELOAD} = "$dir/clock.so";
	local $ENV{CLOCK_SHIM_FILE} = "$dir/seconds";
	$node = start_node('wall_clock');
}

my ($s, $other) = (session($node), session($node));
my %last;

sub clock_says
{
	my ($hours, $what) = @_;
	put_clock($hours);
	is($s->must('SELECT round(extract(epoch FROM clock_timestamp()) / 3600 - ' . time . ' / 3600.0)'),
		$hours, "$what: so says the server");
	return;
}

sub lease
{
	my ($id, $rest) = @_;
	return $last{$id} = $other->must("SELECT token FROM lease_fence.acquire('stock:$id', $rest)");
}

sub write_under
{
	my ($session, $id, $token) = @_;
	$session->must('BEGIN');
	$session->must("SELECT set_config('lease_fence.token', '$token', true)");
	my $state = $session->query("UPDATE stock SET quantity = quantity - 1 WHERE id = $id");
	$session->must($state eq '00000' ? 'COMMIT' : 'ROLLBACK');
	return $state;
}

# The leases of 1 and 2 are live; one of 3 is made, and lapses.
sub goes_by_its_own_clock
{
	my ($what) = @_;
	is(write_under($s, 1, $last{1}), '00000', "$what: a lease of an hour writes");
	is($s->must("SELECT lease_fence.remaining($last{1}) BETWEEN '50min' AND '1h'"), 't', "$what: an hour of it is left");
	is(write_under($other, 2, $last{2}), '00000', "$what: a session's lease is live");

	my $short = lease(3, "scope => 'detached', ttl => '1s', wait => '1min'");
	until_true($node, "SELECT lease_fence.remaining($short) IS NULL", "$what: a lease lapses");
	is(write_under($s, 3, $short), 'LF002', "$what: and does not write");
	return;
}

lease(1, "scope => 'detached', ttl => '1h'");
lease(2, "scope => 'session'");
goes_by_its_own_clock('as it is');

clock_says(5, 'five hours forward');
goes_by_its_own_clock('five hours forward');
clock_says(-5, 'five hours back');
goes_by_its_own_clock('five hours back');

# At a third of 30 seconds.
my $renewals = $s->must("SELECT renewals FROM lease_fence.leases WHERE token = $last{2}");
until_true($node, "SELECT renewals > $renewals FROM lease_fence.leases WHERE token = $last{2}",
	'five hours back: the worker renews');
is(write_under($other, 2, $last{2}), '00000', 'five hours back: what is renewed is live');

# ---- an epoch that begins by a clock that is behind ----

my $highest = $s->must('SELECT max(token) FROM lease_fence.grants');
my $floor = $s->must("SELECT lease_fence.begin_epoch('the clock is behind')");
cmp_ok($floor, '>=', $highest, 'I1: no clock takes the floor below a token');
is(write_under($s, 1, $last{1}), 'LF004', 'which is refused, as all of before');
my $next = lease(1, "scope => 'detached', ttl => '1h'");
cmp_ok($next, '>', $floor, 'the next one is above it');
is(write_under($s, 1, $next), '00000', 'and writes');

$_->quit for $s, $other;
$node->stop;
done_testing();
