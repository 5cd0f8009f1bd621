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
#define BEAT_APART		INT64CONST(1000000)
#define RETRY_FIRST		INT64CONST(100000)
#define RETRY_LONGEST	INT64CONST(1000000)
#define UNUSED_LIMIT	INT64CONST(60000000)

/* So many beats between two looks at what changes seldom. */
#define BEATS_PER_LOOK	10

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

/*
 * What a server says comes into views, into the log and to clients: as ASCII
 * that can be printed, since it may be in any encoding or in none.
 */
static void
copy_printable(char *target, Size size, const char *text)
{
	Size		length;

	for (length = 0; text[length] != '\0' && length + 1 < size; length++)
		target[length] = text[length] < ' ' || text[length] > '~' ? '?' : text[length];
	target[length] = '\0';
}

void
lf_server_note_error(LfServer *server, const char *problem)
{
	copy_printable(server->status.last_error, sizeof(server->status.last_error), problem);
	server->status.last_error_at = GetCurrentTimestamp();
	server->status_changed = true;
}

void
lf_server_note_success(LfServer *server)
{
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
	server->status.hints = server->hints_greeted;
	strlcpy(server->status.name, server->options.name, sizeof(server->status.name));
	lf_redis_status_write(server->place, &server->status);
	server->status_changed = false;
}

static void
warn(LfServer *server, const char *warning)
{
	char		printable[sizeof(server->status.warning)];

	copy_printable(printable, sizeof(printable), warning);
	if (strcmp(server->status.warning, printable) == 0)
		return;
	strcpy(server->status.warning, printable);
	server->status_changed = true;
	if (printable[0] != '\0')
		ereport(LOG,
				(errmsg("lease_fence: server \"%s\": %s", server->options.name, printable)));
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
	server->ready = false;
	server->status.connected = false;
	lf_server_note_error(server, problem);
	if (news && server->defined)
		ereport(LOG,
				(errmsg("lease_fence: server \"%s\" is not available: %s",
						server->options.name, server->status.last_error)));
	lf_connection_close(&server->connection, problem);
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
static void
note_lost(LfServer *server)
{
	if (server->status.run_id[0] == '\0')
		return;
	server->status.run_id[0] = '\0';
	server->status_changed = true;
	if (events != NULL)
		events->lost(server->oid);
}

/* ---- commands of our own ---- */

void
lf_server_send(LfServer *server, LfRedisCall *call, int argc, const char **argv,
			   const size_t *lengths)
{
	dlist_push_tail(&server->sent, &call->node);
	lf_connection_send(&server->connection, argc, argv, lengths, 1);
	server->status_changed = true;
}

bool
lf_reply_is_error(const redisReply *reply, const char *word)
{
	size_t		length = strlen(word);

	return reply->type == REDIS_REPLY_ERROR && reply->len > length &&
		strncmp(reply->str, word, length) == 0 && reply->str[length] == ' ';
}

static void
send_words(LfServer *server, void (*replied) (LfServer *, LfRedisCall *, const redisReply *),
		   int argc, const char **argv)
{
	LfRedisCall *call = MemoryContextAlloc(lf_server_context(), sizeof(LfRedisCall));
	size_t		lengths[4];

	for (int i = 0; i < argc; i++)
		lengths[i] = strlen(argv[i]);
	call->replied = replied;
	lf_server_send(server, call, argc, argv, lengths);
}

static void
send_info(LfServer *server, const char *section,
		  void (*replied) (LfServer *, LfRedisCall *, const redisReply *))
{
	const char *argv[] = {"INFO", section};

	send_words(server, replied, lengthof(argv), argv);
}

/* Copies the value of a line "name:value"; false if there is none. */
static bool
info_value(const redisReply *reply, const char *name, char *value, Size size)
{
	const char *line = reply->str;
	size_t		length = strlen(name);

	while (line != NULL)
	{
		if (strncmp(line, name, length) == 0 && line[length] == ':')
		{
			const char *text = line + length + 1;

			strlcpy(value, text, Min(size, strcspn(text, "\r\n") + 1));
			return true;
		}
		line = strchr(line, '\n');
		line = line == NULL ? NULL : line + 1;
	}
	return false;
}

/* A reply that must be text; false: the call is over, the server failed. */
static bool
is_text(LfServer *server, LfRedisCall *call, const redisReply *reply)
{
	pfree(call);
	if (reply == NULL)
		return false;
	if (reply->type == REDIS_REPLY_ERROR)
	{
		lf_server_fail(server, reply->str);
		return false;
	}
	if (reply->type != REDIS_REPLY_STRING && reply->type != REDIS_REPLY_STATUS)
	{
		lf_server_fail(server, "a reply is not what was asked for");
		return false;
	}
	return true;
}

static void
replied_ok(LfServer *server, LfRedisCall *call, const redisReply *reply)
{
	(void) is_text(server, call, reply);
}

/*
 * A server that does not know AUTH (renamed, or not quite a Redis) repeats the
 * command in its answer, password and all: only answers that are known not to
 * do that are shown.
 */
const char *
lf_reply_auth_problem(const redisReply *reply)
{
	static const char *const harmless[] = {
		"WRONGPASS ", "NOAUTH ", "NOPERM ", "LOADING ", "MASTERDOWN ", "DENIED ",
		"ERR AUTH <password> called without", "ERR Client sent AUTH",
		"ERR invalid password", "ERR wrong number of arguments",
		"ERR max number of clients"
	};

	for (int i = 0; i < lengthof(harmless); i++)
	{
		if (strncmp(reply->str, harmless[i], strlen(harmless[i])) == 0)
			return reply->str;
	}
	return "AUTH was refused, with an answer that is not shown, for it may repeat the password";
}

static void
replied_auth(LfServer *server, LfRedisCall *call, const redisReply *reply)
{
	if (reply == NULL || reply->type != REDIS_REPLY_ERROR)
	{
		replied_ok(server, call, reply);
		return;
	}
	pfree(call);
	lf_server_fail(server, lf_reply_auth_problem(reply));
}

static void
replied_run_id(LfServer *server, LfRedisCall *call, const redisReply *reply)
{
	char		run_id[LF_RUN_ID_LENGTH];

	if (!is_text(server, call, reply))
		return;
	if (!info_value(reply, "run_id", run_id, sizeof(run_id)))
	{
		lf_server_fail(server, "INFO does not say which server it is");
		return;
	}
	if (strcmp(server->status.run_id, run_id) == 0)
		return;
	note_lost(server);
	strlcpy(server->status.run_id, run_id, sizeof(server->status.run_id));
	server->status_changed = true;
}

static void
replied_role(LfServer *server, LfRedisCall *call, const redisReply *reply)
{
	char		role[32];

	if (!is_text(server, call, reply))
		return;
	if (!info_value(reply, "role", role, sizeof(role)))
		lf_server_fail(server, "INFO does not say which role it has");
	else if (strcmp(role, "master") != 0)
	{
		note_lost(server);
		lf_server_fail(server, "it is a replica");
	}
}

void
lf_server_ask_role(LfServer *server)
{
	send_info(server, "replication", replied_role);
}

static void
replied_memory(LfServer *server, LfRedisCall *call, const redisReply *reply)
{
	char		policy[64];
	char		warning[256] = "";

	if (!is_text(server, call, reply))
		return;
	if (info_value(reply, "maxmemory_policy", policy, sizeof(policy)) &&
		strcmp(policy, "noeviction") != 0)
		snprintf(warning, sizeof(warning),
				 "maxmemory-policy is %s: locks can be evicted before they run out", policy);
	warn(server, warning);
}

/* ---- events ---- */

/* What they have and what we need: K events of generic commands, strings, ... */
static void
add_events(LfServer *server, const char *present)
{
	char		wanted[64];
	const char *argv[] = {"CONFIG", "SET", "notify-keyspace-events", wanted};

	strlcpy(wanted, present, sizeof(wanted) - 8);
	for (const char *flag = "Kg$hxe"; *flag != '\0'; flag++)
	{
		char		one[2] = {*flag, '\0'};

		if (strchr(wanted, *flag) == NULL && (*flag == 'K' || strchr(wanted, 'A') == NULL))
			strlcat(wanted, one, sizeof(wanted));
	}
	if (strcmp(wanted, present) != 0)
		send_words(server, replied_ok, lengthof(argv), argv);
}

/* The server may not let us: then there are no events, and we look by ourselves. */
static void
replied_events(LfServer *server, LfRedisCall *call, const redisReply *reply)
{
	pfree(call);
	if (reply == NULL)
		return;
	if (reply->type == REDIS_REPLY_ERROR)
		lf_server_note_error(server, reply->str);
	else if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
			 reply->element[1]->type == REDIS_REPLY_STRING)
		add_events(server, reply->element[1]->str);
}

