/*
 * redis_call.c
 *		Scripts that are run on a server, and their answers.
 *
 * Runs in workers.
 *
 * What must end well: scripts that the server has forgotten (SCRIPT FLUSH, a
 * restart: sent once more, whole), a connection that breaks while a call is
 * under way (its outcome is not known, and the asker is told so), an answer
 * that is none.
 */
#include "postgres.h"

#include "base/compat.h"
#include "coordinator/redis_script.h"
#include "coordinator/redis_server.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

/* Value, lock and what is to be replaced lie behind it, as far as their bytes go. */
typedef struct ScriptCall
{
	LfRedisCall head;
	LfLockCall	call;
	LfLockCallback done;
	uint64		id;
	LfClock		asked;
	int64		ttl;
	bool		sent;
	bool		whole;			/* the text was sent, not its hash */
	LfLock	   *lock;
	LfLockValue *value;
	LfLockValue *instead;		/* NULL: none */
} ScriptCall;

/* Those that could not even be asked: told so in the next pass. */
static dlist_head refused = DLIST_STATIC_INIT(refused);

static void
tell(ScriptCall *call, const LfLockAnswer *answer)
{
	LfLockQuestion question = {call->call, call->lock, call->value, call->ttl, call->id};

	lf_server_of(call->lock->server)->queue--;
	call->done(&question, answer);
	pfree(call);
}

static void
tell_unknown(ScriptCall *call, const char *problem)
{
	LfLockAnswer answer;

	memset(&answer, 0, sizeof(answer));
	answer.state = LF_LOCK_UNKNOWN;
	answer.sent = call->sent;
	answer.asked = call->asked;
	answer.left = -1;
	strlcpy(answer.problem, problem, sizeof(answer.problem));
	tell(call, &answer);
}

/* What the script does not use of its arguments is not sent. */
static int
count_arguments(LfLockCall call)
{
	switch (call)
	{
		case LF_LOCK_TAKE:
			return 4;
		case LF_LOCK_RENEW:
			return 3;
		case LF_LOCK_CHECK:
		case LF_LOCK_VERIFY:
		case LF_LOCK_RELEASE:
			break;
	}
	return 2;
}

static void
send_script(LfServer *server, ScriptCall *call)
{
	const LfRedisScript *script = lf_redis_script(call->call);
	char		ttl[24];
	const char *argv[8];
	size_t		lengths[8];

	argv[0] = call->whole ? "EVAL" : "EVALSHA";
	lengths[0] = strlen(argv[0]);
	argv[1] = call->whole ? script->text : script->sha;
	lengths[1] = strlen(argv[1]);
	argv[2] = "1";
	lengths[2] = 1;
	argv[3] = call->lock->key;
	lengths[3] = call->lock->key_length;
	argv[4] = call->lock->shape == LF_SHAPE_REDISSON ? "h" : "s";
	lengths[4] = 1;
	argv[5] = call->value->bytes;
	lengths[5] = call->value->length;
	argv[6] = ttl;
	lengths[6] = pg_lltoa(call->ttl / 1000, ttl);
	argv[7] = call->instead == NULL ? "" : call->instead->bytes;
	lengths[7] = call->instead == NULL ? 0 : call->instead->length;
	if (call->call == LF_LOCK_VERIFY)
		lf_greet_ask_role(server);
	call->sent = true;
	call->asked = lf_clock_now();
	server->used_at = call->asked;
	lf_server_send(server, &call->head, 4 + count_arguments(call->call), argv, lengths);
}

/* An error reply: most are about this one call, some about the connection. */
static void
take_error(LfServer *server, ScriptCall *call, const redisReply *reply)
{
	char		problem[LF_LOCK_PROBLEM_LENGTH];

	if (lf_reply_is_error(reply, "NOSCRIPT") && !call->whole)
	{
		call->whole = true;
		send_script(server, call);
		return;
	}
	strlcpy(problem, lf_reply_error(reply), sizeof(problem));
	lf_server_note_error(server, problem);
	tell_unknown(call, problem);
	if (strncmp(problem, "READONLY", 8) == 0 || strncmp(problem, "MASTERDOWN", 10) == 0 ||
		strncmp(problem, "NOAUTH", 6) == 0)
		lf_server_fail(server, problem);
}

/*
 * State and time left; of renew it may be the time alone that we asked for: that
 * number and no other, which a reply that is not ours will hardly be.
 */
