/*
 * remote.h
 *		What lock services say of the resources that a request is about: private
 *		to the queue's files.
 *
 * A resource is handed out twice: by its lock service, and then by this database,
 * which mints the token.  Here is the first half, from the question until the
 * grant is published; from then on the lease is tracked.c's.
 */
#ifndef LF_LEASE_REMOTE_H
#define LF_LEASE_REMOTE_H

#include "coordinator/coordinator.h"
#include "lease/pending.h"

/*
 * Nobody may tell us that a lock is free: how long at most until we look, in
 * microseconds, while somebody waits for it.
 */
#define LF_LOOK_APART	INT64CONST(250000)

typedef enum LfRemoteState
{
	LF_REMOTE_IDLE,				/* nothing is known */
	LF_REMOTE_ASKED,
	LF_REMOTE_BUSY,				/* somebody else has it */
	LF_REMOTE_GRANTED,			/* the service says so, until the deadline */
	LF_REMOTE_LOST,				/* it did, and does not any more */
	LF_REMOTE_REFUSED			/* by what it found */
} LfRemoteState;

typedef struct LfRemote
{
	LfLock	   *lock;			/* NULL: it is not handed out elsewhere */
	LfLockValue value;
	bool		adopts;			/* others have taken the lock */
	bool		ours;			/* we took it, or may have */
	bool		barred;			/* and this holder may not adopt it */
	LfRemoteState state;
	uint64		question;		/* under way; 0: none */
	bool		confirming;		/* it is the last one before the mint */
	bool		confirmed;
	bool		listening;
	int64		left;			/* BUSY: of who has it; -1: not known */
	int64		ttl;
	LfClock		deadline;
	LfClock		look_at;		/* BUSY: ask again; GRANTED: keep it alive */
	LfLockState found;			/* REFUSED */
	char		problem[LF_LOCK_PROBLEM_LENGTH];
} LfRemote;

extern void lf_remote_describe(LfPending *pending, int number, const LfLock *lock);

/*
 * One step towards the service's grant: the state afterwards.  What is GRANTED
 * is kept until lf_remote_give_back or lf_remote_hand_over.
 */
extern LfRemoteState lf_remote_take(LfPending *pending, int number, LfClock *next);

/*
 * Keeps alive what was granted; false if one of them is gone: the request then
 * begins anew, or is over.
 */
extern bool lf_remote_keep(LfPending *pending, LfClock *next);

/* Before the mint: is all that was granted still so, if that was long ago? */
extern bool lf_remote_confirm(LfPending *pending, LfClock *next);

/* Lets go of what was granted, and of what may be on its way. */
extern void lf_remote_give_back(LfRemote *remote);

/* Nothing is known against it. */
extern bool lf_remote_is_granted(const LfRemote *remote);

/*
 * The grant was published: its lease is tracked from now on.  The one before it
 * no more.
 */
extern void lf_remote_hand_over(LfPending *pending, int number);

/*
 * A new worker: the one before it may have taken locks for that request, which
 * fails now.
 */
extern void lf_remote_undo(const LfRequest *request);

/* A request to renew; it may be over afterwards. */
extern void lf_remote_renew(LfPending *pending, LfClock *next);

/* Why a lock is not its holder's, for the message. */
extern const char *lf_remote_finding(const LfRemote *remote);

/*
 * What a call that somebody else made shows of the same lock; what a server had
 * to say.
 */
extern void lf_remote_see(const LfLockQuestion *question, const LfLockAnswer *answer);
extern void lf_remote_hint(Oid server, const char *key, int length);
extern void lf_remote_lost(Oid server);

#endif							/* LF_LEASE_REMOTE_H */
