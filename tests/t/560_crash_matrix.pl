# Every step of acquire, renew, release, write and reject, met by every kind of
# interruption: nothing is granted twice, tokens grow, an older token stays
# refused, nothing stays shut or locked, the next one gets its turn, and what a
# client heard of a rejection is in the audit, once.
#
# Enumerated, not random, by points in the code (lease_fence.test_point).  All
# steps that an action can meet are brought about side by side, each with a
# resource, and where a worker is held with a database, of its own; then the action
# is done to all of them at once: one crash for fifty cells, not fifty crashes.
#
#   steps     the client asks, and the worker or the backend is held, or waits, ...
#     acquire   taken in; about to ask Redis; asked, no answer; answered, not
#               reserved; draining (writers under the older grant); drained; written;
#               committed; published; answered inside; answered
#     renew     begun; about to ask Redis; asked, no answer; answered; done
#     release   begun; over in memory; about to ask Redis; asked, no answer;
#               answered; end written; end committed
#     write     before the first look; before the lock; locked; looked again;
#               stamped; before COMMIT
#     reject    before the record; record placed; written; committed; woken; raised
#   actions   cancel, statement_timeout, pg_terminate_backend; SIGKILL of a backend;
#             SIGTERM, SIGKILL, and SIGSTOP for longer than the ttl, of the worker;
#             Redis killed and restarted; Redis silent; PostgreSQL stopped at once
#             and started
#
# Left out, as they mean nothing:
#   Redis x what is not on Redis    nobody asks it
#   cancel, statement_timeout x before COMMIT, raised, and what comes after the
#     answer of acquire or release  no statement runs that they could end
#   terminate x after the answer    the lease is detached: it knows no session
#   Redis x reject                  a rejection asks nobody but the worker
# The steps in Redis' hands (asked, no answer) are made by a Redis that is stopped.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use LeaseSessions;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Processes;
use RedisServer;
use Test::More;
use Time::HiRes qw(sleep time);

plan skip_all => 'no redis-server here' unless RedisServer::available();

# operation, where it is on, name, point, who is held there
my @steps = map { my @step = @$_; map { [ $step[0], $_, @step[2 .. 4] ] } split //, $step[1] } (
	[ acquire => er => 'taken in' => 'request-taken', 'worker' ],
	[ acquire => r => 'about to ask' => 'take-unasked', 'worker' ],
	[ acquire => s => 'asked' ],
	[ acquire => r => 'answered by Redis' => 'take-answered', 'worker' ],
	[ acquire => er => 'draining' ],
	[ acquire => er => 'drained' => 'mint-drained', 'worker' ],
	[ acquire => er => 'written' => 'mint-inserted', 'worker' ],
	[ acquire => er => 'committed' => 'mint-committed', 'worker' ],
	[ acquire => er => 'published' => 'mint-published', 'worker' ],
	[ acquire => er => 'unanswered' => 'mint-unanswered', 'worker' ],
	[ acquire => er => 'answered' => 'mint-answered', 'worker' ],
	[ renew => er => 'begun' => 'renew-begun', 'backend' ],
	[ renew => r => 'about to ask' => 'renew-unasked', 'worker' ],
	[ renew => s => 'asked' ],
	[ renew => r => 'answered by Redis' => 'renew-answered', 'worker' ],
	[ renew => er => 'done' => 'renew-done', 'backend' ],
	[ release => er => 'begun' => 'release-begun', 'backend' ],
	[ release => er => 'over' => 'release-ended', 'backend' ],
	[ release => r => 'about to ask' => 'release-unasked', 'worker' ],
	[ release => s => 'asked' ],
	[ release => r => 'answered by Redis' => 'release-answered', 'worker' ],
	[ release => er => 'end written' => 'ends-inserted', 'worker' ],
	[ release => er => 'end committed' => 'ends-committed', 'worker' ],
	[ write => er => 'before the first look' => 'check-begun', 'backend' ],
	[ write => er => 'before the lock' => 'check-looked', 'backend' ],
	[ write => er => 'locked' => 'check-locked', 'backend' ],
	[ write => er => 'looked again' => 'check-done', 'backend' ],
	[ write => er => 'stamped' => 'row-stamped', 'backend' ],
	[ write => er => 'before COMMIT' ],
	[ reject => e => 'before the record' => 'reject-begun', 'backend' ],
	[ reject => e => 'record placed' => 'reject-placed', 'backend' ],
	[ reject => e => 'written' => 'audit-inserted', 'worker' ],
	[ reject => e => 'committed' => 'audit-committed', 'worker' ],
	[ reject => e => 'woken' => 'reject-woken', 'backend' ],
	[ reject => e => 'raised' ]);

