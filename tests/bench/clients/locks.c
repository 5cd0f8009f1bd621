/*
 * locks.c
 *		The ways to lock that callers.c measures: SQL sessions, and Redis by
 *		hiredis.
 *
 * Each caller has a connection to what it locks with, one to the database if
 * there is work to do and the lock is not there, and its statements prepared.
 */
#include <hiredis/hiredis.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "callers.h"

/* Where nobody wakes us. */
#define ASK_AGAIN	10000		/* µs */

/*
 * What is said to the database.  $1 is the name for lock and unlock, the row's id for
 * read and write; $2 the token (adopt: the lock's value, and $3 the token that is
 * known).  A lock that returns no row is asked for again.
 */
struct Way
{
	const char *name;
	const char *prefix;
	bool		redis;			/* the lock is taken in Redis, by us */
	int			jobs;			/* under one lock */
	bool		block;			/* BEGIN, COMMIT */
	const char *lock;			/* with redis: adopt */
	const char *known;			/* with redis: adopt, from the second one on */
	const char *read;
	const char *write;
	const char *unlock;
};

#define ACQUIRE		"SELECT token FROM lease_fence.acquire(resource => $1, wait => NULL)"
#define ACQUIRE_S	"SELECT token FROM lease_fence.acquire(resource => $1, wait => NULL, scope => 'session')"
#define RELEASE		"SELECT lease_fence.release(token => $2::bigint), $1::text"
#define ADOPT		"SELECT token FROM lease_fence.adopt(resource => $1, holder => $2::text)"
#define ADOPT_KNOWN	"SELECT token FROM lease_fence.adopt(resource => $1, holder => $2::text, known_token => $3)"
#define KEY			"hashtextextended($1, 0)"
#define READ(table)	"SELECT stock FROM " table " WHERE id = $1"
#define WRITE(table) "UPDATE " table " SET stock = stock - 1 WHERE id = $1 AND stock > 0"
#define CALL(table)	"SELECT 1 FROM lease_fence.guarded_decrement(relation => '" table "', key => $1::text, " \
					"column_name => 'stock') WHERE outcome = 'applied'"

static const Way ways[] = {
	{"lease-transaction", "", false, 1, true, ACQUIRE, NULL, READ("item"), WRITE("item"), NULL},
	{"lease-session", "", false, 1, false, ACQUIRE_S, NULL, READ("item"), WRITE("item"), RELEASE},
	{"lease-transaction-call", "", false, 1, true, ACQUIRE, NULL, NULL, CALL("item"), NULL},
	{"lease-session-call", "", false, 1, false, ACQUIRE_S, NULL, NULL, CALL("item"), RELEASE},
	{"redis-transaction", "r:", false, 1, true, ACQUIRE, NULL, READ("r_item"), WRITE("r_item"), NULL},
	{"redis-session", "r:", false, 1, false, ACQUIRE_S, NULL, READ("r_item"), WRITE("r_item"), RELEASE},
	{"redis-transaction-call", "r:", false, 1, true, ACQUIRE, NULL, NULL, CALL("r_item"), NULL},
	{"advisory-transaction", "", false, 1, true, "SELECT pg_advisory_xact_lock(" KEY ")", NULL,
	READ("plain_item"), WRITE("plain_item"), NULL},
	{"advisory-session", "", false, 1, false, "SELECT pg_advisory_lock(" KEY ")", NULL,
	READ("plain_item"), WRITE("plain_item"), "SELECT pg_advisory_unlock(" KEY "), $2::text"},
	{"table", "", false, 1, false,
		"INSERT INTO lease AS l VALUES ($1, pg_backend_pid(), 1, now() + '30 s')"
		" ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, token = l.token + 1, expires_at = excluded.expires_at"
		" WHERE l.expires_at < now() RETURNING token",
		NULL, READ("fenced_item"),
		"UPDATE fenced_item SET stock = stock - 1, fence_token = $2"
		" WHERE id = $1 AND stock > 0 AND fence_token <= $2::bigint",
	"UPDATE lease SET expires_at = '-infinity' WHERE name = $1 AND token = $2"},
	{"hiredis", "", true, 1, false, NULL, NULL, READ("plain_item"), WRITE("plain_item"), NULL},
	{"hiredis-adopt", "r:", true, 1, true, ADOPT, NULL, READ("r_item"), WRITE("r_item"), NULL},
	{"hiredis-adopt-10", "r:", true, 10, true, ADOPT, NULL, READ("r_item"), WRITE("r_item"), NULL},
	{"hiredis-adopt-10-known", "r:", true, 10, true, ADOPT, ADOPT_KNOWN, READ("r_item"), WRITE("r_item"), NULL},
};

