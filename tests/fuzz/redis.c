/*
 * redis.c
 *		Everything that is made of what a Redis server sends: its answers to the
 *		greeting, to our scripts, and its messages about keys.
 *
 * The input: a byte that says what was sent well before (see OPTIONS), a byte
 * with how much comes at a time, and the bytes that Redis sends.  They go through
 * a socket, hiredis and redis_connection.c as everywhere.
 */
#include "coordinator/redis_server.c"

#include <sys/socket.h>
#include <unistd.h>

#include "common/cryptohash.h"
#include "storage/fd.h"
#include "stubs.h"

/* Bits of the first byte. */
#define GREETED			1		/* the greeting has been answered */
#define PASSWORD		2		/* there is one: then AUTH is answered first */
#define TO_HINTS		4		/* the bytes come on the hints' connection */
#define PONG			8		/* to the first PING; for a call, nonsense */

#define CALLS			6

static const char greeting[] =
"*2\r\n$22\r\nnotify-keyspace-events\r\n$6\r\nKg$hxe\r\n"
"$29\r\nmaxmemory_policy:noeviction\r\n\r\n"
"$10\r\nrun_id:1\r\n\r\n"
"$13\r\nrole:master\r\n\r\n"
"$10\r\nrun_id:1\r\n\r\n";

static int	asked;
static int	answered;

/* ---- what these files call ---- */

bool		lf_coordinators = true;
pg_prng_state pg_global_prng_state;

double
pg_prng_double(pg_prng_state *state)
{
	return 0.5;
}

TimestampTz
GetCurrentTimestamp(void)
{
	return 1;
}

void
CacheRegisterSyscacheCallback(int cache, SyscacheCallbackFunction function, Datum arg)
{
}

bool
AcquireExternalFD(void)
{
	return true;
}

void
ReleaseExternalFD(void)
{
}

/* Nothing can be connected to from here. */
bool
pg_set_noblock(pgsocket socket)
{
	return false;
}

int
lf_redis_status_place(Oid server)
{
	return -1;
}

void
lf_address_end(LfAddressLookup *lookup)
{
}

/* Scripts go by the hash of zeros. */
pg_cryptohash_ctx *
pg_cryptohash_create(pg_cryptohash_type type)
{
	return NULL;
}

int
pg_cryptohash_init(pg_cryptohash_ctx *hash)
{
	return 0;
}

int
pg_cryptohash_update(pg_cryptohash_ctx *hash, const uint8 *data, size_t length)
{
	return 0;
}

int
pg_cryptohash_final(pg_cryptohash_ctx *hash, uint8 *digest, size_t length)
{
	memset(digest, 0, length);
	return 0;
}

void
pg_cryptohash_free(pg_cryptohash_ctx *hash)
{
}

/* ---- what comes out ---- */

static void
take_answer(const LfLockQuestion *question, const LfLockAnswer *answer)
{
	answered++;
	FUZZ_CHECK(answer->state >= LF_LOCK_HELD && answer->state <= LF_LOCK_UNKNOWN);
	FUZZ_CHECK(answer->left >= -1);
	FUZZ_CHECK(answer->state != LF_LOCK_HELD || answer->left >= 0);
	FUZZ_CHECK(answer->left < INT64CONST(400) * 24 * 3600 * 1000000);
	FUZZ_CHECK((answer->state == LF_LOCK_UNKNOWN) == (answer->problem[0] != '\0'));
	FUZZ_CHECK(strlen(answer->problem) < sizeof(answer->problem));
	FUZZ_CHECK(question->lock->key_length == 3);
}

static void
take_event(Oid server)
{
	FUZZ_CHECK(server == 1);
}

static void
take_hint(Oid server, const char *key, int length)
{
	volatile char last;

	FUZZ_CHECK(server == 1 && length > 0);
	last = key[0];
	last = key[length - 1];
	(void) last;
}

static const LfCoordinatorEvents listeners = {take_event, take_event, take_hint};

static void
check_server(const LfServer *server)
{
	for (const char *byte = server->status.last_error; *byte != '\0'; byte++)
		FUZZ_CHECK(*byte >= ' ' && *byte <= '~');
	for (const char *byte = server->status.warning; *byte != '\0'; byte++)
		FUZZ_CHECK(*byte >= ' ' && *byte <= '~');
	FUZZ_CHECK(!server->ready || server->connection.state == LF_CONNECTION_OPEN);
	FUZZ_CHECK(server->queue == asked - answered);
}