# What becomes of the server, of who waits, and of what is held there.
my %actions = (
	cancel => {},
	statement_timeout => {},
	terminate => {},
	'SIGKILL of a backend' => { crash => 1 },
	'SIGTERM of the worker' => {},
	'SIGKILL of the worker' => { crash => 1 },
	'SIGSTOP of the worker' => { lapse => 1 },
	'Redis killed' => { redis => 1 },
	'Redis silent' => { redis => 1 },
	'immediate stop' => { crash => 1 });

my $short_ttl = 12;

my $node = new_server('matrix', 'max_worker_processes = 70', 'max_connections = 250',
	"lease_fence.audit_timeout = '60s'", "lease_fence.drain_timeout = '60s'",
	'track_commit_timestamp = on', 'fsync = off', 'deadlock_timeout = 200ms',
	"include_if_exists = 'points.conf'");
$node->append_conf('postgresql.conf', 'restart_after_crash = on');
$node->start;
plan skip_all => 'not a build with test points' if !has_test_points($node);

my $redis = RedisServer->new;
my $stopped = RedisServer->new;    # stopped while the steps "asked" are made
my $log = $node->logfile;
my $cells = 0;
my $row = 0;
my %oid;
my ($action, %is);

# ---- points ----

sub set_points
{
	my ($value) = @_;

	open my $file, '>', $node->data_dir . '/points.conf' or die $!;
	print $file "lease_fence.test_point = '$value'\n";
	close $file;
	return if !-e $node->data_dir . '/postmaster.pid';
	$node->reload;
	await_sql($node, 'postgres', "SELECT current_setting('lease_fence.test_point') = '$value'");
	return;
}

sub wait_for
{
	my ($what, $condition) = @_;
	my $until = time + 60;

	until ($condition->())
	{
		return fail($what) if time > $until;
		sleep 0.02;
	}
	return 1;
}

# ---- a cell ----

sub name_of { my ($cell) = @_; return "$action: $cell->{operation} ($cell->{on}), $cell->{step}"; }

# A failure is kept with its cell, which is one line in the end.  (The prototype is for
# matches: in a list they would be what they captured.)
sub must($$$)
{
	my ($cell, $right, $what) = @_;

	return 1 if $right;
	push @{ $cell->{wrong} }, $what;
	return 0;
}

# The checker of a cell: a session of its own in the cell's database.
sub checker
{
	my ($cell) = @_;
	our %checkers;
	my $key = "$cell->{database} $cell->{number}";

	$checkers{$key} = LeaseSessions->new($node, dbname => $cell->{database}, name => 'checker')
	  if !$checkers{$key} || $checkers{$key}->state eq 'gone';
	return $checkers{$key};
}

sub forget_checkers { our %checkers = (); return; }

sub acquire_text
{
	my ($cell, $holder, $ttl, $wait) = @_;
	return "SELECT token FROM lease_fence.acquire(resource => '$cell->{resource}', ttl => '$ttl',"
	  . " scope => 'detached', holder => '$holder', wait => '$wait')";
}

sub write_text
{
	my ($cell, $token) = @_;
	return "BEGIN;\nSET LOCAL lease_fence.token = '$token';\n"
	  . "UPDATE stock SET n = n - 1 WHERE kind = '$cell->{on}' AND id = $cell->{row}";
}

# The SQLSTATE of a write, '' if it was committed.
sub write_under
{
	my ($cell, $token) = @_;
	my $session = checker($cell);

	$session->query(write_text($cell, $token));
	my $state = $session->state;
	$session->query($state eq '00000' ? 'COMMIT' : 'ROLLBACK');
	return $state if $state ne '00000';
	$cell->{written}++;
	return '';
}

