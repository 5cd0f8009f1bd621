/*
 * request.h
 *		What sessions ask of their database's worker: one shared place a backend.
 *
 * The places are the queue: a request's ticket says who came first.  All fields
 * are under LF_LOCK_REQUESTS; the functions here take and release it.
 *
 *	FREE -> QUEUED		submit, by the session
 *	QUEUED -> WORKING	the worker is about to change something for it
 *	WORKING -> BLOCKED	writers are in the way: the session waits for them
 *	BLOCKED -> WORKING	retry, by the session
 *	any -> ANSWERED		by the worker
 *	any -> FREE			withdraw, by the session, at any moment
 */
#ifndef LF_LEASE_REQUEST_H
#define LF_LEASE_REQUEST_H

#include "coordinator/lock.h"
#include "fence/entry.h"
#include "fence/mint.h"
#include "storage/dsm.h"

typedef enum LfRequestKind
{
	LF_REQUEST_ACQUIRE,
	LF_REQUEST_IMPORT,
	LF_REQUEST_ADOPT,
	LF_REQUEST_RENEW,			/* of a grant whose time is up to a lock service */
	LF_REQUEST_REVOKE,
	LF_REQUEST_EPOCH
} LfRequestKind;

typedef enum LfRequestState
{
	LF_REQUEST_FREE,
	LF_REQUEST_QUEUED,
	LF_REQUEST_WORKING,
	LF_REQUEST_BLOCKED,
	LF_REQUEST_ANSWERED
} LfRequestState;

typedef enum LfAnswer
{
	LF_ANSWER_GRANTED,			/* revoke: it was live; epoch: token is the floor */
	LF_ANSWER_NOTHING,			/* revoke: nobody had it */
	LF_ANSWER_BUSY,				/* no_wait, and it is not to be had at once */
	LF_ANSWER_NOT_HOLDER,		/* adopt: message says why */
	LF_ANSWER_COORDINATOR,		/* the lock service cannot do it: message */
	LF_ANSWER_OLDER,			/* import: a higher number has been imported */
	LF_ANSWER_OTHER_ROLE,		/* import: it was another role that imported it */
	LF_ANSWER_OVER,				/* import: this number's grant is over; renew:
								 * so is the token's */
	LF_ANSWER_OWN_WAY,			/* the asker itself wrote under the older grant */
	LF_ANSWER_CYCLE,			/* a cycle of waits */
	LF_ANSWER_NO_ROOM,			/* lease_fence.max_leases */
	LF_ANSWER_NO_EXTENSION,		/* not installed, or not committed yet */
	LF_ANSWER_FAILED			/* message says why */
} LfAnswer;

#define LF_REASON_LENGTH 256

typedef struct LfRequest
{
	uint64		ticket;
	LfRequestState state;
	LfRequestKind kind;
	Oid			database;
	int			pid;
	LfClock		asked_at;
	bool		no_wait;

	/* the grant that is asked for */
	LfScope		scope;
	bool		watchdog;
	int64		ttl;			/* microseconds */
	Oid			role;
	LfHolder	holder;
	int64		number;			/* import: by which others order it */
	int64		renewed;		/* renew: the token */
	int			count;			/* of resources */
	LfResource	resource;		/* the first one; all of them in names */
	LfLock		lock;			/* of that one, if a lock service has it */
	uint64		nonce;			/* with which the worker tries to take it */
	dsm_handle	names;			/* LfRequestNames, if count > 1 */
	char		reason[LF_REASON_LENGTH];	/* of a revocation or an epoch */

	/* while BLOCKED, and after that for the messages */
	int64		blocked_token;
	LfBlocker	blocker;
	bool		elsewhere;		/* somebody has it at its lock service, ... */
	int64		left;			/* ... for so long; -1: not known */

	LfAnswer	answer;
	int64		token;			/* of the first resource; OLDER, OVER: the
								 * present one */
	char		message[LF_REASON_LENGTH];
} LfRequest;

/* Several resources, in byte order, and the tokens of their grants. */
typedef struct LfRequestName
{
	LfResource	resource;
	LfLock		lock;
	uint64		nonce;
	int64		ttl;
	int64		token;
} LfRequestName;

extern Size lf_request_shmem_size(void);
extern void lf_request_shmem_init(void);

/* Session: its own place. */
extern void lf_request_submit(LfRequest *request);
extern void lf_request_look(LfRequest *copy);
extern void lf_request_retry(void);

/* True if it had been answered; *last is what it was. */
extern bool lf_request_withdraw(LfRequest *last);

/*
 * Worker: adds the sessions that have waited for longer to a list of MaxBackends
 * process ids at most; its new length.
 */
extern int	lf_request_add_idle(int *pids, int count, int64 longer);

/* How many requests name this resource first?  For the views. */
extern int	lf_request_count(const LfResource *resource);

/*
 * Worker.  next: one by one the requests of a database, *slot from -1, but for
 * those whose ticket is known (by slot; NULL: none is).  is_open: nobody withdrew
 * it.  set, answer: false if somebody did.
 */
extern bool lf_request_next(Oid database, const uint64 *known, int *slot, LfRequest *copy);
extern bool lf_request_is_open(int slot, uint64 ticket);
extern LfRequestState lf_request_state(int slot, uint64 ticket);
extern bool lf_request_set_working(int slot, uint64 ticket);
extern bool lf_request_set_blocked(int slot, uint64 ticket, int64 token, LfBlocker blocker);
extern void lf_request_set_nonce(int slot, uint64 ticket, uint64 nonce);
extern void lf_request_set_elsewhere(int slot, uint64 ticket, int64 left);
extern bool lf_request_answer(int slot, uint64 ticket, LfAnswer answer, int64 token,
							  const char *message);

/*
 * Worker: the earlier worker died over these; they fail.  Calls failed for each
 * before, so that what it had published or taken for it can be ended.
 */
extern void lf_request_fail_unfinished(Oid database, void (*failed) (const LfRequest *request));

#endif							/* LF_LEASE_REQUEST_H */
