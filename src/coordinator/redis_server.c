/*
 * redis_server.c
 *		The Redis servers that this database's leases need.
 *
 * Runs in workers.  A server is connected to when somebody asks something of it
 * or listens to it, greeted (user, database, which server it is, whether it is a
 * master), and asked once a second how it is, which also shows that it is there.
 *
 * What must end well: a server that is not there, or is another one than before
 * (who holds its locks is not known any more), or was demoted; a definition that
 * is altered or dropped; lease_fence.coordinators turned off.  A failure is one
 * line in the log, and one when it is over, and no busy loop.
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/settings.h"
#include "base/transaction.h"
#include "common/pg_prng.h"
#include "coordinator/redis_script.h"
#include "coordinator/redis_server.h"
#include "foreign/foreign.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

/* Microseconds. */
#define RETRY_FIRST		INT64CONST(100000)
#define RETRY_LONGEST	INT64CONST(1000000)
#define UNUSED_LIMIT	INT64CONST(60000000)

#define NO_DEFINITION "there is no such server, or its options cannot be used"

static dlist_head servers = DLIST_STATIC_INIT(servers);
static MemoryContext context = NULL;
static const LfCoordinatorEvents *events = NULL;
static bool callback_registered = false;

/* ---- the list ---- */

MemoryContext
lf_server_context(void)
{
	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "lease_fence servers",
										ALLOCSET_DEFAULT_SIZES);
	return context;
}

dlist_head *
lf_server_all(void)
{
	return &servers;
}

const LfCoordinatorEvents *
lf_server_events(void)
{
	return events;
}

void
lf_coordinator_install(const LfCoordinatorEvents *wanted)
{
	events = wanted;
}

static void take_reply(LfConnection *connection, const redisReply *reply);

static void
definition_changed(Datum arg, int cache, uint32 hash)
{
	dlist_iter	iter;

	dlist_foreach(iter, &servers)
		lf_server_of_node(iter.cur)->changed = true;
}

LfServer *
lf_server_of(Oid oid)
{
	LfServer   *server;
	dlist_iter	iter;

	dlist_foreach(iter, &servers)
	{
		if (lf_server_of_node(iter.cur)->oid == oid)
			return lf_server_of_node(iter.cur);
	}
	if (!callback_registered)
	{
		CacheRegisterSyscacheCallback(FOREIGNSERVEROID, definition_changed, (Datum) 0);
		CacheRegisterSyscacheCallback(USERMAPPINGOID, definition_changed, (Datum) 0);
		callback_registered = true;
	}
	server = MemoryContextAllocZero(lf_server_context(), sizeof(LfServer));
	server->oid = oid;
	server->changed = true;
	server->used_at = lf_clock_now();
	server->connection.owner = server;
	server->connection.options = &server->options;
	server->connection.reply = take_reply;
	server->place = lf_redis_status_place(oid);
	if (server->place >= 0)
		lf_redis_status_read(server->place, &server->status);
	server->status.connected = server->status.hints = false;
	server->status.database = MyDatabaseId;
	server->status.server = oid;
	dlist_init(&server->sent);
	dlist_init(&server->unsent);
	dlist_push_tail(&servers, &server->node);
	return server;
}

const char *
lf_server_refusal(LfServer *server)
{
	if (!lf_coordinators)
		return "lease_fence.coordinators is off";
	if (server->changed && !server->defined)
		return NULL;			/* its definition is about to be read */
	if (!server->defined)
		return NO_DEFINITION;
	if (server->failing ||
		(server->connection.state == LF_CONNECTION_CLOSED &&
		 server->failures > 0 && lf_clock_now() < server->status.retry_at))
		return server->status.last_error;
	return NULL;
}

/* ---- what the view shows ---- */

void
lf_server_note_error(LfServer *server, const char *problem)
{
	strlcpy(server->status.last_error, problem, sizeof(server->status.last_error));
	server->status.last_error_at = GetCurrentTimestamp();
	server->status_changed = true;
}

/*
 * It does what it is asked, not only let us in: one that fails at each call would
 * be tried ten times a second otherwise, with a line in the log each time.
 */
void
lf_server_note_recovered(LfServer *server)
{
	if (server->failures > 0)
		ereport(LOG,
				(errmsg("lease_fence: server \"%s\" is available", server->options.name)));
	server->failures = 0;
}

void
lf_server_note_success(LfServer *server)
{
	lf_server_note_recovered(server);
	server->succeeded = server->status_changed = true;	/* the time comes once a pass */
}