typedef struct State
{
	PGconn	   *sql;
	redisContext *redis;
	char		delete[64];		/* the script's digest */
	long		acquisitions;
	int			caller;
} State;

const Way *
way_find(const char *name)
{
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
	{
		if (strcmp(ways[i].name, name) == 0)
			return &ways[i];
	}
	die("there is no way %s", name);
}

/* ---- the database ---- */

/* Ends the result.  False: it has no row; else its first column is in answer, if that is asked for. */
static bool
take(PGconn *sql, PGresult *result, char *answer, size_t size)
{
	ExecStatusType status = PQresultStatus(result);
	bool		found = PQntuples(result) > 0;

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
		die("%s", PQerrorMessage(sql));
	if (found && answer != NULL)
		snprintf(answer, size, "%s", PQgetvalue(result, 0, 0));
	PQclear(result);
	return found;
}

static void
say(PGconn *sql, const char *text)
{
	take(sql, PQexec(sql, text), NULL, 0);
}

static void
prepare(PGconn *sql, const char *name, const char *text)
{
	if (text != NULL)
		take(sql, PQprepare(sql, name, text, 0, NULL), NULL, 0);
}

/* As many of the three as the statement has parameters. */
static PGresult *
run(PGconn *sql, const char *name, const char *text, const char *first, const char *second, const char *third)
{
	const char *values[] = {first, second, third};
	int			count = strstr(text, "$3") != NULL ? 3 : strstr(text, "$2") != NULL ? 2 : 1;

	return PQexecPrepared(sql, name, count, values, NULL, NULL, 0);
}

/* Exactly one row, or the job was not done. */
static void
write_row(PGconn *sql, const char *text, const char *id, const char *token)
{
	PGresult   *result = run(sql, "write", text, id, token, NULL);

	if (strcmp(PQcmdTuples(result), "1") != 0)
		die("nothing was written: %s", PQresultErrorMessage(result));
	PQclear(result);
}

static void
work(const Way *way, const State *state, const Job *job, const char *token)
{
	char		id[16];

	if (job->item == 0)
		return;
	snprintf(id, sizeof(id), "%d", job->item);
	if (way->read != NULL)
		take(state->sql, run(state->sql, "read", way->read, id, NULL, NULL), NULL, 0);
	write_row(state->sql, way->write, id, token);
}

static void
open_sql(const Way *way, State *state, const char *info, bool works)
{
	state->sql = PQconnectdb(info);
	if (PQstatus(state->sql) != CONNECTION_OK)
		die("%s", PQerrorMessage(state->sql));
	prepare(state->sql, "lock", way->lock);
	prepare(state->sql, "known", way->known);
	prepare(state->sql, "unlock", way->unlock);
	if (!works)
		return;
	prepare(state->sql, "read", way->read);
	prepare(state->sql, "write", way->write);
}

static void
run_sql(const Way *way, const State *state, const char *name, Job *job)
{
	char		token[32] = "";

	if (way->block)
		say(state->sql, "BEGIN");
	while (!take(state->sql, run(state->sql, "lock", way->lock, name, NULL, NULL), token, sizeof(token)))
		usleep(ASK_AGAIN);
	entered(job, atoll(token));
	work(way, state, job, token);
	leaving(job);
	if (way->block)
		say(state->sql, "COMMIT");
	else
		take(state->sql, run(state->sql, "unlock", way->unlock, name, token, NULL), token, sizeof(token));
	if (way->unlock != NULL && strstr(way->unlock, "SELECT") != NULL && strcmp(token, "t") != 0)
		die("%s was not unlocked", name);
}

