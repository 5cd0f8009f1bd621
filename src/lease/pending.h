/*
 * pending.h
 *		A request as the worker works on it: private to the queue's files, which
 *		are queue.c, pending.c, turn.c, remote.c, finish.c and cycles.c.
 */
#ifndef LF_LEASE_PENDING_H
#define LF_LEASE_PENDING_H

#include "lease/request.h"
#include "lib/ilist.h"

typedef struct LfPending
{
	dlist_node	node;
	int			slot;			/* of the session that asks */
	LfRequest	request;		/* as it was submitted */
	MemoryContext context;		/* of all that belongs to it */
	dsm_segment *segment;		/* of several names; NULL: one */
	LfMint	   *mints;			/* request.count of them */
	struct LfRemote *remotes;	/* as many: what lock services say */
	int			reserved;		/* the first so many are ours */
	bool		drain_waited;	/* writers were in the way for some time */
	bool		ready;			/* all drained: to be minted */
	bool		committed;		/* minted: to be published */
	bool		was_live;		/* revoke: the answer */
	XLogRecPtr	end;			/* of the commit record */
	LfClock		look_for_cycle;
	LfClock		no_room_since;	/* 0: there was room */
	LfClock		no_room_first;	/* 0: there has always been room */
} LfPending;

/* How soon to look again at what nobody wakes us for, in microseconds. */
#define LF_RETRY_SOON	INT64CONST(10000)

static inline LfPending *
lf_pending_of(dlist_node *node)
{
	return dlist_container(LfPending, node, node);
}

/* ---- pending.c: the list of them ---- */

/* In the order of their tickets.  To be walked: only pending.c changes it. */
extern dlist_head *lf_pending_all(void);

extern void lf_pending_take_in(void);
extern void lf_pending_drop_withdrawn(void);

/* Nobody withdrew it. */
extern bool lf_pending_is_open(LfPending *pending);

/* What it asks for if that is several names: in the segment, which is shared. */
extern LfRequestName *lf_pending_names(LfPending *pending);

/* What is under way for it goes back to its beginning. */
extern void lf_pending_abandon(LfPending *pending);

/* These end it: the request is no longer there afterwards. */
extern void lf_pending_forget(LfPending *pending);
extern void lf_pending_refuse(LfPending *pending, LfAnswer answer, const char *message);
extern void lf_pending_settle(LfPending *pending, LfAnswer answer, int64 token);

/*
 * To look again at once: something was let go of that a request may wait for
 * which this pass has been at already.
 */
extern void lf_pending_begin_pass(void);
extern void lf_pending_look_again(void);
extern bool lf_pending_is_to_look_again(void);

/* ---- turn.c: whose turn is it? ---- */

/*
 * Gives a request what it can get now; it may be gone afterwards.  *next is
 * brought forward to when more may be had.
 */
extern void lf_turn_advance(LfPending *pending, LfClock *next);

/* The sessions whose lease it waits for: how many.  An LfHolders. */
extern int	lf_turn_holders(const LfPending *pending, int *pids, int max);

/* ---- finish.c: minting, publishing, answering ---- */

/* One that cannot be minted does not stop the others. */
extern void lf_finish_batch(LfPending **batch, int count, LfClock *next);
extern void lf_finish_revoke(LfPending *pending, LfClock *next);

/* Publishes what is committed, as far as the standbys have it too. */
extern void lf_finish_committed(LfClock *next);

/* ---- cycles.c ---- */

/*
 * Does that request wait for itself, by way of leases, of heavyweight locks or
 * of both?  holders(pending, pids) are the sessions whose lease it waits for.
 */
typedef int (*LfHolders) (const LfPending *pending, int *pids, int max);
extern bool lf_cycles_find(dlist_head *pending, const LfPending *start, LfHolders holders);

#endif							/* LF_LEASE_PENDING_H */
