# Logical replication of guarded tables: the apply worker passes the subscriber's
# guard and leaves the stamps as they came, a FOR ALL TABLES publication does not
# disturb the subscriber's own leases, and after a switch-over with begin_epoch the
# tokens go on above those of the publisher.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use LeaseFenceCopies;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $publisher = new_server('publisher', { allows_streaming => 'logical' });
my $subscriber = new_server('subscriber', { allows_streaming => 'logical' });

foreach my $node ($publisher, $subscriber)
{
	with_shop($node, 'postgres');
	$node->safe_psql(
		'postgres', q{
		CREATE TABLE unstamped (id int PRIMARY KEY, n int NOT NULL);
		SELECT lease_fence.protect(relation => 'unstamped', resource => 'unstamped:{id}');
		CREATE TABLE free (id int PRIMARY KEY, n int NOT NULL);
		SELECT lease_fence.protect(relation => 'free', resource => 'free:{id}', inserts => 'free');
	});
}
$subscriber->safe_psql('postgres', "BEGIN; SET LOCAL lease_fence.bypass = 'empty for the copy'; DELETE FROM stock; COMMIT");

# The subscriber is the older one, so that the publisher's stamps are above all
# that it has minted.
my $own = token_of($subscriber, 'postgres', 'own:1');
my $own_grants = $subscriber->safe_psql('postgres', 'SELECT count(*) FROM lease_fence.grants');
my $own_epochs = $subscriber->safe_psql('postgres', 'SELECT count(*) FROM lease_fence.epochs');
$publisher->safe_psql('postgres', "SELECT lease_fence.begin_epoch(reason => 'to be the younger one')");
my %tokens = map { $_ => token_of($publisher, 'postgres', $_) } 'stock:1', 'stock:2', 'unstamped:1';
cmp_ok($tokens{'stock:1'}, '>', $own, "the publisher's tokens are above the subscriber's");
is(write_as($publisher, 'postgres', $tokens{'stock:1'}, 1), '', 'a stamped row before the subscription');
$publisher->safe_psql('postgres',
	"BEGIN; SET LOCAL lease_fence.token = '$tokens{'unstamped:1'}'; INSERT INTO unstamped VALUES (1, 1); COMMIT; INSERT INTO free VALUES (1, 1)");

# ---- FOR ALL TABLES: our own tables are in it ----

my $conn = $publisher->connstr . ' dbname=postgres';
$publisher->safe_psql('postgres', 'CREATE PUBLICATION everything FOR ALL TABLES');
$subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION copy CONNECTION '$conn' PUBLICATION everything");
$subscriber->wait_for_subscription_sync($publisher, 'copy');
is( $subscriber->safe_psql('postgres', q{SELECT count(*) > 0 FROM pg_subscription_rel WHERE srrelid = 'lease_fence.grants'::regclass AND srsubstate = 'r'}),
	't', 'our own tables are part of the subscription');

my $rows = 'SELECT id, n, fence_token FROM stock ORDER BY id';
is($subscriber->safe_psql('postgres', $rows), $publisher->safe_psql('postgres', $rows),
	'the initial copy passes the guard and keeps the stamps');

sub own_tables_are_undisturbed
{
	my ($what) = @_;

	is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM lease_fence.grants'), $own_grants, "$what: grants are the subscriber's own");
	is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM lease_fence.epochs'), $own_epochs, "$what: so are epochs");
	is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM lease_fence.operations'), '0', "$what: and operations");
	isnt($subscriber->safe_psql('postgres', "SELECT lease_fence.remaining(token => $own)"), '', "$what: its lease lives");
	return;
}
own_tables_are_undisturbed('after the copy');

# ---- changes ----

$publisher->safe_psql('postgres',
	"SELECT lease_fence.guarded_decrement(relation => 'stock', key => '2', column_name => 'n', token => $tokens{'stock:2'}, operation_key => 'once')");