/* ---- Redis ---- */

static const char delete_script[] =
"if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

static redisReply *
answer(const State *state, redisReply *reply)
{
	if (reply == NULL || reply->type == REDIS_REPLY_ERROR)
		die("Redis: %s", reply == NULL ? state->redis->errstr : reply->str);
	return reply;
}

/* info: host:port */
static void
open_redis(State *state, const char *info)
{
	const char *port = strrchr(info, ':') + 1;
	char		host[64];
	redisReply *reply;

	snprintf(host, sizeof(host), "%.*s", (int) (port - info - 1), info);
	state->redis = redisConnect(host, atoi(port));
	if (state->redis == NULL || state->redis->err != 0)
		die("no Redis at %s", info);
	reply = answer(state, redisCommand(state->redis, "SCRIPT LOAD %s", delete_script));
	snprintf(state->delete, sizeof(state->delete), "%s", reply->str);
	freeReplyObject(reply);
}

static void
lock_redis(const State *state, const char *name, const char *value)
{
	for (;;)
	{
		redisReply *reply = answer(state, redisCommand(state->redis, "SET %s %s NX PX 30000", name, value));
		bool		locked = reply->type == REDIS_REPLY_STATUS;

		freeReplyObject(reply);
		if (locked)
			return;
		usleep(ASK_AGAIN);
	}
}

static void
unlock_redis(const State *state, const char *name, const char *value)
{
	redisReply *reply = answer(state, redisCommand(state->redis, "EVALSHA %s 1 %s %s", state->delete, name, value));

	if (reply->integer != 1)
		die("%s was not unlocked", name);
	freeReplyObject(reply);
}

/* The work under a lock of ours, which may be adopted in each transaction of it. */
static void
work_under(const Way *way, const State *state, const char *name, const char *value, Job *job)
{
	char		token[32] = "";
	char		first[32];

	if (way->block)
		say(state->sql, "BEGIN");
	if (way->lock != NULL && (job->done == 0 || way->known == NULL))
		take(state->sql, run(state->sql, "lock", way->lock, name, value, NULL), token, sizeof(token));
	else if (way->lock != NULL)
	{
		snprintf(first, sizeof(first), "%lld", (long long) job->token);
		take(state->sql, run(state->sql, "known", way->known, name, value, first), token, sizeof(token));
		if (strcmp(token, first) != 0)
			die("known token %s became %s", first, token);
	}
	job->token = atoll(token);
	work(way, state, job, token);
	if (way->block)
		say(state->sql, "COMMIT");
}

static void
run_redis(const Way *way, State *state, const char *name, Job *job)
{
	char		value[64];

	/* new for each acquisition, as the libraries' are */
	snprintf(value, sizeof(value), "%d-%d-%ld", (int) getpid(), state->caller, ++state->acquisitions);
	lock_redis(state, name, value);
	entered(job, 0);
	for (job->done = 0; job->done < way->jobs; job->done++)
		work_under(way, state, name, value, job);
	leaving(job);
	unlock_redis(state, name, value);
}

/* ---- either ---- */

void *
way_open(const Way *way, const char *info, const char *database, bool works, int caller)
{
	State	   *state = calloc(1, sizeof(State));

	state->caller = caller;
	if (way->redis)
		open_redis(state, info);
	if (!way->redis || works)
		open_sql(way, state, way->redis ? database : info, works);
	return state;
}

void
way_run(const Way *way, void *state, Job *job)
{
	char		name[64];

	snprintf(name, sizeof(name), "%s%s", way->prefix, job->name);
	if (way->redis)
		run_redis(way, state, name, job);
	else
	{
		run_sql(way, state, name, job);
		job->done = 1;
	}
}
