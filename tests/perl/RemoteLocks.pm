# Locks in Redis that a test takes as an application would, and their resources
# here: a guarded table `work`, whose rows are named like their resources.
#
#   my $node = lock_node('name');
#   add_server($node, 'shop', $redis->port, options => "set_events 'on'");
#   my $r = resource('shop');         # a new row, resource and lock: 'shop:1'
#   my $token = adopt($r, 'a');       # or the SQLSTATE, and the_error what it said
#   write_under($r, $token)           # '' or the SQLSTATE
#   await_over($token)                # until it is not held any more

package RemoteLocks;

use strict;
use warnings;

use Exporter 'import';
use LeaseSessions qw(lease_node wait_until);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(lock_node add_server resource adopt adopt_known write_under await_over
  is_live the_error ask ask_for how_ended status await_status is_growing quote worker_pid reconnect adopting writing);

my ($node, $session, $error, %made);

# A running server with the extension and the guarded table.
sub lock_node
{
	my ($name, @conf) = @_;

	$node = lease_node($name, @conf);
	$node->safe_psql('postgres', <<'SQL');
CREATE TABLE work (name text PRIMARY KEY, n int NOT NULL DEFAULT 0);
SELECT lease_fence.protect('work', resource => '{name}', inserts => 'free');
SQL
	$session = LeaseSessions->new($node);
	return $node;
}

# A server and a profile for resources that begin with its name and a colon.
sub add_server
{
	my ($name, $port, %option) = @_;
	my $options = join ', ', "host '127.0.0.1'", "port '$port'", $option{options} // ();
	my $arguments = join ', ', "name => '$name'", "prefix => '$name:'", "servers => '{$name}'",
	  $option{profile} // ();

	ask("CREATE SERVER $name FOREIGN DATA WRAPPER lease_fence_redis OPTIONS ($options)");
	ask("CREATE USER MAPPING FOR PUBLIC SERVER $name OPTIONS ($option{user})") if $option{user};
	ask("SELECT lease_fence.add_profile($arguments)");
	return;
}

sub quote { my ($text) = @_; $text =~ s/'/''/g; return "'$text'"; }

# What a statement answers; dies if it fails.
sub ask
{
	my ($sql) = @_;
	my $answer = $session->query($sql);
	die "$sql: $answer" unless $session->state eq '00000';
	return $answer;
}

# What a statement answers, or its SQLSTATE; the_error is its message then.
sub ask_for
{
	my ($sql) = @_;
	my $answer = $session->query($sql);
	my $failed = $session->state ne '00000';

	$error = $failed ? $answer : '';
	return $failed ? $session->state : $answer;
}

sub the_error { return $error; }

sub resource
{
	my ($server, $name) = @_;
	$name //= ++$made{$server};
	ask("INSERT INTO work VALUES (" . quote("$server:$name") . ")");
	return "$server:$name";
}

# holder: text, or an SQL expression if it is a reference.
sub adopt
{
	my ($resource, $holder, $known) = @_;
	my $arguments = join ', ', 'resource => ' . quote($resource),
	  'holder => ' . (ref $holder ? $$holder : quote($holder)),
	  defined $known ? "known_token => $known" : ();

	return ask_for("SELECT token FROM lease_fence.adopt($arguments)");
}

# A statement of its own that writes the resource's row under a token.
sub write_under
{
	my ($resource, $token) = @_;
	my $state = ask_for("SELECT outcome FROM lease_fence.guarded_increment(relation => 'work',"
		  . " key => jsonb_build_object('name', " . quote($resource) . ")::text,"
		  . " column_name => 'n', token => $token)");

	return $state eq 'applied' ? '' : $state;
}

sub is_live { return ask("SELECT lease_fence.remaining($_[0]) IS NOT NULL") eq 't'; }

# Returns how long that took.
sub await_over
{
	my ($token) = @_;
	my $from = time;
	wait_until("grant $token is over", sub { !is_live($token) });
	return time - $from;
}

# As its row says.
sub how_ended
{
	my ($token) = @_;
	my $how = '';
	wait_until("the end of grant $token is written",
		sub { $how = ask("SELECT how_ended FROM lease_fence.grants WHERE token = $token") });
	return $how;
}

sub status
{
	my ($server, $column) = @_;
	return ask("SELECT $column FROM lease_fence.worker_status WHERE server = '$server'");
}

sub await_status
{
	my ($server, $condition) = @_;
	return wait_until("$server: $condition", sub { status($server, $condition) eq 't' });
}

sub is_growing
{
	my ($what, @tokens) = @_;
	my $grow = !grep { $_ !~ /^\d{10,}$/ } @tokens;

	$tokens[$_] > $tokens[ $_ - 1 ] or $grow = 0 foreach $grow ? 1 .. $#tokens : ();
	ok($grow, "$what: tokens grow") or diag("@tokens");
	return;
}

sub worker_pid
{
	return ask("SELECT pid FROM pg_stat_activity WHERE backend_type = 'lease_fence worker' AND datname = 'postgres'");
}

# After a crash of the server.
sub reconnect
{
	$node->poll_query_until('postgres', 'SELECT true') or die 'the server does not come back';
	$session = LeaseSessions->new($node);
	return;
}

# Statements for a session of the test's own.
sub adopting
{
	my ($resource, $holder) = @_;
	return 'SELECT token FROM lease_fence.adopt(resource => ' . quote($resource) . ', holder => '
	  . quote($holder) . ')';
}

sub writing
{
	my ($resource, $n) = @_;
	return "UPDATE work SET n = $n WHERE name = " . quote($resource);
}

1;