/* ---- what goes in ---- */

static LfServer *
make_server(int options)
{
	LfServer   *server;

	dlist_init(&servers);
	context = NULL;
	lf_coordinator_install(&listeners);
	lf_redis_script_prepare();
	server = lf_server_of(1);
	server->changed = false;
	server->defined = true;
	strcpy(server->options.name, "fuzzed");
	strcpy(server->options.socket, "/");
	server->options.command_timeout = 10000;
	server->options.connect_timeout = 10000;
	server->options.db = 1;
	server->options.set_events = true;
	if (options & PASSWORD)
		strcpy(server->options.password, "s3cret");
	return server;
}

/* The other end of a socket that has just been connected. */
static int
plug(LfServer *server, LfConnection *connection)
{
	int			ends[2];

	FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
	connection->fd = ends[0];
	connection->owner = server;
	connection->options = &server->options;
	connection->state = LF_CONNECTION_CONNECTING;
	connection->give_up_at = LF_CLOCK_NEVER;
	return ends[1];
}

static void
pass(void)
{
	LfClock		next = LF_CLOCK_NEVER;

	lf_coordinator_receive(&next);
	lf_coordinator_flush(&next);
}

static void
say(int end, const void *bytes, size_t length)
{
	/* who has hung up does not hear it */
	(void) !send(end, bytes, length, MSG_NOSIGNAL);
	pass();
}

static void
ask(int number)
{
	LfLock		lock = {.server = 1, .shape = number % 2 ? LF_SHAPE_REDISSON : LF_SHAPE_STRING,
		.watch = true, .key_length = 3, .key = "key"};
	LfLockValue *value = palloc(offsetof(LfLockValue, bytes) + 6);

	/* allocated only as far as it goes */
	value->length = 6;
	memcpy(value->bytes, "holder", 6);
	asked++;
	lf_coordinator_ask((LfLockCall) (number % (LF_LOCK_RELEASE + 1)), &lock, value,
					   number == 0 ? value : NULL, 1000000, number, take_answer);
}

/*
 * redis_hint.c opens its connection itself, and says who takes the replies: to a
 * socket that is not there, instead of which it gets ours.
 */
static int
plug_hints(LfServer *server)
{
	LfClock		next = LF_CLOCK_NEVER;
	int			end;

	server->interests = 1;
	lf_hint_flush(server, &next);
	lf_hint_receive(server, &next);
	FUZZ_CHECK(server->hints.state == LF_CONNECTION_CLOSED);
	end = plug(server, &server->hints);
	pass();
	return end;
}

/* What is answered well.  Returns the hints' end. */
static int
prepare(int options, LfServer *server, int end)
{
	int			hints_end = -1;

	pass();
	if (!(options & GREETED))
		return hints_end;
	if (options & PASSWORD)
		say(end, "+OK\r\n", 5);
	say(end, "+OK\r\n", 5);		/* to SELECT */
	say(end, greeting, sizeof(greeting) - 1);
	FUZZ_CHECK(server->ready);
	if (options & TO_HINTS)
		hints_end = plug_hints(server);
	if (options & PONG)
		say(hints_end >= 0 ? hints_end : end, "+PONG\r\n", 7);
	return hints_end;
}

int
LLVMFuzzerTestOneInput(const uint8 *data, size_t size)
{
	LfServer   *server;
	int			end;
	int			hints_end;
	size_t		piece;

	if (size < 2)
		return 0;
	asked = answered = 0;
	server = make_server(data[0]);
	end = plug(server, &server->connection);
	for (int i = 0; i < CALLS; i++)
		ask(i);
	hints_end = prepare(data[0], server, end);

	piece = data[1] == 0 ? size : data[1];
	for (size_t i = 2; i < size; i += piece)
	{
		say(hints_end >= 0 ? hints_end : end, data + i, Min(piece, size - i));
		check_server(server);
	}

	lf_coordinator_disconnect("the end");
	pass();
	check_server(server);
	FUZZ_CHECK(answered == CALLS);
	lf_hint_close(server, NULL);
	close(end);
	if (hints_end >= 0)
		close(hints_end);
	fuzz_forget();
	return 0;
}
