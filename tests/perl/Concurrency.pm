# Sessions that a test drives step by step, and the states it waits for.
#
# A session is a psql of its own.  send() lets a statement run on its own,
# result() waits for its end, query() is both.  What came of the last one:
# state (SQLSTATE, 'gone' if the server has closed the connection), out, error.

package Concurrency;

use strict;
use warnings;

use Exporter qw(import);
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(start_node set session has_test_points at_point point stock
  wait_for_drain wait_for_lease_wait until_true log_since);

# A server with the extension, a guarded table and rows 1 to 9 of 100 each.
sub start_node
{
	my ($name, %options) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(allows_streaming => $options{streaming} // 0);
	$node->append_conf('postgresql.conf', <<"CONF");
shared_preload_libraries = 'lease_fence'
max_prepared_transactions = 10
deadlock_timeout = 300ms
log_error_verbosity = default
restart_after_crash = on
CONF
	$node->append_conf('postgresql.conf', $options{conf}) if $options{conf};
	$node->start;
	$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION lease_fence;
CREATE TABLE stock (id integer PRIMARY KEY, quantity integer NOT NULL);
INSERT INTO stock SELECT id, 100 FROM generate_series(1, 9) AS id;
SELECT lease_fence.protect('stock', resource => 'stock:{id}');
SQL
	return $node;
}

# A column of one row of the guarded table.
sub stock
{
	my ($node, $id, $column) = @_;
	$column //= 'quantity';
	return $node->safe_psql('postgres', "SELECT $column FROM stock WHERE id = $id");
}

sub until_true
{
	my ($node, $query, $what) = @_;
	$node->poll_query_until('postgres', $query) or fail($what // $query);
	return;
}

# Until that session waits for the transactions of writers under an older grant.
sub wait_for_drain
{
	my ($node, $session) = @_;
	until_true($node, "SELECT wait_event_type = 'Lock' AND wait_event IN ('virtualxid', 'transactionid')"
		  . " FROM pg_stat_activity WHERE pid = $session->{pid}",
		'the asker waits for the writer in the way');
	return;
}

# Until that session waits for the worker's answer.
sub wait_for_lease_wait
{
	my ($node, $session) = @_;
	until_true($node, "SELECT wait_event_type = 'Extension'"
		  . " FROM pg_stat_activity WHERE pid = $session->{pid}",
		'the asker waits for the lease');
	return;
}

# Changes a setting of the running server, for new sessions and for those that
# look at their settings between two statements.
sub set
{
	my ($node, $name, $value) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET $name = '$value'");
	$node->reload;
	until_true($node, "SELECT current_setting('$name') = '$value'", "$name is $value");
	return;
}

# ---- points of a build for tests ----

sub has_test_points
{
	my ($node) = @_;
	my ($status) = $node->psql('postgres', 'SHOW lease_fence.test_point');
	return $status == 0;
}

# Sets the point and returns where the log ends now.
sub point
{
	my ($node, $value) = @_;
	my $from = -s $node->logfile;

	set($node, 'lease_fence.test_point', $value);
	return $from;
}

# Until a process waits at that point: its pid.
sub at_point
{
	my ($node, $name, $from) = @_;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $log = log_since($node, $from);
		return $1 if $log =~ /process (\d+) waits at point \Q$name\E\b/;
		select(undef, undef, undef, 0.1);
	}
	die "nobody came to point $name";
}

sub log_since
{
	my ($node, $from) = @_;
	return substr(slurp_file($node->logfile), $from);
}

# ---- sessions ----

my $marks = 0;

sub session
{
	my ($node, %options) = @_;
	my $self = bless { in => '', out_all => '', err_all => '', state => '' }, 'Concurrency';

	$self->{timer} = IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default);
	$self->{harness} = IPC::Run::start(
		[
			'psql', '-XAtq', '-d', $node->connstr($options{database} // 'postgres')
		],
		'<', \$self->{in}, '>', \$self->{out_all}, '2>', \$self->{err_all},
		$self->{timer});
	$self->query('\set SHOW_CONTEXT never');
	$self->query('SELECT pg_backend_pid()');
	$self->{pid} = $self->{out};
	return $self;
}

sub send
{
	my ($self, $sql) = @_;
	my $mark = 'mark-' . ++$marks;

	$self->{mark} = $mark;
	$self->{out_all} = $self->{err_all} = '';
	$sql .= ';' unless $sql =~ /;\s*$/ || $sql =~ /^\\/;
	$self->{in} .= "$sql\n\\echo $mark :SQLSTATE\n\\warn $mark\n";
	eval { $self->{harness}->pump_nb while length $self->{in} };
	return;
}

sub result
{
	my ($self) = @_;
	my $mark = $self->{mark};

	$self->{timer}->start;
	until ($self->{out_all} =~ /^\Q$mark\E (\S*)$/m
		&& $self->{err_all} =~ /^\Q$mark\E$/m)
	{
		last unless $self->{harness}->pumpable;
		next if eval { $self->{harness}->pump; 1 };
		die "no answer within the time: $self->{out_all}$self->{err_all}"
		  if $@ =~ /timeout/;
		last;
	}
	$self->{timer}->reset;
	$self->{state} = $self->{out_all} =~ /^\Q$mark\E (\S*)$/m ? $1 : 'gone';
	($self->{out} = $self->{out_all}) =~ s/^\Q$mark\E .*\n?//m;
	($self->{error} = $self->{err_all}) =~ s/^\Q$mark\E\n?//m;
	$self->{out} =~ s/\s+\z//;
	return $self->{state};
}

sub query
{
	my ($self, $sql) = @_;
	$self->send($sql);
	return $self->result;
}

# Runs it and wants success; answers its output.
sub must
{
	my ($self, $sql) = @_;
	$self->query($sql);
	fail("$sql: $self->{state} $self->{error}") if $self->{state} ne '00000';
	return $self->{out};
}

sub is_done
{
	my ($self) = @_;
	eval { $self->{harness}->pump_nb };
	return $self->{out_all} =~ /^\Q$self->{mark}\E /m ? 1 : 0;
}

sub quit
{
	my ($self) = @_;
	return if $self->{ended}++;
	$self->{in} .= "\\q\n";
	eval { $self->{harness}->finish };
	return;
}

1;