static void
show_status(LfServer *server)
{
	if (!server->status_changed || server->place < 0)
		return;
	if (server->succeeded)
		server->status.last_success = GetCurrentTimestamp();
	server->succeeded = false;
	server->status.queue = server->queue;
	server->status.hints = server->hints_heard;
	strlcpy(server->status.name, server->options.name, sizeof(server->status.name));
	lf_redis_status_write(server->place, &server->status);
	server->status_changed = false;
}

/* ---- failing ---- */

static void
fail_calls(LfServer *server, dlist_head *calls)
{
	while (!dlist_is_empty(calls))
	{
		dlist_node *node = dlist_pop_head_node(calls);
		LfRedisCall *call = dlist_container(LfRedisCall, node, node);

		call->replied(server, call, NULL);
	}
}

static void
set_retry(LfServer *server)
{
	int64		delay = RETRY_FIRST << Min(server->failures, 8);

	server->failures++;
	delay = Min(delay, RETRY_LONGEST);
	delay = (int64) (delay * (0.75 + 0.5 * pg_prng_double(&pg_global_prng_state)));
	server->status.retry_at = lf_clock_after(lf_clock_now(), delay);
}

/*
 * Whom a callback makes ask again meanwhile is refused: the lists that are told
 * get no longer.
 */
void
lf_server_fail(LfServer *server, const char *problem)
{
	bool		news = server->failures == 0;

	if (server->failing)
		return;
	server->failing = true;
	server->ready = server->beaten = false;
	server->status.connected = false;
	lf_server_note_error(server, problem);
	if (news && server->defined)
		ereport(LOG,
				(errmsg("lease_fence: server \"%s\" is not available: %s",
						server->options.name, server->status.last_error)));
	lf_connection_close(&server->connection, NULL);	/* told: receive() has nothing to add */
	lf_hint_close(server, NULL);
	set_retry(server);
	fail_calls(server, &server->sent);
	fail_calls(server, &server->unsent);
	server->failing = false;
}

/*
 * It is another one than before, or no master any more: what was known of its
 * locks is not true any longer.
 */
void
lf_server_note_lost(LfServer *server)
{
	if (server->status.run_id[0] == '\0')
		return;
	server->status.run_id[0] = '\0';
	server->status_changed = true;
	if (events != NULL)
		events->lost(server->oid);
}

/* ---- talking ---- */

void
lf_server_send(LfServer *server, LfRedisCall *call, int argc, const char **argv,
			   const size_t *lengths)
{
	dlist_push_tail(&server->sent, &call->node);
	lf_connection_send(&server->connection, argc, argv, lengths);
	server->status_changed = true;
}

static void
take_reply(LfConnection *connection, const redisReply *reply)
{
	LfServer   *server = connection->owner;
	LfRedisCall *call;

	if (dlist_is_empty(&server->sent))
	{
		lf_server_fail(server, "a reply that nobody asked for");
		return;
	}
	call = dlist_container(LfRedisCall, node, dlist_pop_head_node(&server->sent));
	call->replied(server, call, reply);
}

/* ---- definitions ---- */

typedef struct Definition
{
	Oid			oid;
	LfRedisOptions options;
	bool		there;
} Definition;

static void
read_definition(void *arg)
{
	Definition *definition = arg;

	lf_redis_script_prepare();
	definition->there = lf_redis_options_read(definition->oid, &definition->options);
}

static void
drop(LfServer *server)
{
	lf_server_fail(server, NO_DEFINITION);
	server->defined = false;
	if (server->place >= 0)
		lf_redis_status_free(server->place);
	server->place = -1;
}

static void
define(LfServer *server, const LfRedisOptions *options)
{
	/* NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): see LfRedisOptions */
	if (server->defined && memcmp(&server->options, options, sizeof(LfRedisOptions)) == 0)
		return;
	if (server->place < 0)
		server->place = lf_redis_status_place(server->oid);
	if (server->connection.state != LF_CONNECTION_CLOSED)
		lf_server_fail(server, "its definition has changed");
	server->options = *options;
	server->defined = true;
	server->failures = 0;
	server->status.retry_at = 0;
	server->status_changed = true;
}

static void
refresh(LfServer *server)
{
	Definition	definition = {server->oid};
	XLogRecPtr	end;
	char	   *problem;

	server->changed = false;	/* before reading: what arrives meanwhile sets it */
	if (!lf_transaction_try("reading the definition of a server", read_definition,
							&definition, &end, &problem))
	{
		server->changed = true;
		server->refresh_at = lf_clock_now() + RETRY_LONGEST;
		if (!server->defined)
			lf_server_fail(server, problem);
	}
	else if (definition.there)
		define(server, &definition.options);
	else
		drop(server);
}

