/*
 * redis_connection.h
 *		One connection to Redis, that never blocks.
 *
 * Whoever owns it sends commands, and gets their replies in the same order.  A
 * connection that fails in any way, or does not answer in time, is closed and
 * never used again: a late reply would be taken for the next one.
 */
#ifndef LF_COORDINATOR_REDIS_CONNECTION_H
#define LF_COORDINATOR_REDIS_CONNECTION_H

#include <hiredis/hiredis.h>

#include "base/clock.h"
#include "coordinator/coordinator.h"
#include "coordinator/redis_address.h"
#include "coordinator/redis_options.h"

typedef enum LfConnectionState
{
	LF_CONNECTION_CLOSED,
	LF_CONNECTION_RESOLVING,	/* the host's name */
	LF_CONNECTION_CONNECTING,
	LF_CONNECTION_OPEN			/* commands can be sent */
} LfConnectionState;

typedef struct LfConnection LfConnection;

/* The reply is freed afterwards; it may close the connection. */
typedef void (*LfReplyCallback) (LfConnection *connection, const redisReply *reply);

struct LfConnection
{
	LfConnectionState state;
	void	   *owner;
	LfReplyCallback reply;
	const LfRedisOptions *options;	/* the owner's */

	/* private to redis_connection.c */
	uint64		serial;
	redisContext *context;
	void	   *tls;			/* its session; NULL: none */
	int			fd;				/* while it is connecting */
	LfAddressLookup lookup;
	struct addrinfo *address;	/* the one that is tried */
	LfClock		give_up_at;		/* connecting takes no longer */
	LfClock		heard_at;		/* the last reply, or when the first question
								 * that has none yet was written */
	bool		to_begin;		/* that question waits to be written */
	bool		heard;			/* anything at all */
	int			expected;		/* replies */
	size_t		incomplete;		/* bytes of a reply that is not complete */
	char		problem[LF_LOCK_PROBLEM_LENGTH];	/* why it was closed */
};

/*
 * Starts it; from CLOSED only.  It goes on in lf_connection_receive, where alone
 * it can fail, at once perhaps: call that soon.
 */
extern void lf_connection_open(LfConnection *connection);

/* Any time; problem NULL: nothing is wrong. */
extern void lf_connection_close(LfConnection *connection, const char *problem);

/* While OPEN.  A command that one reply comes to. */
extern void lf_connection_send(LfConnection *connection, int argc, const char **argv,
							   const size_t *lengths);

/*
 * Goes on with connecting, takes in replies, looks at the time; brings *next
 * forward.  False: it was, or is now, closed; problem says why.
 */
extern bool lf_connection_receive(LfConnection *connection, LfClock *next);
extern bool lf_connection_flush(LfConnection *connection);

/* False: there is none. */
extern bool lf_connection_socket(const LfConnection *connection, LfSocket *socket);

#endif							/* LF_COORDINATOR_REDIS_CONNECTION_H */