sub take_token
{
	my ($cell, $text, $what) = @_;

	return $text if $text =~ /^\d+$/;
	must($cell, 0, "$what: $text");
	return 0;
}

# What was there before: an older grant, written under and released; or the lease
# that this is about.
sub prepare
{
	my ($list) = @_;
	my $ttl = $is{crash} || $is{lapse} ? "${short_ttl}s" : '10min';

	foreach my $cell (@$list)
	{
		$cell->{row} = ++$row;
		$cell->{resource} = "$cell->{on}:$cell->{row}";
		@$cell{qw(ttl written wrong old may token)} = ($ttl, 0, [], [], [], undef);
		checker($cell)->send("INSERT INTO stock VALUES ('$cell->{on}', $cell->{row}, 100)");
	}
	foreach my $cell (@$list)
	{
		checker($cell)->answer;
		checker($cell)->send(acquire_text($cell, 'old', $cell->{operation} =~ /acquire|reject/ ? '10min' : $ttl, '30s'));
	}
	foreach my $cell (@$list)
	{
		my $token = take_token($cell, checker($cell)->answer, 'the older grant');

		$cell->{first} = $token;
		if ($cell->{operation} !~ /acquire|reject/)
		{
			$cell->{token} = $token;
			next;
		}
		push @{ $cell->{old} }, $token;
		must($cell, write_under($cell, $token) eq '', 'the older grant writes');
		if ($cell->{step} eq 'draining')
		{
			$cell->{writer} = LeaseSessions->new($node, dbname => $cell->{database});
			$cell->{writer}->query(write_text($cell, $token));
		}
		checker($cell)->query("SELECT lease_fence.release($token)");
	}
	my @redis = ($redis, $stopped);
	wait_for("no lock of the older grants is left",
		sub { !grep { my $key = $_; grep { "$_->{database}:$_->{resource}" eq $key && $_->{operation} eq 'acquire' } @$list }
			  map { @{ $_->command('KEYS', '*') } } @redis });
	foreach my $cell (grep { $_->{operation} eq 'reject' } @$list)
	{
		$cell->{token} = take_token($cell,
			checker($cell)->query(acquire_text($cell, 'successor', '10min', '30s')), 'its successor');
	}
	foreach my $cell (@$list)
	{
		$cell->{session} = LeaseSessions->new($node, dbname => $cell->{database}, name => 'client');
		$cell->{session}->query("SET statement_timeout = '6s'") if $action eq 'statement_timeout';
	}
	return;
}

sub statement
{
	my ($cell) = @_;

	return acquire_text($cell, 'asker', $cell->{ttl}, '60s') if $cell->{operation} eq 'acquire';
	return "SELECT lease_fence.renew($cell->{token}, '$cell->{ttl}')" if $cell->{operation} eq 'renew';
	return "SELECT lease_fence.release($cell->{token})" if $cell->{operation} eq 'release';
	return write_text($cell, $cell->{operation} eq 'write' ? $cell->{token} : $cell->{old}[0]);
}

# Does the client have its answer at this step?
sub is_answered
{
	my ($cell) = @_;
	return "$cell->{operation} $cell->{step}" =~
	  /^(acquire answered|write before COMMIT|reject raised|release (about to ask|asked|answered by Redis|end .*))$/;
}

# Everybody where they are to be when it happens.
sub stage
{
	my ($list) = @_;
	my $offset = -s $log;
	my %worker = map { split /\|/ } split /\n/, $node->safe_psql('postgres',
		"SELECT datname || '|' || pid FROM pg_stat_activity WHERE backend_type = 'lease_fence worker'");
	my @points;
	my %expected;

	foreach my $cell (@$list)
	{
		my $by = $cell->{by} // next;

		push @points, "$cell->{point}/" . ($by eq 'worker' ? $oid{ $cell->{database} } : $cell->{session}->pid) . '=wait';
		$expected{ ($by eq 'worker' ? $worker{ $cell->{database} } : $cell->{session}->pid) . " waits at point $cell->{point}" } = $cell;
	}
	$stopped->stop_signal;
	set_points(join ',', @points);
	$_->{session}->send(statement($_)) foreach @$list;

	wait_for('everybody is where they should be', sub {
		my $text = slurp_file($log, $offset);
		foreach my $line (keys %expected)
		{
			delete $expected{$line} if index($text, "process $line\n") >= 0;
		}
		return !%expected;
	});
	must($_, 0, 'it never got there') foreach values %expected;
	foreach my $cell (grep { is_answered($_) } @$list)
	{
		take_answer($cell);
	}
	foreach my $cell (grep { $_->{step} eq 'draining' } @$list)
	{
		await_sql($node, 'postgres',
			"SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = " . $cell->{session}->pid . " AND wait_event_type = 'Lock'");
	}
	my $asked = grep { $_->{on} eq 's' } @$list;
	await_sql($node, 'shared', "SELECT queue >= $asked FROM lease_fence.worker_status WHERE server = 'stopped'");
	return;
}

