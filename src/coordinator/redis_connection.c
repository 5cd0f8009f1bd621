/*
 * redis_connection.c
 *		One connection to Redis, that never blocks.
 *
 * Runs in workers.  Sockets are made here and only handed to hiredis, whose own
 * way of connecting looks names up blocking.
 *
 * What must end well: a host that does not answer, or answers late, or goes
 * silent in the middle (each has a limit, and ends with the connection closed),
 * a reply that is garbage or never ends (so many bytes and no more), a name
 * server that is dead.
 */
#include "postgres.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "coordinator/redis_connection.h"
#include "coordinator/redis_tls.h"
#include "port.h"
#include "storage/fd.h"
#include "utils/builtins.h"

/* How often to look whether a name has been found: nothing wakes us. */
#define LOOK_UP_APART	INT64CONST(20000)

/* Room for a count in the protocol, with the byte before it and the two behind. */
#define COUNT_LENGTH	16

/* No reply to anything that we ask is longer, nor has more elements. */
#define REPLY_BYTES_MAX		(256 * 1024)
#define REPLY_ELEMENTS_MAX	64

static uint64 last_serial = 0;

/* ---- replies that are too long ---- */

#if HIREDIS_MAJOR >= 1
typedef size_t ElementCount;
#else
typedef int ElementCount;
#endif

static void *(*create_array) (const redisReadTask *task, ElementCount elements) = NULL;

/* Memory for an array's elements is taken before the first of them arrives. */
static void *
create_short_array(const redisReadTask *task, ElementCount elements)
{
	return elements > REPLY_ELEMENTS_MAX ? NULL : create_array(task, elements);
}

static void
limit_arrays(redisReader *reader)
{
	static redisReplyObjectFunctions functions;

	functions = *reader->fn;
	if (functions.createArray != create_short_array)
		create_array = functions.createArray;
	functions.createArray = create_short_array;
	reader->fn = &functions;
}

/* ---- opening and closing ---- */

static void
set_problem(LfConnection *connection, const char *problem)
{
	strlcpy(connection->problem, problem, sizeof(connection->problem));
}

void
lf_connection_close(LfConnection *connection, const char *problem)
{
	if (connection->state == LF_CONNECTION_CLOSED)
		return;
	set_problem(connection, problem == NULL ? "" : problem);	/* may be the context's own */
	if (connection->context != NULL)
		redisFree(connection->context);
	else if (connection->fd >= 0)
		closesocket(connection->fd);
	if (connection->context != NULL || connection->fd >= 0)
		ReleaseExternalFD();
	lf_address_end(&connection->lookup);
	connection->context = NULL;
	connection->tls = NULL;
	connection->fd = -1;
	connection->address = NULL;
	connection->expected = 0;
	connection->to_begin = false;
	connection->state = LF_CONNECTION_CLOSED;
}

/* A socket that begins to connect; -1, and errno says why. */
static int
start_socket(const struct sockaddr *address, socklen_t length)
{
	int			fd = socket(address->sa_family, SOCK_STREAM, 0);
	int			on = 1;
	int			error;

	if (fd < 0)
		return -1;
	if (pg_set_noblock(fd) &&
		(address->sa_family == AF_UNIX ||
		 (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0 &&
		  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)) == 0)) &&
		(connect(fd, address, length) == 0 || errno == EINPROGRESS || errno == EINTR))
		return fd;
	error = errno;
	closesocket(fd);
	errno = error;
	return -1;
}

static void
connect_to(LfConnection *connection, const struct sockaddr *address, socklen_t length)
{
	if (!AcquireExternalFD())
	{
		set_problem(connection, "no file descriptor is free");
		return;
	}
	connection->fd = start_socket(address, length);
	if (connection->fd < 0)
	{
		snprintf(connection->problem, sizeof(connection->problem),
				 "could not connect: %s", strerror(errno));
		ReleaseExternalFD();
		return;
	}
	connection->state = LF_CONNECTION_CONNECTING;
	connection->serial = ++last_serial;
}

/* Tries the address at hand, and those behind it, until one begins well. */
static void
connect_to_next(LfConnection *connection)
{
	connection->fd = -1;
	while (connection->address != NULL && connection->fd < 0)
	{
		connect_to(connection, connection->address->ai_addr,
				   connection->address->ai_addrlen);
		connection->address = connection->address->ai_next;
	}
	if (connection->fd < 0)
		lf_connection_close(connection, pstrdup(connection->problem));
}

