# An oversold shop that is not: 32 clients, 1000 items, 5000 orders. Connections are
# killed, answers get lost, and the orders are repeated under their keys; three clients are stopped
# past their lease and write when they wake up. What is sold are exactly the 1000
# items, one per operation key (I4, I6), and every client knows which orders are its.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use POSIX ();
use Time::HiRes qw(usleep);

use constant {
	CLIENTS => 32,
	STOPPED => 3,
	ROWS => 20,
	ITEMS => 50,				# of each row
	ORDERS => 5000,
	KILLS => 60,
	PATIENCE => 300,			# seconds
};

my $node = PostgreSQL::Test::Cluster->new('orders');
$node->init;
$node->append_conf('postgresql.conf', <<'CONF');
shared_preload_libraries = 'lease_fence'
max_connections = 60
lease_fence.databases = 'postgres'
log_min_messages = fatal
CONF
$node->start;
$node->safe_psql('postgres', sprintf(<<'SQL', ITEMS, ROWS));
CREATE EXTENSION lease_fence;
CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL);
INSERT INTO stock SELECT i, %d FROM generate_series(1, %d) i;
SELECT lease_fence.protect('stock', 'stock:{id}');
SQL

my $folder = PostgreSQL::Test::Utils::tempdir;

# The answer counts when the COMMIT came back. What failed leaves "outcome" unset.
sub order
{
	my ($order) = @_;
	my $row = $order % ROWS + 1;
	return <<"SQL";
\\unset outcome
BEGIN;
SELECT token FROM lease_fence.acquire('stock:$row', wait => '60s') \\gset
SELECT outcome FROM lease_fence.guarded_decrement('stock', '$row', 'n', token => :token, operation_key => 'order-$order') \\gset
COMMIT;
\\echo $order :outcome
SQL
}

# Takes a lease, is stopped (psql, by its own shell) until long after it, and
# writes under it, as if nothing had happened.
sub order_after_a_stop
{
	my ($order) = @_;
	my $row = $order % ROWS + 1;
	# under another name, so that its connection is not among those that are killed
	return <<"SQL";
\\unset outcome
SET application_name = 'stopped';
SELECT token FROM lease_fence.acquire('stock:$row', scope => 'detached', ttl => '200ms', wait => '60s') \\gset
\\! (sleep 1; kill -CONT \$PPID) & kill -STOP \$PPID
SELECT outcome FROM lease_fence.guarded_decrement('stock', '$row', 'n', token => :token, operation_key => 'order-$order') \\gset
RESET application_name;
\\echo $order :outcome
SQL
}

# Repeats its orders until each has an answer.
sub client
{
	my ($number) = @_;
	my (%answers, %lost);
	my @orders = grep { $_ % CLIENTS == $number } 1 .. ORDERS;
	my $stops = $number < STOPPED ? 1 : 0;
	my $until = time + PATIENCE;

	while (@orders && time < $until)
	{
		my $script = "$folder/client$number.sql";
		append_to_file($script, '');
		open(my $out, '>', $script) or die $!;
		print $out $stops-- > 0 ? order_after_a_stop($_) : order($_) for @orders;
		close($out);
		open(my $psql, '-|', "psql -XAtq -f '$script' '" . $node->connstr('postgres') .
			  " application_name=order' 2>/dev/null") or die $!;
		while (<$psql>)
		{
			next unless /^(\d+) (applied|replayed|not_met)$/;
			next if $1 % 10 == 0 && !$lost{$1}++;	# so much for that answer
			$answers{$1} = $2;
		}
		close($psql);
		@orders = grep { !exists $answers{$_} } @orders;
	}
	open(my $out, '>', "$folder/answers$number") or die $!;
	print $out "$_ $answers{$_}\n" for keys %answers;
	close($out);
	return scalar @orders;
}

my @clients;
for my $number (0 .. CLIENTS - 1)
{
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		my $left = eval { client($number) } // 1;
		POSIX::_exit($left == 0 ? 0 : 1);
	}
	push @clients, $pid;
}

# Kills while they work, one connection at a time.
my ($killed, $failed) = (0, 0);
while (@clients)
{
	usleep(20_000);
	if ($killed < KILLS)
	{
		$killed += $node->safe_psql('postgres', q(
			SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
			WHERE application_name = 'order' ORDER BY random() LIMIT 1) one));
	}
	@clients = grep {
		my $ended = waitpid($_, POSIX::WNOHANG());
		$failed++ if $ended == $_ && $? != 0;
		$ended == 0;
	} @clients;
}
is($failed, 0, 'every client got an answer to each of its orders');
cmp_ok($killed, '>', 0, "connections were killed: $killed");

my %count = (applied => 0, replayed => 0, not_met => 0);
for my $number (0 .. CLIENTS - 1)
{
	for (split /\n/, slurp_file("$folder/answers$number"))
	{
		$count{$1}++ if /^\d+ (\w+)$/;
	}
}
note("applied $count{applied}, replayed $count{replayed}, not met $count{not_met}");
is($count{applied} + $count{replayed}, ROWS * ITEMS, 'the clients know of 1000 orders that were applied');
cmp_ok($count{replayed}, '>', 0, 'some of them from the second answer on');
is($count{not_met}, ORDERS - ROWS * ITEMS, 'all others were told that nothing is left');
is($node->safe_psql('postgres', 'SELECT min(n), max(n), count(*) FROM stock'), '0|0|' . ROWS,
	'everything is sold, and nothing twice');
is($node->safe_psql('postgres', q(SELECT count(*), count(DISTINCT key) FROM lease_fence.operations)),
	(ROWS * ITEMS) . '|' . (ROWS * ITEMS), 'one sale per operation key');
is($node->safe_psql('postgres', q(SELECT count(*) FROM lease_fence.rejected_writes
	WHERE reason IN ('superseded', 'lapsed') AND action = 'rejected')), STOPPED,
	'the stopped clients were refused when they woke up');
is($node->safe_psql('postgres', q(
	SELECT count(*) FROM (SELECT o.token < lag(o.token) OVER (PARTITION BY g.resource ORDER BY o.answer::int DESC) AS back
	FROM lease_fence.operations o JOIN lease_fence.grants g USING (token)) o WHERE back)), '0', 'sales of an item are in the order of their tokens');
$node->stop;
done_testing();