sub take_answer
{
	my ($cell) = @_;

	return if exists $cell->{answer};
	my $session = $cell->{session};
	($cell->{answer}, $cell->{state}) = ($session->answer, $session->state);
	return;
}

# ---- actions ----

sub all_workers
{
	return split /\n/, $node->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'lease_fence worker'");
}

sub wait_until_gone
{
	my (@pids) = @_;
	wait_for('the processes are gone', sub { !grep { kill 0, $_ } @pids });
	return;
}

sub wait_for_restart
{
	my ($list) = @_;

	take_answer($_) foreach @$list;
	return;
}

# A newer grant of what is being written: drains, or is there before the write is.
sub send_takers
{
	my ($list) = @_;

	foreach my $cell (grep { $_->{operation} eq 'write' } @$list)
	{
		$cell->{taker} = LeaseSessions->new($node, dbname => $cell->{database}, name => 'taker');
		$cell->{taker}->send(acquire_text($cell, 'old', $cell->{ttl}, '60s'));
	}
	return;
}

sub await_takers
{
	my ($list) = @_;

	foreach my $cell (grep { $_->{taker} } @$list)
	{
		wait_for('the taker waits or has it', sub {
			!$cell->{taker}->busy || $node->safe_psql('postgres',
				"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = " . $cell->{taker}->pid);
		});
	}
	return;
}

sub act
{
	my ($list) = @_;
	my $pids = join ',', map { $_->{session}->pid } grep { !is_answered($_) || $action eq 'terminate' } @$list;

	if ($action eq 'cancel' || $action eq 'terminate')
	{
		$node->safe_psql('postgres', "SELECT pg_${action}_backend(pid) FROM pg_stat_activity WHERE pid IN ($pids)");
		take_answer($_) foreach @$list;
		send_takers($list);
	}
	elsif ($action eq 'statement_timeout')
	{
		take_answer($_) foreach @$list;
		send_takers($list);
	}
	elsif ($action eq 'SIGKILL of a backend')
	{
		kill 'KILL', $list->[0]{session}->pid;
		wait_for_restart($list);
	}
	elsif ($action eq 'SIGKILL of the worker')
	{
		kill 'KILL', (all_workers())[0];
		wait_for_restart($list);
	}
	elsif ($action eq 'immediate stop')
	{
		$node->stop('immediate');
		wait_for_restart($list);
	}
	elsif ($action eq 'SIGTERM of the worker')
	{
		my @workers = all_workers();
		kill 'TERM', @workers;
		wait_until_gone(@workers);
		send_takers($list);
	}
	elsif ($action eq 'SIGSTOP of the worker')
	{
		my @workers = all_workers();
		kill 'STOP', @workers;
		send_takers($list);
		sleep $short_ttl + 0.2;
		set_points('');
		kill 'CONT', @workers;
	}
	elsif ($action eq 'Redis killed')
	{
		$_->restart foreach $redis, $stopped;
		send_takers($list);
	}
	elsif ($action eq 'Redis silent')
	{
		$redis->stop_signal;
		set_points('');
		send_takers($list);
		await_takers($list);
		$_->{taker} || $_->{writer} || take_answer($_) foreach @$list;
		$_->continue foreach $redis, $stopped;
	}
	await_takers($list) if $action !~ /SIGSTOP|Redis/;
	set_points('');
	$node->start if $action eq 'immediate stop';
	$node->poll_query_until('postgres', 'SELECT true') if $is{crash};
	$stopped->continue;
	forget_checkers() if $is{crash};
	return;
}