$publisher->safe_psql('postgres', "SELECT lease_fence.release(token => $tokens{'stock:2'})");
isnt(write_as($publisher, 'postgres', 1), '', 'a rejection in the audit of the publisher');
$publisher->safe_psql('postgres', "SELECT lease_fence.set_mode(relation => 'free', mode => 'observe')");
$publisher->safe_psql('postgres', "BEGIN; SET LOCAL lease_fence.bypass = 'gone'; DELETE FROM stock WHERE id = 5; COMMIT");
$publisher->safe_psql('postgres', 'INSERT INTO free VALUES (2, 2)');
ok(await($publisher, 'postgres', "SELECT how_ended = 'released' FROM lease_fence.grants WHERE token = $tokens{'stock:2'}"),
	'the end of a grant is written, as an UPDATE');
$publisher->wait_for_catchup('copy');
is($subscriber->safe_psql('postgres', $rows), $publisher->safe_psql('postgres', $rows), 'changes are applied, stamps and all');
is($subscriber->safe_psql('postgres', 'SELECT id, n, fence_token FROM free ORDER BY id'), "1|1|0\n2|2|0", 'free inserts as well');
own_tables_are_undisturbed('after changes');
is($subscriber->safe_psql('postgres', "SELECT mode FROM lease_fence.guards WHERE relation = 'free'::regclass"), 'enforce',
	'modes are the business of each side');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM pg_stat_subscription_stats WHERE apply_error_count + sync_error_count > 0'),
	'0', 'no apply error');
is(write_as($subscriber, 'postgres', $tokens{'stock:1'}, 1), 'LF004', "the publisher's token is nobody's here");
is(state_of($subscriber, 'postgres', 'UPDATE stock SET n = 0'), 'LF003', 'the guard stands for everybody else');

# ---- a stamp never goes down ----

# Someone wrote here under a younger token: what the publisher brings is applied,
# and the higher stamp stays.
$subscriber->safe_psql('postgres', "SELECT lease_fence.begin_epoch(reason => 'above for a moment')");
$own_epochs++;
my $above = token_of($subscriber, 'postgres', 'stock:3');
$own_grants++;
is(write_as($subscriber, 'postgres', $above, 3), '', 'a row of the subscriber is stamped above');
$own = token_of($subscriber, 'postgres', 'own:1');
$own_grants++;
my $below = token_of($publisher, 'postgres', 'stock:3');
cmp_ok($below, '<', $above, 'the publisher writes it under a lower token');
is(write_as($publisher, 'postgres', $below, 3), '', 'as it may');
$publisher->wait_for_catchup('copy');
is($subscriber->safe_psql('postgres', 'SELECT n, fence_token FROM stock WHERE id = 3'),
	$publisher->safe_psql('postgres', 'SELECT n FROM stock WHERE id = 3') . "|$above", 'the change is applied, the stamp stays');
own_tables_are_undisturbed('after that');

# ---- check() on the publisher ----

unlike(problems_in($publisher, 'postgres'), qr/publication/, 'check() has nothing against FOR ALL TABLES');
$publisher->safe_psql('postgres', 'CREATE PUBLICATION part FOR TABLE unstamped (id, n)');
like(problems_in($publisher, 'postgres'), qr/^public.unstamped: publication part publishes it without its token column$/m,
	'a column list without the token column is a finding');

# ---- the switch-over ----

$publisher->safe_psql('postgres', "SELECT lease_fence.begin_epoch(reason => 'to have the last word')");
my $last = token_of($publisher, 'postgres', 'stock:4');
is(write_as($publisher, 'postgres', $last, 4), '', 'the last write of the publisher');
$publisher->wait_for_catchup('copy');
like(problems_in($subscriber, 'postgres'), qr/^public.stock: it has a stamp above the last token minted here: a history was lost$/m,
	'check() on the subscriber asks for a new epoch');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION copy DISABLE');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION copy SET (slot_name = NONE)');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION copy');
$publisher->stop('fast');
$subscriber->safe_psql('postgres', "SELECT lease_fence.begin_epoch(reason => 'it is the primary now')");
check_copy($subscriber, 'postgres', 'switch-over', $last, 'stock:1' => $tokens{'stock:1'}, 'stock:2' => $tokens{'stock:2'},
	'stock:4' => $last);
is(write_as($subscriber, 'postgres', $above, 3), 'LF004', 'switch-over: its own tokens of before are refused as well');
unlike(problems_in($subscriber, 'postgres'), qr/stamp above/, 'switch-over: check() is content');

$subscriber->stop('fast');
done_testing();