static bool
read_answer(const ScriptCall *call, const redisReply *reply, LfLockAnswer *answer)
{
	if (reply->type == REDIS_REPLY_INTEGER)
		return call->call == LF_LOCK_RENEW && reply->integer == call->ttl / 1000 &&
			lf_redis_script_answer(LF_LOCK_HELD, reply->integer, answer);
	return reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
		reply->element[0]->type == REDIS_REPLY_INTEGER &&
		reply->element[1]->type == REDIS_REPLY_INTEGER &&
		lf_redis_script_answer(reply->element[0]->integer,
							   reply->element[1]->integer, answer);
}

static void
take_reply(LfServer *server, LfRedisCall *head, const redisReply *reply)
{
	ScriptCall *call = dlist_container(ScriptCall, head.node, &head->node);
	LfLockAnswer answer;

	if (reply == NULL)
	{
		tell_unknown(call, server->status.last_error);
		return;
	}
	if (reply->type == REDIS_REPLY_ERROR)
	{
		take_error(server, call, reply);
		return;
	}
	answer.sent = false;
	answer.asked = call->asked;
	if (!read_answer(call, reply, &answer))
	{
		tell_unknown(call, "the reply is not one of our scripts'");
		lf_server_fail(server, "a reply is not one of our scripts'");
		return;
	}
	lf_server_note_success(server);
	tell(call, &answer);
}

static ScriptCall *
make_call(LfLockCall kind, const LfLock *lock, const LfLockValue *value,
		  const LfLockValue *instead, int64 ttl, uint64 id, LfLockCallback done)
{
	Size		lock_size = MAXALIGN(lf_lock_size(lock));
	Size		value_size = MAXALIGN(lf_lock_value_size(value));
	Size		instead_size = instead == NULL ? 0 : lf_lock_value_size(instead);
	ScriptCall *call = MemoryContextAlloc(lf_server_context(),
										  MAXALIGN(sizeof(ScriptCall)) + lock_size + value_size + instead_size);
	char	   *place = (char *) call + MAXALIGN(sizeof(ScriptCall));

	call->head.replied = take_reply;
	call->call = kind;
	call->done = done;
	call->id = id;
	call->ttl = ttl;
	call->sent = call->whole = false;
	call->asked = 0;
	call->lock = memcpy(place, lock, lf_lock_size(lock));
	call->value = (LfLockValue *) (place + lock_size);
	lf_lock_value_copy(call->value, value);
	call->instead = NULL;
	if (instead != NULL)
	{
		call->instead = (LfLockValue *) (place + lock_size + value_size);
		lf_lock_value_copy(call->instead, instead);
	}
	return call;
}

void
lf_coordinator_ask(LfLockCall kind, const LfLock *lock, const LfLockValue *value,
				   const LfLockValue *instead, int64 ttl, uint64 id, LfLockCallback done)
{
	LfServer   *server = lf_server_of(lock->server);
	ScriptCall *call = make_call(kind, lock, value, instead, ttl, id, done);

	server->queue++;
	server->status_changed = true;
	if (server->ready)
		send_script(server, call);
	else if (lf_server_refusal(server) != NULL)
		dlist_push_tail(&refused, &call->head.node);
	else
		dlist_push_tail(&server->unsent, &call->head.node);
}

void
lf_call_send_unsent(LfServer *server)
{
	while (server->ready && !dlist_is_empty(&server->unsent))
	{
		dlist_node *node = dlist_pop_head_node(&server->unsent);

		send_script(server, dlist_container(ScriptCall, head.node, node));
	}
}

/*
 * Whom a callback makes ask again comes in the next pass; and so does, at once, who
 * has heard of it now, when this pass was at the requests already.
 */
void
lf_call_tell_refused(LfClock *next)
{
	dlist_head	now = DLIST_STATIC_INIT(now);

	if (!dlist_is_empty(&refused))
		*next = lf_clock_now();
	while (!dlist_is_empty(&refused))
		dlist_push_tail(&now, dlist_pop_head_node(&refused));
	while (!dlist_is_empty(&now))
	{
		ScriptCall *call = dlist_container(ScriptCall, head.node, dlist_pop_head_node(&now));
		const char *problem = lf_server_refusal(lf_server_of(call->lock->server));

		tell_unknown(call, problem == NULL ? "it was not connected" : problem);
	}
}
