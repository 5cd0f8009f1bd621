# Guarded functions as drivers call them: parameters bound without a cast, in the
# types that each driver sends. pgbench is always there; the others where Debian's
# packages are (python3-psycopg2, python3-psycopg, node-pg, libpostgresql-jdbc-java).

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('drivers');
# node-postgres and JDBC want TCP
$node->init;
$node->append_conf('postgresql.conf', <<'CONF');
shared_preload_libraries = 'lease_fence'
listen_addresses = '127.0.0.1'
CONF
$node->append_conf('pg_hba.conf', 'host all all 127.0.0.1/32 trust');
$node->start;
$node->safe_psql('postgres', q(
	CREATE EXTENSION lease_fence;
	CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL DEFAULT 100, note text);
	SELECT lease_fence.protect('stock', 'stock:{id}');
	SELECT lease_fence.add_profile('ext', 'ext:', policy => 'external')));

my $folder = PostgreSQL::Test::Utils::tempdir;
my $user = $node->safe_psql('postgres', 'SELECT current_user');
my $port = $node->port;
my $row = 0;

sub write_file
{
	my ($name, $text) = @_;
	open(my $out, '>', "$folder/$name") or die $!;
	print $out $text;
	close($out);
	return "$folder/$name";
}

# Runs a program for a row of its own: what it must leave behind.
sub leaves
{
	my ($driver, $id, @command) = @_;
	my ($out, $err) = ('', '');
	my $ok = IPC::Run::run(\@command, '>', \$out, '2>', \$err, IPC::Run::timeout(180));
	ok($ok, "$driver: every call went through") or diag($out . $err);
	is($node->safe_psql('postgres', "SELECT n, note FROM stock WHERE id = $id"), '90|by driver', "$driver: and did what it says");
	is($node->safe_psql('postgres', "SELECT count(*) FROM lease_fence.operations WHERE key LIKE '$driver %'"), '3', "$driver: once per key");
}

sub available
{
	my $out = '';
	return scalar eval { IPC::Run::run(\@_, '>', \$out, '2>&1', IPC::Run::timeout(60)) };
}

# pgbench: the extended protocol, and no types at all.
for my $mode ('extended', 'prepared')
{
	my $id = ++$row;
	my $script = write_file("$mode.sql", <<'SQL');
SELECT token FROM lease_fence.acquire(:resource, scope => :scope, holder => :holder) \gset
SELECT outcome FROM lease_fence.guarded_insert(:relation, :new_row, token => :token, operation_key => :insert_key) \gset
SELECT outcome, remaining FROM lease_fence.guarded_decrement(:relation, :key, :column, token => :token, amount => :amount, operation_key => :decrement_key) \gset
SELECT outcome, remaining FROM lease_fence.guarded_decrement(:relation, :key, :column, token => :token, amount => :amount, operation_key => :decrement_key) \gset
SELECT outcome FROM lease_fence.guarded_update(:relation, :key, :changes, :token, :expected, :update_key) \gset
SELECT outcome FROM lease_fence.operation(:update_key) \gset
BEGIN;
SELECT set_config('lease_fence.token', :token, true) AS set \gset
SELECT outcome FROM lease_fence.guarded_increment(:relation, :key, :column, amount => 1, ceiling => :amount) \gset
COMMIT;
SQL
	leaves("pgbench $mode", $id, 'pgbench', '-n', '-t', '3', '-M', $mode, '-f', $script,
		(map { ('-D', $_) } "resource=stock:$id", 'scope=detached', 'holder=h', 'relation=stock', "new_row={\"id\": $id}",
			"insert_key=pgbench $mode i", "key=$id", 'column=n', 'amount=10', "decrement_key=pgbench $mode d",
			'changes={"note": "by driver"}', 'expected={"note": null}', "update_key=pgbench $mode u"),
		$node->connstr('postgres'));
}