static void
connect_to_path(LfConnection *connection)
{
	struct sockaddr_un address;

	memset(&address, 0, sizeof(address));
	address.sun_family = AF_UNIX;
	strlcpy(address.sun_path, connection->options->socket, sizeof(address.sun_path));
	connect_to(connection, (struct sockaddr *) &address, sizeof(address));
	if (connection->fd < 0)
		lf_connection_close(connection, pstrdup(connection->problem));
}

void
lf_connection_open(LfConnection *connection)
{
	Assert(connection->state == LF_CONNECTION_CLOSED);
	connection->fd = -1;
	connection->problem[0] = '\0';
	connection->incomplete = 0;
	connection->heard = false;
	connection->state = LF_CONNECTION_RESOLVING;
	connection->give_up_at = lf_clock_after(lf_clock_now(),
											connection->options->connect_timeout * INT64CONST(1000));
}

static void
resolve(LfConnection *connection, LfClock *next)
{
	const char *problem = NULL;
	char		text[LF_LOCK_PROBLEM_LENGTH];

	switch (lf_address_look(&connection->lookup, connection->options->host,
							connection->options->port, &problem))
	{
		case LF_ADDRESS_FOUND:
			connection->address = connection->lookup.found;
			connect_to_next(connection);
			break;
		case LF_ADDRESS_LATER:
			*next = Min(*next, lf_clock_now() + LOOK_UP_APART);
			break;
		case LF_ADDRESS_FAILED:
			snprintf(text, sizeof(text), "could not find the address of host \"%.128s\": %s",
					 connection->options->host, problem);
			lf_connection_close(connection, text);
			break;
	}
}

/* The socket is connected: hiredis has it from now on. */
static void
hand_over(LfConnection *connection)
{
	const char *problem = NULL;

	connection->context = redisConnectFd(connection->fd);
	if (connection->context == NULL || connection->context->err != 0)
	{
		lf_connection_close(connection, "out of memory");
		return;
	}
	connection->context->flags &= ~REDIS_BLOCK;
	limit_arrays(connection->context->reader);
	if (connection->options->tls)
		problem = lf_redis_tls_start(connection->context, connection->options, &connection->tls);
	if (problem != NULL)
	{
		lf_connection_close(connection, problem);
		return;
	}
	connection->state = LF_CONNECTION_OPEN;
	connection->heard_at = lf_clock_now();
}

static bool
is_connected(int fd)
{
	struct sockaddr_storage peer;
	socklen_t	length = sizeof(peer);

	return getpeername(fd, (struct sockaddr *) &peer, &length) == 0;
}

