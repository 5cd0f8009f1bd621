# shellcheck shell=bash
#
# The story with Redis: redis-py hands out the lock, PostgreSQL adopts it.  Sourced
# by scripts/quickstart.

program=$LF_ROOT/scripts/quickstart.py

find_python() {
	for python in /usr/bin/python3 python3; do
		! "$python" -c 'import psycopg2, redis' 2>/dev/null || return 0
	done
	lf_die "found no python3 with psycopg2 and redis"
}

in_redis() { redis-cli -s "$LF_DIR/redis.sock" "$@"; }
redis_answers() { [[ $(in_redis PING 2>/dev/null) == PONG ]]; }
lock_is_gone() { [[ $(in_redis EXISTS stock:1001) == 0 ]]; }

# A server of our own, on a unix socket that PostgreSQL's user may use.
start_redis() {
	lf_say "Starting a throw-away Redis there"
	redis-server --port 0 --unixsocket "$LF_DIR/redis.sock" --unixsocketperm 777 \
		--save '' --appendonly no --dir "$LF_DIR" >"$LF_DIR/redis.log" 2>&1 </dev/null &
	redis_pid=$!
	lf_wait_for 20 redis_answers || {
		cat "$LF_DIR/redis.log" >&2
		lf_die "Redis did not start"
	}
}

# sell WHO UNITS: what it says is in $LF_DIR/WHO.out
sell() {
	exec "$python" "$program" "$1" "$2" "$LF_DIR/redis.sock" \
		"host=$LF_DIR port=$LF_PORT user=postgres dbname=shop" >"$LF_DIR/$1.out" 2>&1
}

a_said() { grep -q "$1" "$LF_DIR/A.out"; }
a_thinks() { a_said 'am going to write 9'; }
a_has_ended() { ! kill -0 "$a_pid" 2>/dev/null; }
token_of() { sed -n 's/.* under token \([0-9]\{1,\}\)$/\1/p' "$LF_DIR/$1.out"; }

find_python
start_redis

chapter "A table whose rows are guarded, and locks that are in Redis"

setup="CREATE EXTENSION lease_fence;
CREATE TABLE stock (id int PRIMARY KEY, units int NOT NULL);
INSERT INTO stock (id, units) VALUES (1001, 10);
SELECT lease_fence.protect(relation => 'stock', resource => 'stock:{id}');
CREATE SERVER locks FOREIGN DATA WRAPPER lease_fence_redis
    OPTIONS (socket '$LF_DIR/redis.sock', set_events 'on');
SELECT lease_fence.add_profile(name => 'stock', prefix => 'stock:', servers => '{locks}');"
show psql "$setup"
lf_psql --quiet --output=/dev/null <<<"$setup"
lf_say ""
tell "From now on row 1001 can only be written by who has the lock stock:1001 in Redis."

chapter "What clients A and B do (scripts/quickstart.py)"

sed -n '/^def sell/,/gave the lock back/p' "$program" | indent

mkfifo "$LF_DIR/A.in"
sell A 1 <"$LF_DIR/A.in" &
a_pid=$!
exec {a_in}>"$LF_DIR/A.in"
chapter "Client A (process $a_pid) takes the lock for 2 seconds, adopts it, and reads"

lf_wait_for 20 a_thinks || {
	cat "$LF_DIR/A.out" >&2
	lf_die "the story did not end as told: client A did not come to its read"
}
indent <"$LF_DIR/A.out"
a_lines=$(wc -l <"$LF_DIR/A.out")

stop_a
tell "Nobody renews the lock. We wait until it has run out."
lf_wait_for 30 lock_is_gone || lf_die "the story did not end as told: A's lock did not run out"
show redis "EXISTS stock:1001"
tell "(integer) $(in_redis EXISTS stock:1001)"

chapter "Client B takes the lock, and sells three"

sell B 3 </dev/null &
b_pid=$!
wait "$b_pid" || {
	cat "$LF_DIR/B.out" >&2
	lf_die "the story did not end as told: client B failed"
}
b_pid=
indent <"$LF_DIR/B.out"
token_a=$(token_of A)
token_b=$(token_of B)
check_b "$token_a" "$token_b"

printf '\n' >&"$a_in" # read when it wakes up
wake_a
lf_wait_for 20 a_has_ended || lf_die "client A got no answer"
tail -n "+$((a_lines + 1))" "$LF_DIR/A.out" | indent
! wait "$a_pid" || lf_die "the story did not end as told: A's write was not refused"
a_pid=
a_said 'SQLSTATE LF001' ||
	lf_die "the story did not end as told: A's write was not refused with LF001"

show_the_end "$token_a" "$token_b"
