/*
 * redis_hint.c
 *		Events of a Redis server about locks that somebody here listens to.
 *
 * Runs in workers.  On a connection of its own, for a connection that has
 * subscribed can do nothing else.  A hint is only that: it says where to look.
 * One that is late, doubled or missing costs a look, or some time, and no more.
 *
 * What must end well: a server that lets us subscribe to nothing (said once, we
 * look by ourselves), one that cut us off or is silent (connected anew, and all
 * is looked at), a name with whatever bytes (channels are subscribed to by their
 * exact name, never by a pattern).
 */
#include "postgres.h"

#include "base/compat.h"
#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "coordinator/redis_server.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#define RETRY_APART		INT64CONST(1000000)

/*
 * A lock that nobody listens to any more is not unsubscribed from at once: the
 * next lease of it comes soon, as a rule.
 */
#define UNUSED_LIMIT	INT64CONST(10000000)

#define REDISSON_CHANNEL "redisson_lock__channel:"

/*
 * By a hash that nobody can foresee: of two locks with the same one the later is
 * not listened to, and looked at by the clock alone.
 */
typedef struct Interest
{
	uint64		hash;
	int			count;
	LfClock		unused_since;
	LfLock	   *lock;
} Interest;

static HTAB *interests = NULL;
static uint64 hash_seed = 0;
static LfClock forget_at = 0;

/* ---- channels ---- */

static void
send_one(LfServer *server, const char *command, const char *channel, size_t length)
{
	const char *argv[] = {command, channel};
	size_t		lengths[] = {strlen(command), length};

	lf_connection_send(&server->hints, 2, argv, lengths);
}

/* Prefix, key, suffix. */
static void
send_channel(LfServer *server, const char *command, const char *prefix,
			 const LfLock *lock, const char *suffix)
{
	char		channel[LF_LOCK_KEY_MAX + 64];
	size_t		length = strlen(prefix);

	memcpy(channel, prefix, length);
	memcpy(channel + length, lock->key, lock->key_length);
	length += lock->key_length;
	memcpy(channel + length, suffix, strlen(suffix));
	send_one(server, command, channel, length + strlen(suffix));
}

/* Redisson puts braces around a name that has none. */
static void
send_channels(LfServer *server, const char *command, const LfLock *lock)
{
	char		prefix[40];
	bool		has_brace = memchr(lock->key, '{', lock->key_length) != NULL;

	snprintf(prefix, sizeof(prefix), "__keyspace@%d__:", server->options.db);
	send_channel(server, command, prefix, lock, "");
	if (lock->shape == LF_SHAPE_REDISSON)
		send_channel(server, command,
					 has_brace ? REDISSON_CHANNEL : REDISSON_CHANNEL "{",
					 lock, has_brace ? "" : "}");
}

/* ---- who listens ---- */