static void
finish_connecting(LfConnection *connection)
{
	int			error = 0;
	socklen_t	length = sizeof(error);

	if (getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
		error = errno;
	if (error == 0)
	{
		if (is_connected(connection->fd))
			hand_over(connection);
		return;
	}
	snprintf(connection->problem, sizeof(connection->problem),
			 "could not connect: %s", strerror(error));
	closesocket(connection->fd);
	connection->fd = -1;
	ReleaseExternalFD();
	connect_to_next(connection);
}

/* ---- talking ---- */

/* '*' and how many words there are, or '$' and how long one is. */
static char *
put_count(char *to, char kind, uint32 count)
{
	*to++ = kind;
	to += pg_ultoa_n(count, to);
	*to++ = '\r';
	*to++ = '\n';
	return to;
}

/* hiredis' own way of writing a command costs more than all else about a call. */
void
lf_connection_send(LfConnection *connection, int argc, const char **argv,
				   const size_t *lengths)
{
	char		usual[512];
	char	   *command = usual;
	char	   *end;
	size_t		size = COUNT_LENGTH;

	Assert(connection->state == LF_CONNECTION_OPEN);
	for (int i = 0; i < argc; i++)
		size += COUNT_LENGTH + lengths[i] + 2;
	if (size > sizeof(usual))
		command = palloc(size);
	end = put_count(command, '*', argc);
	for (int i = 0; i < argc; i++)
	{
		end = put_count(end, '$', lengths[i]);
		memcpy(end, argv[i], lengths[i]);
		end += lengths[i];
		*end++ = '\r';
		*end++ = '\n';
	}
	if (connection->expected == 0)
		connection->to_begin = true;
	connection->expected++;
	redisAppendFormattedCommand(connection->context, command, end - command);
	if (command != usual)
		pfree(command);
}

static const char *
error_text(const redisContext *context)
{
	if (context->err == REDIS_ERR_IO && context->errstr[0] == '\0')
		return strerror(errno);
	return context->errstr;
}

static void
close_by_context(LfConnection *connection)
{
	const char *reason = NULL;
	char		text[LF_LOCK_PROBLEM_LENGTH];

	if (connection->tls != NULL && !connection->heard)
		reason = lf_redis_tls_problem(connection->tls);
	if (reason == NULL)
		reason = error_text(connection->context);
	snprintf(text, sizeof(text), "connection lost: %s", reason);
	lf_connection_close(connection, text);
}

/* Hands out the replies that are complete, of what was read just now. */
static void
hand_out(LfConnection *connection)
{
	LfClock		now = lf_clock_now();

	while (connection->state == LF_CONNECTION_OPEN)
	{
		void	   *reply = NULL;

		if (redisGetReplyFromReader(connection->context, &reply) != REDIS_OK)
		{
			close_by_context(connection);
			return;
		}
		if (reply == NULL)
			return;
		connection->incomplete = 0;
		connection->heard_at = now;
		if (connection->expected > 0)
			connection->expected--;
		connection->reply(connection, reply);
		freeReplyObject(reply);
	}
}

static void
take_in(LfConnection *connection)
{
	redisContext *context = connection->context;

	for (int i = 0; i < 64 && connection->state == LF_CONNECTION_OPEN; i++)
	{
		size_t		before = context->reader->len;
		size_t		fed;

		if (connection->tls != NULL)
			lf_redis_tls_forget_errors();
		if (redisBufferRead(context) != REDIS_OK)
		{
			close_by_context(connection);
			return;
		}
		fed = context->reader->len > before ? context->reader->len - before : 0;
		if (fed == 0)
			return;
		connection->heard = true;
		connection->incomplete += fed;
		hand_out(connection);
		if (connection->state == LF_CONNECTION_OPEN &&
			connection->incomplete > REPLY_BYTES_MAX)
			lf_connection_close(connection, "a reply is longer than any should be");
	}
}

static void
look_at_time(LfConnection *connection, LfClock *next)
{
	LfClock		limit;

	if (connection->state == LF_CONNECTION_CLOSED)
		return;
	if (connection->state != LF_CONNECTION_OPEN)
	{
		if (lf_clock_now() >= connection->give_up_at)
			lf_connection_close(connection, "connecting took longer than connect_timeout");
		else
			*next = Min(*next, connection->give_up_at);
		return;
	}
	if (connection->expected == 0 || connection->to_begin)
		return;
	limit = lf_clock_after(connection->heard_at,
						   connection->options->command_timeout * INT64CONST(1000));
	if (lf_clock_now() >= limit)
		lf_connection_close(connection, "no answer within command_timeout");
	else
		*next = Min(*next, limit);
}

bool
lf_connection_receive(LfConnection *connection, LfClock *next)
{
	if (connection->state == LF_CONNECTION_RESOLVING && connection->options->socket[0] != '\0')
		connect_to_path(connection);
	if (connection->state == LF_CONNECTION_RESOLVING)
		resolve(connection, next);
	if (connection->state == LF_CONNECTION_CONNECTING)
		finish_connecting(connection);
	if (connection->state == LF_CONNECTION_OPEN)
		take_in(connection);
	look_at_time(connection, next);
	return connection->state != LF_CONNECTION_CLOSED;
}

bool
lf_connection_flush(LfConnection *connection)
{
	int			done = 0;

	if (connection->state != LF_CONNECTION_OPEN)
		return connection->state != LF_CONNECTION_CLOSED;
	if (connection->tls != NULL)
		lf_redis_tls_forget_errors();
	if (redisBufferWrite(connection->context, &done) != REDIS_OK)
		close_by_context(connection);
	/* a pass can be long: only now there is anything to answer */
	if (connection->to_begin)
		connection->heard_at = lf_clock_now();
	connection->to_begin = false;
	return connection->state == LF_CONNECTION_OPEN;
}

/*
 * During the handshake of TLS what is to be written waits for something to be
 * read, and the socket is ready for writing all the while: wait to read then.
 */
bool
lf_connection_socket(const LfConnection *connection, LfSocket *socket)
{
	bool		unsent;

	if (connection->state != LF_CONNECTION_CONNECTING &&
		connection->state != LF_CONNECTION_OPEN)
		return false;
	unsent = connection->context != NULL && connection->context->obuf != NULL &&
		connection->context->obuf[0] != '\0';
	socket->fd = connection->context != NULL ? connection->context->fd : connection->fd;
	socket->serial = connection->serial;
	socket->to_write = connection->state == LF_CONNECTION_CONNECTING ||
		(unsent && (connection->heard || !connection->options->tls));
	return true;
}
