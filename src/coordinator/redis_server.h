/*
 * redis_server.h
 *		A Redis server: private to the files redis_*.c.
 *
 * redis_server.c has the list of them, connects and watches over them;
 * redis_greet.c asks them about themselves; redis_call.c runs scripts;
 * redis_hint.c listens to events on a connection of its own.
 */
#ifndef LF_COORDINATOR_REDIS_SERVER_H
#define LF_COORDINATOR_REDIS_SERVER_H

#include "coordinator/redis_connection.h"
#include "coordinator/redis_status.h"
#include "lib/ilist.h"

typedef struct LfServer LfServer;
typedef struct LfRedisCall LfRedisCall;

/*
 * One command and what becomes of its reply.  reply NULL: there is none, and
 * server->status.last_error says why.  Frees the call, or sends it again.
 */
struct LfRedisCall
{
	dlist_node	node;
	void		(*replied) (LfServer *server, LfRedisCall *call, const redisReply *reply);
};

struct LfServer
{
	dlist_node	node;
	Oid			oid;
	LfRedisOptions options;
	bool		defined;		/* the options are known */
	bool		changed;		/* look at the definition again, ... */
	LfClock		refresh_at;		/* ... not before that */
	bool		ready;			/* it has been greeted, and is a master */
	bool		failing;		/* what waits is being told that it failed */
	LfConnection connection;
	dlist_head	sent;			/* LfRedisCall, in the order of the replies */
	dlist_head	unsent;			/* until it is ready */
	int			failures;		/* connections that ended badly, in a row */
	LfClock		beat_at;
	int			beats;
	bool		beaten;			/* in this pass, and it has not failed since */
	LfClock		used_at;
	int			place;			/* in redis_status */
	LfRedisStatus status;
	bool		status_changed;
	bool		succeeded;		/* a call, in this pass */
	int			queue;			/* calls that have no answer yet */

	/* redis_hint.c */
	LfConnection hints;
	bool		hints_greeted;
	bool		hints_heard;	/* it lets us subscribe */
	bool		hints_fresh;	/* there may be events that we missed */
	LfClock		hints_retry_at;
	int			interests;		/* locks of it that somebody listens to */
};

/* What goes on in the context of all that belongs to servers. */
extern MemoryContext lf_server_context(void);

extern dlist_head *lf_server_all(void);

/* Made if it is new. */
extern LfServer *lf_server_of(Oid oid);

static inline LfServer *
lf_server_of_node(dlist_node *node)
{
	return dlist_container(LfServer, node, node);
}

/* What the rooms above want to hear. */
extern const LfCoordinatorEvents *lf_server_events(void);

/* Sends a command whose reply the call takes; while ready or greeting. */
extern void lf_server_send(LfServer *server, LfRedisCall *call, int argc,
						   const char **argv, const size_t *lengths);

/*
 * The connection is no longer good: everything that waits for it is told so,
 * and the next one is tried later.
 */
extern void lf_server_fail(LfServer *server, const char *problem);

/* Noted for the view; the connection goes on. */
extern void lf_server_note_error(LfServer *server, const char *problem);
extern void lf_server_note_success(LfServer *server);

/* It does what it is asked. */
extern void lf_server_note_recovered(LfServer *server);

/* What was known of its locks is not true any longer. */
extern void lf_server_note_lost(LfServer *server);

/* Why nothing can be asked of it now; NULL: it can, now or when it is ready. */
extern const char *lf_server_refusal(LfServer *server);

/* First word of an error that Redis replied. */
extern bool lf_reply_is_error(const redisReply *reply, const char *word);

/* Its text, fit to be shown; that of AUTH without what is secret.  Good until the next. */
extern const char *lf_reply_error(const redisReply *reply);
extern const char *lf_reply_auth_error(const redisReply *reply);

/* redis_greet.c: the words that say who we are, 3 at most; 0: nothing to say. */
extern int	lf_greet_auth(const LfRedisOptions *options, const char **argv);

/*
 * redis_greet.c: right after connecting; once a second; which role it has, which
 * is looked at when the answer comes.
 */
extern void lf_greet(LfServer *server);
extern void lf_greet_beat(LfServer *server, LfClock *next);
extern void lf_greet_ask_role(LfServer *server);

/* redis_call.c: sends what waited until the server was ready; tells the refused. */
extern void lf_call_send_unsent(LfServer *server);
extern void lf_call_tell_refused(LfClock *next);

/* redis_hint.c.  beat: with the other one, so that one wake-up does for both. */
extern void lf_hint_beat(LfServer *server);
extern void lf_hint_receive(LfServer *server, LfClock *next);
extern void lf_hint_flush(LfServer *server, LfClock *next);
extern void lf_hint_close(LfServer *server, const char *problem);
extern void lf_hint_forget_unused(void);

#endif							/* LF_COORDINATOR_REDIS_SERVER_H */
