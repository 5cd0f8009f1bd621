/*
 * tracked_list.h
 *		The list of tracked leases: private to tracked.c and its neighbours.
 */
#ifndef LF_LEASE_TRACKED_LIST_H
#define LF_LEASE_TRACKED_LIST_H

#include "lease/tracked.h"
#include "lib/ilist.h"
#include "lib/pairingheap.h"

/* Resource, value and lock are allocated as far as their bytes go. */
typedef struct LfTracked
{
	int64		token;			/* below 0: only to be released */
	pairingheap_node due_node;
	dlist_node	key_node;		/* in its key's chain */
	LfClock		due;
	int64		early;			/* so much sooner, when another one is due */
	LfClock		looked_at;
	LfClock		release_until;	/* it has run out by itself then; 0: not known yet */
	int64		left;			/* as the last answer had it */
	int64		retry_apart;	/* of releases */
	bool		queued;			/* in the heap */
	bool		asked;			/* a question is under way */
	bool		look_again;		/* a hint came meanwhile */
	bool		releasing;
	bool		uncertain;		/* what may take it can be under way still */
	bool		adopted;
	bool		listening;
	uint32		hash;			/* of the resource */
	LfResource *resource;
	LfLockValue *value;
	LfLock	   *lock;
} LfTracked;

/* NULL: it is not there. */
extern LfTracked *lf_tracked_list_find(int64 token);

/* A new one, with copies of lock and value; the rest is zero. */
extern LfTracked *lf_tracked_list_insert(int64 token, const LfLock *lock,
										 const LfLockValue *value);
extern void lf_tracked_list_set_resource(LfTracked *tracked, const LfResource *resource);
extern void lf_tracked_list_forget(LfTracked *tracked);

/* When it is to be looked at; out of the queue for now. */
extern void lf_tracked_list_set_due(LfTracked *tracked, LfClock due);
extern void lf_tracked_list_unqueue(LfTracked *tracked);

/* The one that is due first; NULL: none is queued. */
extern LfTracked *lf_tracked_list_first_due(void);

/*
 * tracked_profiles.c: what a new worker, or another profile, makes of them; and a
 * server that is another one, before a new worker has found them.
 */
extern void lf_tracked_follow_profiles(void);
extern void lf_tracked_lose_unknown(void);

/* Of a server, of a lock, all: what may forget the one that it is given. */
typedef void (*LfTrackedVisit) (LfTracked *tracked);
extern void lf_tracked_list_visit(LfTrackedVisit visit);
extern void lf_tracked_list_visit_server(Oid server, LfTrackedVisit visit);
extern void lf_tracked_list_visit_key(Oid server, const char *key, int length,
									  LfTrackedVisit visit);

#endif							/* LF_LEASE_TRACKED_LIST_H */
