# The documentation says what is so: its examples run, and its lists are whole.
#
# In README.md and docs/*.md
#
# - each file has a server of its own, with an empty database "shop";
# - a block ```sql holds statements that are run in order, each ending with its
#   line (what stands between two $$ is one), in one session.  Each succeeds, or
#   fails with the SQLSTATE of a comment "-- ERROR: LF001" behind it;
# - a block ```psql shows sessions of psql, named by their prompts (A=#, B=*#):
#   what is typed there is run in the session of that name, and its output must
#   be the one shown (a SELECT that reads what the worker writes in its own time
#   is repeated until it is).  Times, holders and tokens may be others, but a token that
#   is shown twice must be the same one both times, also where it is typed.  What
#   psql says to BEGIN, SET, COMMIT and ROLLBACK, and its counts of rows, may be
#   left out, and so may an error's CONTEXT;
# - a block ```python is a program that is run by itself, with the environment of that
#   server, and succeeds.  ```js, ```java and ```php are only shown; what those programs
#   write, 501_interop_recipes.pl replays;
# - a Redis of the file's own is at localhost, where a block has the port 6379;
# - a block ```sh holds commands that are run in order, each ending with its line
#   or going on behind a backslash, in an empty folder and with the environment of
#   that server.  Each succeeds, or fails and says so behind "# fails: ".  Not run
#   is a block with sudo in it: it installs packages and restarts a service;
# - a block ```conf holds lines of postgresql.conf, which the server must accept;
# - a block ```log holds messages of the server log, which the source must have;
# - a block ```ini is the configuration of another program, and only shown;
# - in docs/reference.md a plain block that begins with lease_fence. is the
#   signature of a function.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedisPython;
use RedisServer;
use Test::More;
use Time::HiRes qw(usleep);

my $root = "$ENV{TESTDIR}/..";
plan skip_all => 'the documentation is not here' unless -f "$root/README.md";

delete $ENV{PGAPPNAME};	# psql is psql

my ($node, $redis);

sub start_server
{
	my ($name) = @_;

	$node = PostgreSQL::Test::Cluster->new($name);
	$node->init;
	$node->append_conf('postgresql.conf',
		"shared_preload_libraries = 'lease_fence'\nwal_level = logical\nmax_prepared_transactions = 10\n");
	$node->start;
	$node->safe_psql('postgres', 'CREATE DATABASE shop');
	return;
}

my %text = map { $_ => slurp_file("$root/$_") }
  ('README.md', map { s{^\Q$root\E/}{}r } sort glob "$root/docs/*.md");
my $reference = $text{'docs/reference.md'};

# ---------------------------------------------------------------------------
# Sessions of psql
# ---------------------------------------------------------------------------

my $asked = 0;

