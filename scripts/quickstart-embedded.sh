# shellcheck shell=bash
#
# The story without Redis: PostgreSQL itself hands out the lease.  Sourced by
# scripts/quickstart.

a_in=
a_asked=0

# Client A is one psql process that lives through the story, fed by a FIFO.
start_a() {
	mkfifo "$LF_DIR/a.in"
	"$LF_BINDIR/psql" -X --host="$LF_DIR" --port="$LF_PORT" --username=postgres --dbname=shop \
		<"$LF_DIR/a.in" >"$LF_DIR/a.out" 2>&1 &
	a_pid=$!
	exec {a_in}>"$LF_DIR/a.in"
	printf '%s\n' "\\echo __done_0" >&"$a_in"
	lf_wait_for 20 a_has_answered 0 || lf_die "client A did not start"
}

a_has_answered() { grep -q "^__done_$1\$" "$LF_DIR/a.out"; }

# ask_a SQL: A sends it; its answer is printed, and kept in a_answer.
ask_a() {
	show A "$1"
	a_asked=$((a_asked + 1))
	printf '%s\n%s\n' "$1" "\\echo __done_$a_asked" >&"$a_in"
	lf_wait_for 20 a_has_answered "$a_asked" || lf_die "client A got no answer"
	a_answer=$(sed -n "/^__done_$((a_asked - 1))\$/,/^__done_$a_asked\$/p" "$LF_DIR/a.out" | grep -v '^__done_')
	lf_say "$a_answer" | indent
}

# ask_b SQL: B is a psql process of its own each time.
ask_b() {
	show B "$1"
	b_answer=$(lf_psql <<<"$1" 2>&1) || {
		lf_say "$b_answer" | indent
		lf_die "the story did not end as told: client B failed"
	}
	lf_say "$b_answer" | indent
}

# The token in an answer: the number in the first column of its first row.
token_of() { sed -n 's/^ *\([0-9]\{1,\}\) |.*/\1/p' <<<"$1" | head -n 1; }

chapter "A table whose rows are guarded"

setup="CREATE EXTENSION lease_fence;
CREATE TABLE stock (id int PRIMARY KEY, units int NOT NULL);
INSERT INTO stock (id, units) VALUES (1001, 10);
SELECT lease_fence.protect(relation => 'stock', resource => 'stock:{id}');"
show psql "$setup"
lf_psql --quiet --output=/dev/null <<<"$setup"
lf_say ""
tell "From now on row 1001 can only be written under the lease of stock:1001."

start_a
chapter "Client A (process $a_pid) takes the lease for 2 seconds, and reads"

ask_a "SELECT token, expires_in FROM lease_fence.acquire(resource => 'stock:1001',
           ttl => '2s', scope => 'detached', holder => 'client A');"
token_a=$(token_of "$a_answer")
[[ -n $token_a ]] || lf_die "the story did not end as told: client A got no token"
ask_a "SELECT units FROM stock WHERE id = 1001;"
lf_say ""
tell "A wants to sell one: 10 - 1 = 9. But before it can write..."

stop_a
tell "Nobody renews the lease. We wait until it has lapsed."
lf_wait_for 30 is_true "SELECT lease_fence.remaining(token => $token_a) IS NULL" ||
	lf_die "the story did not end as told: A's lease did not lapse"
tell "It has."

chapter "Client B takes the lease, and sells three"

ask_b "BEGIN;
SELECT token, expires_in FROM lease_fence.acquire(resource => 'stock:1001', holder => 'client B');
SELECT units FROM stock WHERE id = 1001;
UPDATE stock SET units = 7 WHERE id = 1001;
COMMIT;"
token_b=$(token_of "$b_answer")
check_b "$token_a" "$token_b"

wake_a
ask_a "BEGIN;
SET LOCAL lease_fence.token = '$token_a';
UPDATE stock SET units = 9 WHERE id = 1001;
\\echo SQLSTATE :SQLSTATE
COMMIT;"
grep -q '^SQLSTATE LF001$' <<<"$a_answer" ||
	lf_die "the story did not end as told: A's write was not refused with LF001"
show_the_end "$token_a" "$token_b"