static Interest *
interest_of(const LfLock *lock, bool create, bool *is_new)
{
	uint64		hash;

	if (interests == NULL)
	{
		HASHCTL		control = {.keysize = sizeof(uint64), .entrysize = sizeof(Interest),
		.hcxt = lf_server_context()};

		hash_seed = pg_prng_uint64(&pg_global_prng_state);
		interests = hash_create("lease_fence interests", 256, &control,
								HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	hash = hash_bytes_extended((const unsigned char *) lock->key, lock->key_length,
							   hash_seed ^ lock->server);
	return hash_search(interests, &hash, create ? HASH_ENTER : HASH_FIND, is_new);
}

void
lf_coordinator_listen(const LfLock *lock)
{
	LfServer   *server = lf_server_of(lock->server);
	Interest   *interest;
	bool		found;

	if (!lock->watch)
		return;
	interest = interest_of(lock, true, &found);
	if (!found)
	{
		interest->count = 0;
		interest->lock = lf_lock_copy(lf_server_context(), lock);
		server->interests++;
		if (server->hints_greeted)
			send_channels(server, "SUBSCRIBE", lock);
	}
	interest->count++;
}

void
lf_coordinator_unlisten(const LfLock *lock)
{
	Interest   *interest;

	if (!lock->watch)
		return;
	interest = interest_of(lock, false, NULL);
	if (interest != NULL && interest->count > 0 && --interest->count == 0)
		interest->unused_since = lf_clock_now();
}

void
lf_hint_forget_unused(void)
{
	HASH_SEQ_STATUS scan;
	Interest   *interest;
	LfClock		now = lf_clock_now();

	if (interests == NULL || now < forget_at)
		return;
	forget_at = now + UNUSED_LIMIT / 2;
	hash_seq_init(&scan, interests);
	while ((interest = hash_seq_search(&scan)) != NULL)
	{
		LfServer   *server;

		if (interest->count > 0 || now - interest->unused_since < UNUSED_LIMIT)
			continue;
		server = lf_server_of(interest->lock->server);
		if (server->hints_greeted)
			send_channels(server, "UNSUBSCRIBE", interest->lock);
		server->interests--;
		pfree(interest->lock);
		hash_search(interests, &interest->hash, HASH_REMOVE, NULL);
	}
}

static void
subscribe_all(LfServer *server)
{
	HASH_SEQ_STATUS scan;
	Interest   *interest;

	if (interests == NULL)
		return;
	hash_seq_init(&scan, interests);
	while ((interest = hash_seq_search(&scan)) != NULL)
	{
		if (interest->lock->server == server->oid)
			send_channels(server, "SUBSCRIBE", interest->lock);
	}
}

/* ---- what Redis says ---- */

static void
hint(LfServer *server, const char *key, int length)
{
	if (lf_server_events() != NULL && length > 0)
		lf_server_events()->hint(server->oid, key, length);
}

/*
 * From here on we hear of what happens to a lock: what happened between the last
 * look and now nobody told us, so that we are subscribed is a hint, too.
 *
 * "expire" is what our own renewals look like, ten thousand of them a second;
 * and who prolongs a lock of his own is seen when it is looked at next.
 */
static void
take_message(LfServer *server, const redisReply *channel, const redisReply *event)
{
	const char *name = channel->str;
	const char *colon;

	if (strncmp(name, REDISSON_CHANNEL, strlen(REDISSON_CHANNEL)) == 0)
	{
		const char *key = name + strlen(REDISSON_CHANNEL);
		int			length = channel->len - strlen(REDISSON_CHANNEL);

		if (length > 2 && key[0] == '{' && key[length - 1] == '}')
			hint(server, key + 1, length - 2);
		hint(server, key, length);
		return;
	}
	colon = memchr(name, ':', channel->len);
	if (colon == NULL || (event->type == REDIS_REPLY_STRING && strcmp(event->str, "expire") == 0))
		return;
	hint(server, colon + 1, channel->len - (colon + 1 - name));
}

/* The answer to PING comes after those to all that was subscribed to before. */
static void
take_pong(LfServer *server)
{
	if (!server->hints_fresh)
		return;
	server->hints_fresh = false;
	if (lf_server_events() != NULL)
		lf_server_events()->ready(server->oid);
}

/*
 * Events come from the answer to SUBSCRIBE on: what happened to the lock between
 * the look before and then is found by one more; when all is looked at anyway,
 * by that.
 */
static void
take_subscription(LfServer *server, const redisReply *channel, const redisReply *count)
{
	server->hints_heard = server->status_changed = true;
	if (!server->hints_fresh)
		take_message(server, channel, count);
}

static bool
is_about_channel(const redisReply *reply, const char *kind)
{
	return reply->type == REDIS_REPLY_ARRAY && reply->elements == 3 &&
		reply->element[0]->type == REDIS_REPLY_STRING &&
		reply->element[1]->type == REDIS_REPLY_STRING &&
		strcmp(reply->element[0]->str, kind) == 0;
}

static void
take_reply(LfConnection *connection, const redisReply *reply)
{
	LfServer   *server = connection->owner;

	if (lf_reply_is_error(reply, "NOPERM"))
		lf_server_note_error(server, lf_reply_error(reply));
	else if (reply->type == REDIS_REPLY_ERROR)
	{
		/* it may be the answer to AUTH */
		lf_server_note_error(server, server->options.password[0] == '\0' ?
							 lf_reply_error(reply) : lf_reply_auth_error(reply));
		lf_hint_close(server, server->status.last_error);
	}
	else if (reply->type == REDIS_REPLY_STATUS && strcmp(reply->str, "PONG") == 0)
		take_pong(server);
	else if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
			 reply->element[0]->type == REDIS_REPLY_STRING &&
			 strcmp(reply->element[0]->str, "pong") == 0)
		take_pong(server);
	else if (is_about_channel(reply, "message"))
		take_message(server, reply->element[1], reply->element[2]);
	else if (is_about_channel(reply, "subscribe"))
		take_subscription(server, reply->element[1], reply->element[2]);
}

/* ---- the connection ---- */

void
lf_hint_close(LfServer *server, const char *problem)
{
	lf_connection_close(&server->hints, problem);
	server->hints_greeted = server->hints_heard = false;
	server->hints_retry_at = problem == NULL ? 0 : lf_clock_now() + RETRY_APART;
	server->status_changed = true;
}

static void
fail(LfServer *server)
{
	if (server->hints.problem[0] != '\0')
		lf_server_note_error(server, server->hints.problem);
	lf_hint_close(server, "failed");
}

static void
ping(LfServer *server)
{
	const char *argv[] = {"PING"};
	size_t		lengths[] = {4};

	lf_connection_send(&server->hints, 1, argv, lengths);
}

void
lf_hint_beat(LfServer *server)
{
	if (server->hints_greeted)
		ping(server);
}

static void
greet(LfServer *server)
{
	const char *argv[3];
	size_t		lengths[3];
	int			argc = lf_greet_auth(&server->options, argv);

	for (int i = 0; i < argc; i++)
		lengths[i] = strlen(argv[i]);
	if (argc > 0)
		lf_connection_send(&server->hints, argc, argv, lengths);
	server->hints_greeted = true;
	server->hints_fresh = true;
	server->status_changed = true;
	subscribe_all(server);
	ping(server);
}

void
lf_hint_receive(LfServer *server, LfClock *next)
{
	LfConnection *connection = &server->hints;

	if (connection->state == LF_CONNECTION_CLOSED)
		return;
	if (!lf_connection_receive(connection, next))
	{
		fail(server);
		return;
	}
	if (connection->state != LF_CONNECTION_OPEN)
		return;
	if (!server->hints_greeted)
		greet(server);
}

void
lf_hint_flush(LfServer *server, LfClock *next)
{
	LfConnection *connection = &server->hints;

	if (connection->state == LF_CONNECTION_CLOSED && server->ready &&
		server->interests > 0 && lf_clock_now() >= server->hints_retry_at)
	{
		connection->owner = server;
		connection->options = &server->options;
		connection->reply = take_reply;
		lf_connection_open(connection);
		*next = lf_clock_now();
	}
	if (connection->state == LF_CONNECTION_OPEN && !lf_connection_flush(connection))
		fail(server);
}