void
lf_coordinator_refresh(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &servers)
	{
		LfServer   *server = lf_server_of_node(iter.cur);

		if (server->changed && lf_clock_now() >= server->refresh_at)
			refresh(server);
	}
}

void
lf_coordinator_disconnect(const char *reason)
{
	dlist_iter	iter;

	dlist_foreach(iter, &servers)
	{
		LfServer   *server = lf_server_of_node(iter.cur);

		if (server->connection.state != LF_CONNECTION_CLOSED)
			lf_server_fail(server, reason);
	}
}

/* ---- a pass ---- */

/*
 * One that broke off is wanted back although nobody asks: it may be another one
 * than before, or no master any more, and leases of it may be live.
 */
static bool
is_needed(const LfServer *server)
{
	return lf_coordinators && server->defined &&
		(server->interests > 0 || !dlist_is_empty((dlist_head *) &server->unsent) ||
		 (server->failures > 0 && lf_clock_now() - server->used_at < UNUSED_LIMIT));
}

/* Nobody has asked anything for long, nor listens. */
static void
close_unused(LfServer *server)
{
	if (server->interests > 0 || !dlist_is_empty(&server->sent) ||
		lf_clock_now() - server->used_at < UNUSED_LIMIT)
		return;
	server->ready = server->status.connected = false;
	server->status_changed = true;
	lf_hint_close(server, NULL);
	lf_connection_close(&server->connection, NULL);
}

static void
receive(LfServer *server, LfClock *next)
{
	LfConnection *connection = &server->connection;
	bool		was_open = connection->state == LF_CONNECTION_OPEN;

	server->beaten = false;
	if (connection->state == LF_CONNECTION_CLOSED)
		return;
	if (!lf_coordinators)
		lf_server_fail(server, "lease_fence.coordinators is off");
	else if (!lf_connection_receive(connection, next))
	{
		/* a reply may have ended it, and told why */
		if (connection->problem[0] != '\0')
			lf_server_fail(server, pstrdup(connection->problem));
	}
	else if (!was_open && connection->state == LF_CONNECTION_OPEN)
		lf_greet(server);
	if (server->ready)
		lf_greet_beat(server, next);
	if (server->ready)
		close_unused(server);
}

void
lf_coordinator_receive(LfClock *next)
{
	dlist_iter	iter;

	lf_call_tell_refused(next);
	dlist_foreach(iter, &servers)
	{
		LfServer   *server = lf_server_of_node(iter.cur);

		receive(server, next);
		lf_hint_receive(server, next);
	}
	lf_hint_forget_unused();
}

static void
open_if_needed(LfServer *server, LfClock *next)
{
	if (server->connection.state != LF_CONNECTION_CLOSED || !is_needed(server))
		return;
	if (server->failures > 0 && lf_clock_now() < server->status.retry_at)
	{
		*next = Min(*next, server->status.retry_at);
		return;
	}
	lf_connection_open(&server->connection);
	*next = lf_clock_now();		/* it may be connected, or fail, at once */
}

void
lf_coordinator_flush(LfClock *next)
{
	dlist_iter	iter;

	dlist_foreach(iter, &servers)
	{
		LfServer   *server = lf_server_of_node(iter.cur);

		open_if_needed(server, next);
		if (server->connection.state == LF_CONNECTION_OPEN &&
			!lf_connection_flush(&server->connection))
		{
			lf_server_fail(server, pstrdup(server->connection.problem));
			*next = lf_clock_now(); /* who waited knows by now */
		}
		lf_hint_flush(server, next);
		show_status(server);
	}
	lf_call_tell_refused(next);
}

bool
lf_coordinator_only_beats(void)
{
	bool		beaten = false;
	dlist_iter	iter;

	dlist_foreach(iter, &servers)
	{
		LfServer   *server = lf_server_of_node(iter.cur);

		if (server->queue > 0)
			return false;
		beaten = beaten || server->beaten;
	}
	return beaten;
}

int
lf_coordinator_sockets(LfSocket *sockets)
{
	int			number = 0;
	dlist_iter	iter;

	dlist_foreach(iter, &servers)
	{
		LfServer   *server = lf_server_of_node(iter.cur);

		if (number + 2 > LF_MAX_SOCKETS)
			break;
		if (lf_connection_socket(&server->connection, &sockets[number]))
			number++;
		if (lf_connection_socket(&server->hints, &sockets[number]))
			number++;
	}
	return number;
}
