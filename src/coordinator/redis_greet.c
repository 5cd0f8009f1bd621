/*
 * redis_greet.c
 *		What a Redis server is asked about itself, first of all and once a second.
 *
 * Runs in workers.  User and database; which server it is, and whether it is a
 * master; whether it evicts; and events are turned on where they are wanted.
 *
 * What must end well: a server that answers any of it with an error (it is of no
 * use, but where that is only a pity), one that repeats a password, or sends
 * bytes that no encoding knows.
 */
#include "postgres.h"

#include "coordinator/redis_server.h"
#include "utils/memutils.h"

#define BEAT_APART		INT64CONST(1000000) /* microseconds */

/* So many beats between two looks at what changes seldom. */
#define BEATS_PER_LOOK	10

/* ---- errors that Redis replies ---- */

bool
lf_reply_is_error(const redisReply *reply, const char *word)
{
	size_t		length = strlen(word);

	return reply->type == REDIS_REPLY_ERROR && reply->len > length &&
		strncmp(reply->str, word, length) == 0 && reply->str[length] == ' ';
}

/*
 * What Redis says may be any bytes, and ends up in views, messages and the log,
 * which want this database's encoding.
 */
static void
make_printable(char *text)
{
	for (char *byte = text; *byte != '\0'; byte++)
	{
		if (*byte < ' ' || *byte > '~')
			*byte = '?';
	}
}

const char *
lf_reply_error(const redisReply *reply)
{
	static char text[LF_LOCK_PROBLEM_LENGTH];

	strlcpy(text, reply->str[0] != '\0' ? reply->str : "an error without a text", sizeof(text));
	make_printable(text);
	return text;
}

/*
 * Of AUTH.  A server that does not know the command (it can be renamed) repeats
 * its arguments in the error, password and all.
 */
const char *
lf_reply_auth_error(const redisReply *reply)
{
	static const char *const known[] = {"WRONGPASS ", "NOPERM ", "NOAUTH ", "LOADING ",
		"ERR AUTH <password> called without any password",
	"ERR Client sent AUTH, but no password is set", "ERR max number of clients reached"};

	for (int i = 0; i < lengthof(known); i++)
	{
		if (strncmp(reply->str, known[i], strlen(known[i])) == 0)
			return lf_reply_error(reply);
	}
	return "AUTH was refused";
}

/* ---- questions ---- */

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
			make_printable(value);
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
		lf_server_fail(server, lf_reply_error(reply));
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

static void
replied_auth(LfServer *server, LfRedisCall *call, const redisReply *reply)
{
	if (reply != NULL && reply->type == REDIS_REPLY_ERROR)
	{
		pfree(call);
		lf_server_fail(server, lf_reply_auth_error(reply));
		return;
	}
	(void) is_text(server, call, reply);
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
	lf_server_note_lost(server);
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
		lf_server_note_lost(server);
		lf_server_fail(server, "it is a replica");
	}
	else if (server->ready && server->beats > 0)
		lf_server_note_recovered(server);
}

void
lf_greet_ask_role(LfServer *server)
{
	send_info(server, "replication", replied_role);
}

static void
warn(LfServer *server, const char *warning)
{
	if (strcmp(server->status.warning, warning) == 0)
		return;
	strlcpy(server->status.warning, warning, sizeof(server->status.warning));
	server->status_changed = true;
	if (warning[0] != '\0')
		ereport(LOG,
				(errmsg("lease_fence: server \"%s\": %s", server->options.name, warning)));
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

/* The server may not let us: then there are no events, and we look by ourselves. */
static void
replied_to_set_events(LfServer *server, LfRedisCall *call, const redisReply *reply)
{
	pfree(call);
	if (reply != NULL && reply->type == REDIS_REPLY_ERROR)
		lf_server_note_error(server, lf_reply_error(reply));
}

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
		send_words(server, replied_to_set_events, lengthof(argv), argv);
}

/* As of the other one: that it refuses is noted. */
static void
replied_events(LfServer *server, LfRedisCall *call, const redisReply *reply)
{
	pfree(call);
	if (reply == NULL)
		return;
	if (reply->type == REDIS_REPLY_ERROR)
		lf_server_note_error(server, lf_reply_error(reply));
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
	server->ready = true;
	server->status.connected = true;
	server->status_changed = true;
	server->beat_at = lf_clock_now() + BEAT_APART;
	server->beats = 0;
	lf_call_send_unsent(server);
	if (lf_server_events() != NULL)
		lf_server_events()->ready(server->oid);
}

/* The name is left out where there is none: the default user's password. */
int
lf_greet_auth(const LfRedisOptions *options, const char **argv)
{
	int			argc = 0;

	if (options->password[0] == '\0')
		return 0;
	argv[argc++] = "AUTH";
	if (options->username[0] != '\0')
		argv[argc++] = options->username;
	argv[argc++] = options->password;
	return argc;
}

void
lf_greet(LfServer *server)
{
	const LfRedisOptions *options = &server->options;
	const char *auth[3];
	int			auth_words = lf_greet_auth(options, auth);
	const char *get_events[] = {"CONFIG", "GET", "notify-keyspace-events"};
	char		db[12];
	const char *select[] = {"SELECT", db};

	if (auth_words > 0)
		send_words(server, replied_auth, auth_words, auth);
	snprintf(db, sizeof(db), "%d", options->db);
	if (options->db != 0)
		send_words(server, replied_ok, lengthof(select), select);
	if (options->set_events)
		send_words(server, replied_events, lengthof(get_events), get_events);
	send_info(server, "memory", replied_memory);
	send_info(server, "server", replied_run_id);
	lf_greet_ask_role(server);
	send_info(server, "server", replied_ready);
}

void
lf_greet_beat(LfServer *server, LfClock *next)
{
	LfClock		now = lf_clock_now();

	if (now >= server->beat_at)
	{
		lf_greet_ask_role(server);
		if (++server->beats % BEATS_PER_LOOK == 0)
			send_info(server, "memory", replied_memory);
		lf_hint_beat(server);
		server->beat_at = now + BEAT_APART;
		server->beaten = true;
	}
	*next = Min(*next, server->beat_at);
}
