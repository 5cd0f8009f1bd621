# Copies of the whole database or cluster: a template copy, standbys promoted
# without the last grants, two of them from one backup, a point in time. In each
# the next token is above every one that was ever handed out, and every token of
# before is refused.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use LeaseFenceCopies;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = new_server('primary', { allows_streaming => 1, has_archiving => 1 },
	"lease_fence.databases = 'shop, branch, postgres'", "archive_timeout = 0", "wal_keep_size = 64");
$primary->safe_psql('postgres', 'CREATE DATABASE shop');
with_shop($primary, 'shop');
my %tokens = map { $_ => token_of($primary, 'shop', $_) } 'stock:1', 'stock:2';
is(write_as($primary, 'shop', $tokens{$_}, substr($_, -1)), '', "$_ is written, with a stamp") foreach sort keys %tokens;
$primary->safe_psql('shop', "SELECT lease_fence.add_profile(name => 'etcd', prefix => 'etcd:', policy => 'external')");
my $last = $tokens{'stock:2'};

# ---- CREATE DATABASE ... TEMPLATE ----

$primary->safe_psql('postgres', 'CREATE DATABASE branch TEMPLATE shop');
await_epoch($primary, 'branch', 'template copy');
check_copy($primary, 'branch', 'template copy', $last, %tokens);
like(problems_in($primary, 'branch'), qr/^profile etcd: it was added in another system or database/m,
	'template copy: the profile is off');
is(write_as($primary, 'shop', $tokens{'stock:1'}), '', 'template copy: the original goes on');
is($primary->safe_psql('shop', 'SELECT count(*) FROM lease_fence.epochs'), '1', 'in its epoch');
$primary->safe_psql('postgres', 'DROP DATABASE branch');

# ---- one backup, two standbys, and a primary that goes on without them ----

$primary->backup('base');
my @standbys;
foreach my $name ('left', 'right')
{
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init_from_backup($primary, 'base', has_streaming => 1);
	$node->append_conf('postgresql.conf', "archive_mode = off\n");
	$node->start;
	$primary->wait_for_catchup($node, 'replay');
	push @standbys, $node;
}
my ($left, $right) = @standbys;

# What they never hear of.
$_->append_conf('postgresql.conf', "primary_conninfo = ''\n") foreach @standbys;
$_->reload foreach @standbys;
ok(await($primary, 'postgres', 'SELECT count(*) = 0 FROM pg_stat_replication'), 'the standbys are cut off');
my %lost = map { $_ => token_of($primary, 'shop', $_) } 'stock:3', 'stock:4';
is(write_as($primary, 'shop', $lost{'stock:3'}, 3), '', 'a grant and a write that no standby has');
my $ever = $lost{'stock:4'};

$left->promote;
await_epoch($left, 'shop', 'promoted');
my $left_last = check_copy($left, 'shop', 'promoted', $ever, %tokens, %lost);
is($left->safe_psql('shop', 'SELECT count(*) FROM lease_fence.grants WHERE ended_at IS NULL AND how_ended IS NULL'),
	'4', 'promoted: only its own grants are open');
unlike(problems_in($left, 'shop'), qr/^profile/m, 'promoted: a profile is on, it is the same system');
is(write_as($primary, 'shop', $lost{'stock:3'}, 3), '', 'an old primary that still runs cannot be fenced from there');

$right->promote;
await_epoch($right, 'shop', 'second promotion');
my %of_left = map { $_ => $left->safe_psql('shop', "SELECT max(token) FROM lease_fence.grants WHERE resource = '$_'") }
  sort keys %tokens;
my $right_last = check_copy($right, 'shop', 'second promotion', $ever, %tokens, %lost);
foreach my $resource (sort keys %of_left)
{
	my $id = substr($resource, -1);

	is(write_as($right, 'shop', $of_left{$resource}, $id), 'LF004',
		"second promotion: the other one's token of $resource is unknown");
	my $mine = $right->safe_psql('shop', "SELECT max(token) FROM lease_fence.grants WHERE resource = '$resource'");
	isnt($mine, $of_left{$resource}, 'and no number is both');
	is(write_as($left, 'shop', $mine, $id), 'LF004', 'nor the other way round');
}

# The same timeline twice, but a restart of either is no news to it.
my $kept = token_of($left, 'shop', 'stock:5');
$left->restart;
is(write_as($left, 'shop', $kept, 5), '', 'a restart after the promotion keeps its leases');
is($left->safe_psql('shop', 'SELECT count(*) FROM lease_fence.epochs'), '2', 'and its epoch');
$_->stop('fast') foreach @standbys;

# ---- a point in time ----

my $point = $primary->safe_psql('shop', 'SELECT pg_current_wal_insert_lsn()');
my %after = ('stock:5' => token_of($primary, 'shop', 'stock:5'));
is(write_as($primary, 'shop', $after{'stock:5'}, 5), '', 'a grant behind the point in time');
$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
$primary->stop('fast');

my $restored = PostgreSQL::Test::Cluster->new('restored');
$restored->init_from_backup($primary, 'base', has_restoring => 1, standby => 0);
$restored->append_conf('postgresql.conf',
	"archive_mode = off\nrecovery_target_lsn = '$point'\nrecovery_target_action = 'promote'\n");
$restored->start;
ok(await($restored, 'postgres', 'SELECT NOT pg_is_in_recovery()'), 'restored to a point in time');
await_epoch($restored, 'shop', 'point in time');
is($restored->safe_psql('shop', "SELECT count(*) FROM lease_fence.grants WHERE token = $after{'stock:5'}"),
	'0', 'point in time: what came later is gone');
check_copy($restored, 'shop', 'point in time', $after{'stock:5'}, %tokens, %lost, %after);

is($restored->safe_psql('shop', 'SELECT string_agg(timeline::text, \' \' ORDER BY floor) FROM lease_fence.epochs'), '1 2',
	'each epoch remembers its timeline');
$restored->stop('fast');

# ---- nothing that can be seen ----

# A data directory that starts where it was, as after a file-system snapshot was
# put back, cannot be told from a restart: begin_epoch is for that.
$primary->start;
is(write_as($primary, 'shop', $after{'stock:5'}, 5), '', 'a cluster that starts where it was keeps its leases');
$primary->safe_psql('shop', "SELECT lease_fence.begin_epoch(reason => 'a snapshot was put back')");
check_copy($primary, 'shop', 'begin_epoch', $after{'stock:5'}, %tokens, %lost, %after);
$primary->stop('fast');
done_testing();
