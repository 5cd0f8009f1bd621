/*
 * coordinator.h
 *		Lock services: who arbitrates a lease in time, when it is not this
 *		database itself.
 *
 * Asking starts a call; its answer comes later, to the callback, while the
 * worker receives.  The calls about one server are answered in the order in
 * which that server carried them out.  Everything here runs in the worker, never
 * inside a transaction but for lf_coordinator_refresh(), and never waits.
 */
#ifndef LF_COORDINATOR_COORDINATOR_H
#define LF_COORDINATOR_COORDINATOR_H

#include "base/clock.h"
#include "coordinator/lock.h"

typedef enum LfLockCall
{
	LF_LOCK_TAKE,				/* if nobody has it, or `instead` has */
	LF_LOCK_RENEW,				/* prolong, if that value has it */
	LF_LOCK_CHECK,				/* only look */
	LF_LOCK_VERIFY,				/* look, where a master is sure to answer */
	LF_LOCK_RELEASE				/* if that value has it */
} LfLockCall;

typedef enum LfLockState
{
	LF_LOCK_HELD,				/* by that value; release: it was, until now */
	LF_LOCK_OTHER,				/* by another value */
	LF_LOCK_ABSENT,				/* by nobody */
	LF_LOCK_NO_EXPIRY,			/* that value is there, and never runs out */
	LF_LOCK_WRONG_TYPE,			/* something else is stored under the key */
	LF_LOCK_NO_GRANT,			/* that value is there, and is no grant */
	LF_LOCK_UNKNOWN				/* no answer: `problem` says why */
} LfLockState;

#define LF_LOCK_PROBLEM_LENGTH 256

typedef struct LfLockAnswer
{
	LfLockState state;
	bool		sent;			/* UNKNOWN: it may have been carried out */
	LfClock		asked;			/* before it went out: it is held until
								 * asked + left */
	int64		left;			/* microseconds; HELD: that value's, OTHER: of
								 * who has it, -1: not known, or for ever */
	char		problem[LF_LOCK_PROBLEM_LENGTH];
} LfLockAnswer;

/* What was asked: good during the callback only. */
typedef struct LfLockQuestion
{
	LfLockCall	call;
	const LfLock *lock;
	const LfLockValue *value;
	int64		ttl;			/* microseconds, of TAKE and RENEW */
	uint64		id;				/* the asker's own */
} LfLockQuestion;

typedef void (*LfLockCallback) (const LfLockQuestion *question, const LfLockAnswer *answer);

/*
 * Starts a call.  ttl: microseconds, of TAKE and RENEW.  instead: TAKE replaces
 * that value, NULL: none.  The callback is called once, not from in here.
 */
extern void lf_coordinator_ask(LfLockCall call, const LfLock *lock,
							   const LfLockValue *value, const LfLockValue *instead,
							   int64 ttl, uint64 id, LfLockCallback done);

/*
 * What a server has to say by itself.  ready: connected, after it was not.
 * lost: it is another one than before, or no master any more: what was known of
 * its locks is not true any longer.  hint: something happened to a key.
 */
typedef struct LfCoordinatorEvents
{
	void		(*ready) (Oid server);
	void		(*lost) (Oid server);
	void		(*hint) (Oid server, const char *key, int length);
} LfCoordinatorEvents;

extern void lf_coordinator_install(const LfCoordinatorEvents *events);

/*
 * Hints are wanted for this lock, or no longer: counted.
 */
extern void lf_coordinator_listen(const LfLock *lock);
extern void lf_coordinator_unlisten(const LfLock *lock);

/*
 * A pass.  refresh: reads what was changed of the servers' definitions, in a
 * transaction of its own.  receive: takes in answers and calls the callbacks.
 * flush: sends what was asked.  *next: when to come back though no socket is
 * ready.
 */
extern void lf_coordinator_refresh(void);
extern void lf_coordinator_receive(LfClock *next);
extern void lf_coordinator_flush(LfClock *next);

/* Closes all connections, with that as the answer to what is under way. */
extern void lf_coordinator_disconnect(const char *reason);

/* The sockets to wait for, and for what. */
typedef struct LfSocket
{
	int			fd;
	uint64		serial;			/* never used twice, as numbers of files are */
	bool		to_write;		/* else only to read */
} LfSocket;

#define LF_MAX_SOCKETS 128

extern int	lf_coordinator_sockets(LfSocket *sockets);

/*
 * Servers have just been asked whether they are there, and no script's answer is
 * awaited: theirs, which come one by one, are no hurry.
 */
extern bool lf_coordinator_only_beats(void);

#endif							/* LF_COORDINATOR_COORDINATOR_H */