# psycopg2 writes values into the statement, psycopg 3 binds them with types of its own.
for my $module ('psycopg2', 'psycopg')
{
  SKIP:
	{
		my ($python) = grep { available($_, '-c', "import $module") } '/usr/bin/python3', 'python3';
		skip("no python with $module", 3) unless $python;
		my $id = ++$row;
		my $program = write_file("with_$module.py", <<"PYTHON");
import json
from decimal import Decimal
import $module
connection = $module.connect("host=127.0.0.1 port=$port user=$user dbname=postgres")
connection.autocommit = True
cursor = connection.cursor()

def call(statement, *values):
    cursor.execute(statement, values)
    return cursor.fetchone()

token = call("SELECT token FROM lease_fence.acquire(%s, scope => %s)", "stock:$id", "detached")[0]
assert token > 0
for expected in ("applied", "replayed"):
    row = call("SELECT * FROM lease_fence.guarded_insert(%s, %s, token => %s, operation_key => %s)",
               "stock", json.dumps({"id": $id}), token, "$module i")
    assert row[0] == expected and row[1]["n"] == 100, row
    row = call("SELECT * FROM lease_fence.guarded_decrement(%s, %s, %s, token => %s, amount => %s, operation_key => %s)",
               "stock", "$id", "n", token, 10, "$module d")
    assert row == (expected, Decimal(90)), row
    row = call("SELECT * FROM lease_fence.guarded_update(%s, %s, %s, %s, %s, %s)",
               "stock", json.dumps({"id": $id}), json.dumps({"note": "by driver"}), token, None, "$module u")
    assert row[0] == expected and row[1]["note"] == "by driver", row
row = call("SELECT * FROM lease_fence.guarded_decrement(%s, %s, %s, %s, %s, %s)", "stock", "$id", "n", token, Decimal("1"), Decimal("90"))
assert row == ("not_met", Decimal(90)), row
assert call("SELECT outcome FROM lease_fence.operation(%s)", "$module u")[0] == "applied"
assert call("SELECT token FROM lease_fence.import_grant(%s, %s, %s)", "ext:$id", 2 ** 40, "h")[0] > token
call("SELECT lease_fence.renew(%s)", token)
try:
    call("SELECT * FROM lease_fence.guarded_update(%s, %s, %s)", "stock", "$id", '{"n": 1}')
    raise SystemExit("not refused")
except $module.Error as error:
    assert (getattr(error, "sqlstate", None) or error.pgcode) == "LF003", error
PYTHON
		leaves($module, $id, $python, $program);
	}
}

# node-postgres sends every value as text without a type.
SKIP:
{
	skip('no node with pg', 3) unless available('node', '-e', "require('pg')");
	my $id = ++$row;
	my $program = write_file('node.js', <<"JS");
const assert = require('assert');
const { Client } = require('pg');
const client = new Client({ host: '127.0.0.1', port: $port, user: '$user', database: 'postgres' });
const call = async (text, ...values) => (await client.query(text, values)).rows[0];
(async () => {
  await client.connect();
  const { token } = await call('SELECT token FROM lease_fence.acquire(\$1, scope => \$2)', 'stock:$id', 'detached');
  for (const expected of ['applied', 'replayed']) {
    let row = await call('SELECT * FROM lease_fence.guarded_insert(\$1, \$2, token => \$3, operation_key => \$4)',
      'stock', { id: $id }, token, 'node i');
    assert.strictEqual(row.outcome, expected);
    row = await call('SELECT * FROM lease_fence.guarded_decrement(\$1, \$2, \$3, token => \$4, amount => \$5, operation_key => \$6)',
      'stock', $id, 'n', Number(token), 10, 'node d');
    assert.strictEqual(row.outcome, expected);
    assert.strictEqual(Number(row.remaining), 90);
    row = await call('SELECT * FROM lease_fence.guarded_update(\$1, \$2, \$3, \$4, \$5, \$6)',
      'stock', { id: $id }, { note: 'by driver' }, token, null, 'node u');
    assert.strictEqual(row.outcome, expected);
    assert.strictEqual(row.new_row.note, 'by driver');
  }
  assert.strictEqual((await call('SELECT outcome FROM lease_fence.operation(\$1)', 'node u')).outcome, 'applied');
  assert((await call('SELECT token FROM lease_fence.import_grant(\$1, \$2, ttl => \$3)', 'ext:$id', 7, '1 min')).token > 0);
  await assert.rejects(call('SELECT * FROM lease_fence.guarded_update(\$1, \$2, \$3)', 'stock', $id, { n: 1 }), { code: 'LF003' });
  await client.end();
})().catch((error) => { console.error(error); process.exit(1); });
JS
	leaves('node', $id, 'node', $program);
}