sub start_session
{
	my ($database) = @_;
	my %session = (in => '', out => '', err => '');

	$session{handle} = IPC::Run::start(
		[ 'psql', '-X', '-d', $node->connstr($database) ],
		'<', \$session{in}, '>', \$session{out}, '2>', \$session{err},
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return \%session;
}

# What psql says to this input, errors last, and the SQLSTATE that it ended with.
sub ask
{
	my ($session, $input) = @_;
	my $mark = 'answer_' . ++$asked;
	my $state;

	$session->{out} = $session->{err} = '';
	$session->{in} .= "$input\n\\echo $mark :SQLSTATE\n\\warn $mark\n";
	$session->{handle}->pump
	  until $session->{out} =~ /^$mark \S+\n/m && $session->{err} =~ /^$mark\n/m;
	$session->{err} =~ s/^$mark\n//m;
	$state = $1 if $session->{out} =~ s/^$mark (\S+)\n//m;
	return ($session->{out} . $session->{err}, $state);
}

# ---------------------------------------------------------------------------
# Blocks
# ---------------------------------------------------------------------------

# [language, text, line] of each fenced block
sub blocks
{
	my ($text) = @_;
	my @blocks;

	while ($text =~ /^```(\w*)\n(.*?)^```$/msg)
	{
		my ($language, $content, $before) = ($1, $2, substr($text, 0, $-[0]));

		push @blocks, [ $language, $content, 2 + ($before =~ tr/\n//) ];
	}
	return @blocks;
}

# The statements of a block, each with its comment.
sub statements
{
	my ($block) = @_;
	my ($statement, @statements) = ('');

	foreach my $line (split /\n/, $block)
	{
		$statement .= "$line\n";
		next if ($statement =~ s/(\$\$)/$1/g) % 2;
		next unless $line =~ /(;|^\\\w.*|\\g\w+( \w+)?)\s*(--.*)?$/;
		push @statements, $statement;
		$statement = '';
	}
	push @statements, $statement if $statement =~ /\S/;
	return @statements;
}

# [session, input, output] of each prompt in a block
sub conversation
{
	my ($block) = @_;
	my @conversation;

	foreach my $line (split /\n/, $block)
	{
		if ($line =~ /^(\w+)=[*!]?[#>] (.*)$/)
		{
			push @conversation, [ $1, $2, '' ];
		}
		elsif ($line =~ /^(\w+)[-'"(][*!]?[#>] (.*)$/)
		{
			$conversation[-1][1] .= "\n$2";
		}
		else
		{
			$conversation[-1][2] .= "$line\n";
		}
	}
	return @conversation;
}

# The commands of a block, each in one line.
sub commands
{
	my ($block) = @_;

	$block =~ s/\\\n\s*//g;
	return grep { /\S/ && !/^#/ } split /\n/, $block;
}

# ---------------------------------------------------------------------------
# Output as shown, and as it came
# ---------------------------------------------------------------------------

my $token = qr/\b[0-9]{13,16}\b/;

# Without what may differ.
sub essence
{
	my ($output) = @_;

	$output =~ s/^(BEGIN|SET|COMMIT|ROLLBACK|\([0-9]+ rows?\)|\s*)\n//mg;
	$output =~ s/$token/TOKEN/g;
	$output =~ s/\b[0-9]+:[0-9]{2}:[0-9]{2}(\.[0-9]+)?\b/TIME/g;
	$output =~ s/\b[0-9]+\.[0-9]{3} s\b/TIME/g;
	$output =~ s/\bpg:[0-9]+:[0-9]+:[0-9a-f]+\b/HOLDER/g;
	$output =~ s/\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b/HOLDER/g;
	$output =~ s/-{2,}/--/g;	# the columns' width
	$output =~ s/ +/ /g;
	$output =~ s/^ | $//mg;
	return $output;
}

# Pairs the tokens shown with those that came; false if that contradicts earlier
# pairs.  Tokens are positive numbers of 14 digits or so.
sub pair_tokens
{
	my ($pairs, $shown, $came) = @_;
	my @shown = $shown =~ /($token)/g;
	my @came = $came =~ /($token)/g;
	my %taken = reverse %$pairs;

	return 0 if @shown != @came;
	foreach my $one (@shown)
	{
		my $other = shift @came;

		$pairs->{$one} //= $other unless exists $taken{$other};
		return 0 if !defined $pairs->{$one} || $pairs->{$one} ne $other;
		$taken{$other} = $one;
	}
	return 1;
}

# ---------------------------------------------------------------------------
# 1. The examples run
# ---------------------------------------------------------------------------

sub run_program
{
	my ($command, $out, $err) = @_;
	local %ENV = (%ENV, PGHOST => $node->host, PGPORT => $node->port);

	return IPC::Run::run($command, '<', \undef, '>', $out, '2>', $err);
}

sub run_python
{
	my ($program) = @_;
	my ($out, $err) = ('', '');
	my $done = run_program([ RedisPython::available(), '-c', $program ], \$out, \$err);

	return ($done, $out . $err);
}

sub run_shell
{
	my ($folder, $command) = @_;
	my ($expected) = $command =~ /\s# fails: (.*?)\s*$/;
	my ($out, $err) = ('', '');
	my $done = run_program([ 'sh', '-c', "cd '$folder' && $command" ], \$out, \$err);

	return ($done && !defined $expected || !$done && defined $expected && $err =~ /\Q$expected\E/,
		$out . $err);
}

# Messages of the source, with what is put in left open.
my @messages;
foreach my $source (map { slurp_file($_) } glob "$root/src/*.c $root/src/*/*.c")
{
	push @messages, map { quotemeta =~ s/\\%(?:\\\.\\\*)?(?:ll)?[dsu]/.+/gr }
	  map { s/\\(.)/$1/gr } $source =~ /errmsg\("((?:[^"\\]|\\.)*)"/g;
}

sub check_other
{
	my ($name, $language, $content) = @_;

	foreach my $line (grep { /\S/ } split /\n/, $content)
	{
		if ($language eq 'conf')
		{
			my ($setting, $value) = $line =~ /^(\S+) = (?|'(.*)'|(\S+))(?:\s+#.*)?$/;

			is($node->psql('postgres', "ALTER SYSTEM SET $setting = '$value'; ALTER SYSTEM RESET $setting"),
				0, "$name: $line");
		}
		elsif ($language eq 'log')
		{
			my ($message) = $line =~ /^(?:LOG|WARNING):  (.*)$/;

			ok(!@messages || grep({ $message =~ /^$_$/ } @messages), "$name: $line");
		}
		elsif ($language !~ /^(|ini|js|java|php)$/)
		{
			fail("$name: nobody knows what to do with \"$language\"");
			last;
		}
	}
	return;
}

foreach my $file (sort keys %text)
{
	my $database = 'shop';
	my $folder = PostgreSQL::Test::Utils::tempdir();
	my (%sessions, %pairs);

	my @blocks = blocks($text{$file});
	my $needs_redis = grep { $_->[1] =~ /\b6379\b/ } @blocks;

	if ($needs_redis && !RedisServer::available())
	{
		SKIP: { skip "no redis-server for $file", 1; }
		next;
	}
	start_server($file =~ s/\W/_/gr);
	$redis = $needs_redis ? RedisServer->new : undef;

	cmp_ok(scalar(@blocks), '>', 0, "$file has examples") if $file !~ m{^docs/(guarantees|benchmarks)\.md$};
	foreach my $block (@blocks)
	{
		my ($language, $content, $line) = @$block;
		my $name = "$file, line $line";

		$content =~ s/\b6379\b/$redis->port/ge if $redis;
		if ($language eq 'sql')
		{
			foreach my $statement (statements($content))
			{
				my $expected = $statement =~ /--\s*ERROR: (\w{5})\s*$/ ? $1 : '00000';
				my ($said, $state) =
				  ask($sessions{sql} //= start_session($database), $statement);

				is($state, $expected, "$name: " . ($statement =~ /^\s*(.{0,60})/)[0])
				  or diag($statement . $said);
			}
		}
		elsif ($language eq 'psql')
		{
			foreach my $turn (conversation($content))
			{
				my ($who, $typed, $shown) = @$turn;
				my $title = "$name: $who: " . substr($typed, 0, 60);
				my @untold = grep { !exists $pairs{$_} } $typed =~ /($token)/g;

				is("@untold", '', "$title: its tokens were shown before");
				my $input = $typed =~ s/($token)/$pairs{$1} \/\/ $1/ger;
				my ($said) = ask($sessions{$who} //= start_session($database), $input);

				$said =~ s/^CONTEXT:.*\n//mg unless $shown =~ /^CONTEXT:/m;
				for (my $tries = 0; $tries < 100 && essence($said) ne essence($shown)
					&& $typed =~ /^SELECT .* FROM lease_fence\.(rejected_writes|grants|operations|stat|worker_status)\b/s; $tries++)
				{
					usleep(100_000);
					($said) = ask($sessions{$who}, $input);
				}
				ok(pair_tokens(\%pairs, $shown, $said), "$title: the same tokens")
				  or diag($said);
				is(essence($said), essence($shown), $title) or diag($said);
			}
		}
		elsif ($language eq 'python' && RedisPython::available())
		{
			my ($done, $said) = run_python($content);

			ok($done, "$name: the program") or diag($said);
		}
		elsif ($language eq 'sh' && $content !~ /\bsudo\b/)
		{
			foreach my $command (commands($content))
			{
				my ($done, $said) = run_shell($folder, $command);

				ok($done, "$name: $command") or diag($said);
			}
		}
		elsif ($language !~ /^(sh|python)$/)
		{
			check_other($name, $language, $content);
		}
	}
	foreach my $session (values %sessions)
	{
		$session->{in} .= "\\q\n";
		$session->{handle}->finish;
	}
	$node->stop;
	$redis->stop if $redis;
}

# ---------------------------------------------------------------------------
# 2. The reference is whole
# ---------------------------------------------------------------------------

start_server('reference');
$node->safe_psql('postgres', 'CREATE EXTENSION lease_fence');

sub query_rows
{
	return map { [ split /\|/, $_, -1 ] }
	  split /\n/, $node->safe_psql('postgres', $_[0]);
}

# name => [name, mode and type, default] of each argument, and the result
sub parse_signature
{
	my ($arguments, $result) = @_;
	my @parsed;

	$arguments =~ s/\s+/ /g;
	foreach my $argument (split /, /, $arguments)
	{
		my ($what, $default) = split / DEFAULT /, $argument;
		my ($mode, $name, $type) = $what =~ /^ ?((?:OUT |VARIADIC )?)(\w+) (.*?) ?$/
		  or return "cannot read \"$argument\"";

		# the default as a value, however it is written
		$default = $node->safe_psql('postgres', "SELECT coalesce(($default)::${type}::text, 'NULL')")
		  if defined $default;
		push @parsed, "$mode$name $type" . (defined $default ? " DEFAULT $default" : '');
	}
	$result =~ s/timestamp with time zone/timestamptz/g;
	$result =~ s/\s+//g;
	return join("\n", @parsed, "RETURNS $result");
}

my %documented;
foreach my $block (blocks($reference))
{
	next if $block->[0] ne '';
	my ($name, $arguments, $result) =
	  $block->[1] =~ /^lease_fence\.(\w+)\((.*?)\)(?:\s+RETURNS (.*))?\s*$/s
	  or next;
	push @{ $documented{$name} }, parse_signature($arguments, $result // 'record');
}

# Those that return a trigger, or that a view, check() or a foreign data wrapper calls,
# are not for calling.
my %exists;
foreach my $row (
	query_rows(
	q{SELECT proname, pg_get_function_arguments(oid), pg_get_function_result(oid)
	  FROM pg_proc p
	  WHERE pronamespace = 'lease_fence'::regnamespace AND prorettype <> 'trigger'::regtype
	    AND NOT EXISTS (SELECT FROM pg_depend d
	                    WHERE d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid
	                      AND d.classid = 'pg_rewrite'::regclass)
	    AND NOT EXISTS (SELECT FROM pg_foreign_data_wrapper WHERE fdwvalidator = p.oid)
	    AND NOT EXISTS (SELECT FROM pg_proc c
	                    WHERE c.pronamespace = p.pronamespace AND c.proname = 'check'
	                      AND c.prosrc ~ ('(FROM|LATERAL) lease_fence[.]' || p.proname || '[(]'))
	  ORDER BY oid}))
{
	my ($name, $arguments, $result) = @$row;

	push @{ $exists{$name} }, parse_signature($arguments, $result);
}

is_deeply(\%documented, \%exists, 'the signature of each function');
foreach my $name (sort keys %exists)
{
	like($reference, qr/^### $name$/m, "$name has its section");
	like($reference, qr/\(#$name\)/, "$name is in the table of contents");
}

foreach my $name (
	map { $_->[0] } query_rows(
		q(SELECT DISTINCT proname FROM pg_proc
		  WHERE pronamespace = 'lease_fence'::regnamespace ORDER BY 1)))
{
	like($reference, qr/^### $name$|`$name\(\)`/m, "the reference speaks of $name()")
	  unless exists $exists{$name};
}

my %context = (
	user => 'anybody',
	superuser => 'superuser',
	sighup => 'reload',
	postmaster => 'restart');
my %settings = map { $_->[0] => "$_->[1], $context{$_->[2]}" } query_rows(
	q(SELECT name, current_setting(name), context FROM pg_settings
	  WHERE name LIKE 'lease_fence.%' AND name !~ '[.]test_'));
my %documented_settings;
while ($reference =~ /^\| `(lease_fence\.\w+)` \| `(.*?)` \| (\w+) \|/mg)
{
	my ($name, $default, $who) = ($1, $2, $3);

	$documented_settings{$name} = ($default eq "''" ? '' : $default) . ", $who";
}
is_deeply(\%documented_settings, \%settings, 'each setting, its default and who sets it');

# What the validator says to an option that there is none of.
sub valid_options
{
	my ($catalog) = @_;
	my (undef, undef, $said) = $node->psql('postgres',
		"SELECT lease_fence.redis_validator('{nonsense=1}', '$catalog'::regclass)");

	return $said =~ /context are: (.*)\.$/m ? $1 : $said;
}

foreach my $of (
	[ 'Options of a server', 'pg_foreign_server' ],
	[ 'Credentials', 'pg_user_mapping' ])
{
	my ($heading, $catalog) = @$of;
	my ($table) = $reference =~ /^### \Q$heading\E\n(.*?)^##/ms;

	is(join(', ', $table =~ /^\| `(\w+)` \|/mg), valid_options($catalog), "the reference: $heading");
}

my ($section) = $reference =~ /^## Views and tables\n(.*?)^## /ms;
my %columns = map { $_->[0] => $_->[1] } query_rows(
	q(SELECT relname, string_agg(attname, ' ' ORDER BY attnum)
	  FROM pg_class c JOIN pg_attribute a ON attrelid = c.oid AND attnum > 0 AND NOT attisdropped
	  WHERE relnamespace = 'lease_fence'::regnamespace AND relkind IN ('r', 'v')
	  GROUP BY relname));
my %documented_columns;
while ($section =~ /^### (\w+)\n(.*?)(?=^### |\z)/msg)
{
	my ($name, $about) = ($1, $2);
	my $names = join ' ', map { (split /\|/, $_)[1] } grep { /^\| `/ } split /\n/, $about;

	$documented_columns{$name} = join ' ', $names =~ /`(\w+)`/g;
}
is_deeply(\%documented_columns, \%columns, 'the columns of each view and table');

# As GitHub makes anchors of headings.
sub anchors
{
	return map { lc(s/[^\w\- ]//gr) =~ tr/ /-/r } $_[0] =~ /^#+ (.*)$/mg;
}

foreach my $file (sort keys %text)
{
	my $folder = $file =~ m{^(.*/)} ? $1 : '';
	my @broken;

	while ($text{$file} =~ /\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)/g)
	{
		my ($target, $anchor) = ($1 eq '' ? $file : "$folder$1", $2);
		my $whole = $text{$target};

		push @broken, $target . (defined $anchor ? "#$anchor" : '')
		  if !-f "$root/$target" || defined $anchor && !grep { $_ eq $anchor } anchors($whole // '');
	}
	is("@broken", '', "$file: each link leads somewhere");
}

SKIP:
{
	skip 'the source is not here', 2 unless -f "$root/src/base/errors.h";
	my $defined = slurp_file("$root/src/base/errors.h");
	my $source = join '', map { slurp_file($_) } glob "$root/src/*.c $root/src/*/*.c";
	my @raised;

	while ($defined =~ /define (LF_ERRCODE_\w+)\s+MAKE_SQLSTATE\(([^)]*)\)/g)
	{
		my ($name, $state) = ($1, $2);

		$state =~ tr/', //d;
		push @raised, $state if $source =~ /\b$name\b/;
	}
	foreach my $file ('README.md', 'docs/reference.md')
	{
		my @listed = $text{$file} =~ /^\| (LF\w{3}) \|/mg;

		is("@listed", join(' ', sort @raised), "$file: each SQLSTATE of ours that is raised");
	}
}

$node->stop;
done_testing();