# ---- what must hold ----

my %allowed = (
	cancel => qr/^57014$/,
	statement_timeout => qr/^57014$/,
	terminate => qr/^gone$/,
	'SIGTERM of the worker' => qr/^(00000|LF021)$/,
	'SIGSTOP of the worker' => qr/^(00000|LF00[12]|LF02[01])$/,
	'Redis killed' => qr/^(00000|LF00[12]|LF020)$/,
	'Redis silent' => qr/^(00000|LF00[12]|LF020)$/);

# Is the lease certainly alive, certainly over, or does it depend?
sub expected_life
{
	my ($cell) = @_;

	return 'over' if $cell->{operation} eq 'release' && $cell->{state} eq '00000' && !$is{crash};
	return undef if $cell->{operation} eq 'release' && $cell->{step} ne 'begun';
	return undef if $is{crash} || $is{lapse} || $action eq 'Redis killed';
	return undef if $cell->{taker};
	return 'alive';
}

sub finish_acquire
{
	my ($cell) = @_;

	$cell->{writer}->query('ROLLBACK') if $cell->{writer} && !$is{crash};
	take_answer($cell);
	if ($cell->{state} eq '00000')
	{
		must($cell, $cell->{answer} > $cell->{first}, 'the token is above the one before');
		push @{ $cell->{may} }, $cell->{answer};
	}
	elsif (!$is{crash})
	{
		must($cell, $cell->{state} =~ $allowed{$action}, "acquire ends with $cell->{state}: $cell->{answer}");
	}
	must($cell, $cell->{state} eq '00000', 'who was answered has the token') if $cell->{step} eq 'answered';
	return;
}

sub finish_renew
{
	my ($cell) = @_;
	my $server = $cell->{on} eq 's' ? $stopped : $redis;
	my ($left, $remaining);

	take_answer($cell);
	must($cell, $is{crash} || $cell->{state} =~ $allowed{$action}, "renew ends with $cell->{state}: $cell->{answer}");
	push @{ $cell->{may} }, $cell->{token};
	return if $cell->{on} eq 'e';
	$left = $server->command('PTTL', "$cell->{database}:$cell->{resource}");
	$remaining = checker($cell)->query("SELECT extract(epoch FROM lease_fence.remaining($cell->{token})) * 1000");
	must($cell, $left >= $remaining - 1, "it lives no longer here ($remaining ms) than in Redis ($left ms)")
	  if $remaining =~ /^[0-9.]+$/ && $action ne 'Redis killed';
	return;
}

sub finish_release
{
	my ($cell) = @_;

	take_answer($cell);
	must($cell, $is{crash} || $cell->{state} =~ $allowed{$action} || (is_answered($cell) && $cell->{state} eq '00000'),
		"release ends with $cell->{state}: $cell->{answer}");
	push @{ $cell->{may} }, $cell->{token};
	return;
}