/* ---- greeting ---- */

static void
replied_ready(LfServer *server, LfRedisCall *call, const redisReply *reply)
{
	if (!is_text(server, call, reply))
		return;
	if (server->failures > 0)
		ereport(LOG,
				(errmsg("lease_fence: server \"%s\" is available", server->options.name)));
	server->ready = true;
	server->failures = 0;
	server->status.connected = true;
	server->status_changed = true;
	server->beat_at = lf_clock_now() + BEAT_APART;
	server->beats = 0;
	lf_call_send_unsent(server);
	if (events != NULL)
		events->ready(server->oid);
}

static void
greet(LfServer *server)
{
	const LfRedisOptions *options = &server->options;
	const char *user[] = {"AUTH", options->username, options->password};
	const char *password[] = {"AUTH", options->password};
	const char *get_events[] = {"CONFIG", "GET", "notify-keyspace-events"};
	char		db[12];
	const char *select[] = {"SELECT", db};

	if (options->username[0] != '\0')
		send_words(server, replied_auth, lengthof(user), user);
	else if (options->password[0] != '\0')
		send_words(server, replied_auth, lengthof(password), password);
	snprintf(db, sizeof(db), "%d", options->db);
	if (options->db != 0)
		send_words(server, replied_ok, lengthof(select), select);
	if (options->set_events)
		send_words(server, replied_events, lengthof(get_events), get_events);
	send_info(server, "memory", replied_memory);
	send_info(server, "server", replied_run_id);
	lf_server_ask_role(server);
	send_info(server, "server", replied_ready);
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
	if (server->defined &&
		memcmp(&server->options, options, sizeof(LfRedisOptions)) == 0)
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

static bool
is_needed(const LfServer *server)
{
	return lf_coordinators && server->defined &&
		(server->interests > 0 || !dlist_is_empty((dlist_head *) &server->unsent));
}

static void
beat(LfServer *server, LfClock *next)
{
	LfClock		now = lf_clock_now();

	if (now >= server->beat_at)
	{
		lf_server_ask_role(server);
		if (++server->beats % BEATS_PER_LOOK == 0)
			send_info(server, "memory", replied_memory);
		server->beat_at = now + BEAT_APART;
	}
	*next = Min(*next, server->beat_at);
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
		greet(server);
	if (server->ready)
		beat(server, next);
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
	*next = lf_clock_now();		/* it may be connected, or have failed, at once */
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
			lf_server_fail(server, pstrdup(server->connection.problem));
		lf_hint_flush(server);
		show_status(server);
	}
	lf_call_tell_refused(next);
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