# JDBC sends the types of its setters; JSON goes as Types.OTHER, which has none. Twelve
# times, since it prepares a statement on the server from the fifth time on.
SKIP:
{
	my ($jar) = grep { -e $_ } $ENV{PGJDBC_JAR} // (), '/usr/share/java/postgresql.jar';
	skip('no java with the JDBC driver', 3) unless $jar && available('java', '-version');
	my $id = ++$row;
	my $program = write_file('Jdbc.java', <<"JAVA");
import java.math.BigDecimal;
import java.sql.*;

public class Jdbc {
    static Connection connection;

    static ResultSet run(PreparedStatement statement) throws SQLException {
        ResultSet result = statement.executeQuery();
        result.next();
        return result;
    }

    static void check(boolean condition, String what) {
        if (!condition)
            throw new RuntimeException(what);
    }

    public static void main(String[] arguments) throws Exception {
        connection = DriverManager.getConnection("jdbc:postgresql://127.0.0.1:$port/postgres?user=$user&sslmode=disable&gssEncMode=disable");
        PreparedStatement acquire = connection.prepareStatement("SELECT token FROM lease_fence.acquire(?, scope => ?)");
        acquire.setString(1, "stock:$id");
        acquire.setString(2, "detached");
        long token = run(acquire).getLong(1);
        PreparedStatement insert = connection.prepareStatement("SELECT * FROM lease_fence.guarded_insert(?, ?, token => ?, operation_key => ?)");
        PreparedStatement decrement = connection.prepareStatement("SELECT * FROM lease_fence.guarded_decrement(?, ?, ?, token => ?, amount => ?, floor => ?, operation_key => ?)");
        PreparedStatement update = connection.prepareStatement("SELECT * FROM lease_fence.guarded_update(?, ?, ?, ?, ?, ?)");
        for (int i = 0; i < 12; i++) {
            String expected = i == 0 ? "applied" : "replayed";
            insert.setString(1, "stock");
            insert.setObject(2, "{\\"id\\": $id}", Types.OTHER);
            insert.setLong(3, token);
            insert.setString(4, "jdbc i");
            check(run(insert).getString(1).equals(expected), "insert");
            decrement.setString(1, "stock");
            decrement.setString(2, "$id");
            decrement.setString(3, "n");
            decrement.setLong(4, token);
            decrement.setInt(5, 10);
            decrement.setBigDecimal(6, new BigDecimal("0"));
            decrement.setString(7, "jdbc d");
            ResultSet answer = run(decrement);
            check(answer.getString(1).equals(expected), "decrement");
            check(answer.getBigDecimal(2).intValue() == 90, "remaining");
            update.setString(1, "stock");
            update.setString(2, "{\\"id\\": $id}");
            update.setObject(3, "{\\"note\\": \\"by driver\\"}", Types.OTHER);
            update.setLong(4, token);
            update.setNull(5, Types.OTHER);
            update.setString(6, "jdbc u");
            check(run(update).getString(1).equals(expected), "update");
        }
        update.setNull(4, Types.BIGINT);
        update.setNull(6, Types.VARCHAR);
        try {
            run(update);
            check(false, "not refused");
        } catch (SQLException refused) {
            check(refused.getSQLState().equals("LF003"), refused.toString());
        }
        connection.setAutoCommit(false);
        PreparedStatement present = connection.prepareStatement("SELECT set_config('lease_fence.token', ?, true)");
        present.setString(1, Long.toString(token));
        run(present);
        check(run(update).getString(1).equals("applied"), "under the setting");
        connection.commit();
        connection.close();
    }
}
JAVA
	leaves('jdbc', $id, 'java', '-Duser.home=' . $folder, '-cp', $jar, $program);
}
$node->stop;
done_testing();