sub finish_write
{
	my ($cell) = @_;
	my $late = $cell->{step} =~ /^(looked again|stamped|before COMMIT)$/;
	my $committed = 0;

	take_answer($cell);
	if ($cell->{state} eq '00000' && !$is{crash} && !($action eq 'terminate'))
	{
		$cell->{session}->query('COMMIT');
		$committed = $cell->{session}->state eq '00000';
		must($cell, $committed, 'a write that was admitted is committed');
	}
	elsif (!$is{crash} && $cell->{state} ne '00000')
	{
		must($cell, $cell->{state} =~ $allowed{$action} || $cell->{state} =~ /^LF00[12]$/,
			"the write ends with $cell->{state}: $cell->{answer}");
	}
	$cell->{written}++ if $committed;
	must($cell, $committed, 'who passed the guard commits') if $late && $action =~ /worker|Redis/ && !$is{crash};
	must($cell, !$committed, 'who did not is refused')
	  if !$late && $action =~ /SIG(TERM|STOP) of the worker/;

	if ($cell->{taker})
	{
		my $token = $cell->{taker}->answer;

		if ($token =~ /^\d+$/)
		{
			must($cell, $token > $cell->{token}, 'the newer grant is above');
			must($cell, checker($cell)->query(
					"SELECT pg_xact_commit_timestamp(s.xmin) <= pg_xact_commit_timestamp(g.xmin) FROM stock s, lease_fence.grants g
					WHERE kind = '$cell->{on}' AND id = $cell->{row} AND g.token = $token") eq 't',
				'the write was committed before the newer grant') if $committed;
			push @{ $cell->{old} }, $cell->{token};
			push @{ $cell->{may} }, $token;
			return;
		}
		must($cell, $action =~ /Redis/ && $cell->{on} ne 'e' && $cell->{taker}->state eq 'LF020', "no newer grant: $token");
	}
	push @{ $cell->{may} }, $cell->{token};
	return;
}

sub finish_reject
{
	my ($cell) = @_;
	my $stale = $cell->{old}[0];

	take_answer($cell);
	checker($cell)->query('SELECT 1');
	$cell->{told} = $cell->{state} =~ /^LF00[12]$/;
	must($cell, $cell->{told} || ($is{crash} && $cell->{state} eq 'gone') || $cell->{state} =~ /^(57014|gone)$/,
		"the stale write ends with $cell->{state}: $cell->{answer}");
	push @{ $cell->{may} }, $cell->{token};
	return;
}

sub check_audit
{
	my ($cell) = @_;
	# the checker's own attempts are named so
	my $rows = checker($cell)->query(
		"SELECT count(*) FROM lease_fence.rejected_writes WHERE presented_token = $cell->{old}[0] AND application_name = 'client'");

	must($cell, $cell->{told} ? $rows == 1 : $rows <= 1,
		($cell->{told} ? 'the client heard of it' : 'the client did not hear of it') . ", and the audit has $rows rows");
	return;
}

# Tokens that may be alive still: each writes or is refused, and is given back.
sub give_back
{
	my ($cell) = @_;
	my $life = expected_life($cell);

	foreach my $token (@{ $cell->{may} })
	{
		my $state = write_under($cell, $token);

		must($cell, $state eq '', "token $token writes, not $state") if defined $life && $life eq 'alive';
		must($cell, $state ne '', "token $token does not write") if defined $life && $life eq 'over';
		must($cell, $state =~ /^(|LF00[12])$/, "token $token writes or is over, not $state");
		checker($cell)->query("SELECT lease_fence.release($token)");
	}
	return;
}

sub check_next
{
	my ($cell) = @_;
	my $session = checker($cell);
	my $next = $session->answer;
	my $until = time + 20;

	# just back: the worker may not have found out yet
	while ($is{redis} && $session->state eq 'LF020' && time < $until)
	{
		sleep 0.1;
		$next = $session->query(acquire_text($cell, 'next', '10min', '60s'));
	}
	return must($cell, 0, "the next acquire: $next") if $next !~ /^\d+$/;
	foreach my $token (@{ $cell->{old} }, @{ $cell->{may} })
	{
		must($cell, $next > $token, "the next token $next is above $token");
		my $state = write_under($cell, $token);
		must($cell, $state =~ /^LF00[12]$/, "token $token is refused for good, not $state");
	}
	must($cell, write_under($cell, $next) eq '', 'the next token writes');
	$session->query("SELECT lease_fence.release($next)");
	my $left = $session->query("SELECT 100 - n FROM stock WHERE kind = '$cell->{on}' AND id = $cell->{row}");
	must($cell, $left eq $cell->{written}, "$cell->{written} writes were committed, and $left are there");
	my $last = $session->query("SELECT max(token) = $next FROM lease_fence.grants WHERE resource = '$cell->{resource}'");
	must($cell, $last eq 't', 'nobody was granted it after that');
	check_audit($cell) if $cell->{operation} eq 'reject';
	return;
}

# Over all cells, in the end.
sub check_databases
{
	my ($list) = @_;
	my %seen;

	foreach my $cell (grep { !$seen{ $_->{database} }++ } @$list)
	{
		await_sql($node, $cell->{database},
			"SELECT NOT EXISTS (SELECT FROM lease_fence.leases WHERE state = 'draining')
			AND NOT EXISTS (SELECT FROM lease_fence.grants WHERE ended_at IS NULL GROUP BY resource HAVING count(*) > 1)")
		  or must($cell, 0, 'something is left draining, or has two grants that have not ended');
	}
	foreach my $server ($redis, $stopped)
	{
		my @keys;
		wait_for('no lock is left in Redis', sub { !(@keys = @{ $server->command('KEYS', '*') }) }) or next;
	}
	return;
}

sub left_out
{
	my ($cell) = @_;

	return 1 if $is{redis} && ($cell->{on} eq 'e' || $cell->{operation} eq 'reject');
	return 1 if $action =~ /^(cancel|statement_timeout)$/ && is_answered($cell);
	return 1 if $action eq 'terminate' && is_answered($cell) && $cell->{operation} =~ /acquire|release/;
	return 0;
}

my @all;
foreach my $step (@steps)
{
	my ($operation, $on, $name, $point, $by) = @$step;
	my $number = @all;

	push @all, { operation => $operation, on => $on, step => $name, point => $point, by => $by, number => $number,
		database => ($by // '') eq 'worker' ? "worker_$number" : 'shared' };
}

# ---- the databases ----

my %databases = map { $_->{database} => 1 } @all;
foreach my $database (sort keys %databases)
{
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	$node->safe_psql($database, "
		CREATE EXTENSION lease_fence;
		CREATE TABLE stock (kind text, id int, n int NOT NULL, PRIMARY KEY (kind, id));
		SELECT lease_fence.protect(relation => 'stock', resource => '{kind}:{id}', inserts => 'free');
		CREATE SERVER redis FOREIGN DATA WRAPPER lease_fence_redis OPTIONS (host '127.0.0.1', port '" . $redis->port . "');
		SELECT lease_fence.add_profile(name => 'r', prefix => 'r:', servers => '{redis}', lock_key => '$database:{resource}')"
		. ($database ne 'shared' ? '' : ";
		CREATE SERVER stopped FOREIGN DATA WRAPPER lease_fence_redis
			OPTIONS (host '127.0.0.1', port '" . $stopped->port . "', command_timeout '30s');
		SELECT lease_fence.add_profile(name => 's', prefix => 's:', servers => '{stopped}', lock_key => '$database:{resource}')"));
	$oid{$database} = $node->safe_psql('postgres', "SELECT oid FROM pg_database WHERE datname = '$database'");
}
$node->append_conf('postgresql.conf', "lease_fence.databases = '" . join(', ', sort keys %databases) . "'");
$node->reload;

my %finish = (acquire => \&finish_acquire, renew => \&finish_renew, release => \&finish_release,
	write => \&finish_write, reject => \&finish_reject);
my @wanted = $ENV{LF_ACTIONS} ? split /,/, $ENV{LF_ACTIONS} : sort keys %actions;
foreach my $name (@wanted)
{
	$action = $name;
	%is = %{ $actions{$action} };
	my @list = map { { %$_ } } grep { !left_out($_) } @all;
	my $started = time;
	my $offset = -s $log;

	await_sql($node, 'postgres', 'SELECT count(*) = ' . keys(%databases) . " FROM pg_stat_activity WHERE backend_type = 'lease_fence worker'");
	$node->safe_psql('shared', "ALTER SERVER stopped OPTIONS (SET command_timeout '"
		. ($action eq 'Redis silent' ? '2s' : '30s') . "')");
	prepare(\@list);
	stage(\@list);
	act(\@list);
	$finish{ $_->{operation} }->($_) foreach @list;
	give_back($_) foreach @list;
	checker($_)->send(acquire_text($_, 'next', '10min', '60s')) foreach @list;
	check_next($_) foreach @list;
	check_databases(\@list);
	foreach my $cell (@list)
	{
		$cells++;
		ok(!@{ $cell->{wrong} }, name_of($cell)) or diag(map { "$_\n" } @{ $cell->{wrong} });
		delete @$cell{qw(session writer taker)};
	}
	my @fell = grep { /PANIC|TRAP|terminated by signal (?!9:)/ } split /\n/, slurp_file($log, $offset);
	is(join("\n", @fell), '', "$action: nothing fell over but what was killed");
	note(sprintf '%s: %d cells, %.1f s', $action, scalar @list, time - $started);
}
note("$cells cells");
cmp_ok($cells, '>', 400, "all cells: $cells") unless $ENV{LF_ACTIONS};
forget_checkers();
stop_fast_is_quick($node, 'after all that');
done_testing();
