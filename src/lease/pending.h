/*
 * pending.h
 *		A request as the worker works on it: private to queue.c and cycles.c.
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
	int			reserved;		/* the first so many are ours */
	bool		ready;			/* all drained: to be minted */
	bool		committed;		/* minted: to be published */
	bool		was_live;		/* revoke: the answer */
	XLogRecPtr	end;			/* of the commit record */
	LfClock		look_for_cycle;
	LfClock		no_room_since;	/* 0: there was room */
} LfPending;

/*
 * Does that request wait for itself, by way of leases, of heavyweight locks or
 * of both?  holders(pending, pids) are the sessions whose lease it waits for.
 */
typedef int (*LfHolders) (const LfPending *pending, int *pids, int max);
extern bool lf_cycles_find(dlist_head *pending, const LfPending *start, LfHolders holders);

#endif							/* LF_LEASE_PENDING_H */
