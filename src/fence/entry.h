/*
 * entry.h
 *		What is known in shared memory of each resource's latest grant.
 *
 * An entry is a copy of the truth, which is the table lease_fence.grants, but
 * for what the table does not have: "draining", "over" that is not committed
 * yet, and the deadline.  Only the worker mints (begin_mint, publish); anybody
 * may end a grant; nobody but a mint makes a resource's grant live again.
 *
 * Every function takes and releases the lock of the entry's partition itself
 * and never waits for anything else.
 */
#ifndef LF_FENCE_ENTRY_H
#define LF_FENCE_ENTRY_H

#include "access/transam.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/resource.h"
#include "datatype/timestamp.h"

typedef enum LfScope
{
	LF_SCOPE_TRANSACTION,
	LF_SCOPE_SESSION,
	LF_SCOPE_DETACHED
} LfScope;

/* Who arbitrates the lease in time. */
typedef enum LfCoordinator
{
	LF_COORDINATOR_EMBEDDED,	/* this database */
	LF_COORDINATOR_EXTERNAL,	/* others, who order its grants by a number */
	LF_COORDINATOR_REDIS
} LfCoordinator;

/* How a grant came to be over.  A deadline that passed is not written here. */
typedef enum LfOver
{
	LF_OVER_NOT,
	LF_OVER_LAPSED,
	LF_OVER_RELEASED,
	LF_OVER_REVOKED,
	LF_OVER_TAKEN				/* a new grant for the same holder replaced it */
} LfOver;

/* What decides over a write: small, copied at each look. */
typedef struct LfGrantState
{
	int64		token;			/* 0: never granted */
	FullTransactionId minted_by;	/* invalid: before every snapshot */
	LfClock		deadline;
	int64		ttl;			/* microseconds */
	LfClock		over_since;
	LfClock		drain_since;	/* first step 1 of a mint; 0: none yet */
	Oid			role;
	int			owner;			/* backend slot; -1: detached */
	uint8		scope;			/* LfScope */
	uint8		over;			/* LfOver */
	uint8		coordinator;	/* LfCoordinator */
	bool		draining;		/* a mint is at work: refuse everybody */
	bool		loading;		/* the rest is not known yet */
	bool		watchdog;		/* the worker prolongs it */
	bool		adopted;		/* its lock was taken by others, in their way */
	bool		barred;			/* revoked: its holder may not adopt again */
} LfGrantState;

/*
 * All of an entry: for the views, the errors' details and for loading.  There are
 * as many as max_leases allows, so it has no holes; what is looked at most is in
 * front, and near to where the name begins.
 */
typedef struct LfGrant
{
	LfGrantState state;
	int			owner_pid;
	uint32		renewals;
	union
	{
		uint64		load;		/* while it is loading: the number of that */
		int64		number;		/* EXTERNAL: see lf_grant_number */
		uint64		nonce;		/* REDIS: see lf_grant_nonce */
	}			of;
	uint64		ticket;			/* of the request it answered; 0: none */
	TimestampTz granted_at;
	TimestampTz ended_at;
	LfResource	resource;
	LfHolder	holder;
} LfGrant;

/* By which others order it; -1: none. */
static inline int64
lf_grant_number(const LfGrant *grant)
{
	return grant->state.coordinator == LF_COORDINATOR_EXTERNAL ? grant->of.number : -1;
}

/* What makes the value of its lock unique; 0: it has none of ours. */
static inline uint64
lf_grant_nonce(const LfGrant *grant)
{
	return grant->state.coordinator == LF_COORDINATOR_REDIS ? grant->of.nonce : 0;
}

extern const char *lf_scope_name(LfScope scope);
extern const char *lf_over_name(LfOver over);
extern const char *lf_coordinator_name(LfCoordinator coordinator);

/* Why a write under a grant that is over is rejected. */
extern LfReason lf_over_reason(LfOver over);

/* The memory is slots.c's, like lf_entry_memory_since. */
extern Size lf_entry_shmem_size(void);
extern void lf_entry_shmem_init(void);

/* The guard's look: false if there is no entry. */
extern bool lf_entry_look(const LfResource *resource, uint32 hash, LfGrantState *state);
extern bool lf_entry_read(const LfResource *resource, LfGrant *grant);

/* The same look, and if it is there whose grant it is; 0: nobody's in particular. */
extern bool lf_entry_look_at_owner(const LfResource *resource, uint32 hash,
								   LfGrantState *state, int *owner_pid);

/*
 * One by one, all entries of a database: starts with *cursor = 0, false at the
 * end.  Entries that come or go meanwhile may be missed.
 */
extern bool lf_entry_next(Oid database, int *cursor, LfGrant *grant);

/*
 * Loading.  begin_load: the entry stands there as loading afterwards, unless it
 * is loaded already; false when there is no room.  fill: what the table said
 * since begin_load (state.token 0: nothing); an "over" set meanwhile stays; false
 * if another grant stands there, or another load is under way, which began later
 * than that look into the table.  cancel_load: for who inserted it and may not
 * fill it; it stays if somebody has begun to use it.
 */
typedef struct LfEntryLoad
{
	uint64		number;			/* 0: it is loaded already */
	bool		inserted;		/* by this call */
} LfEntryLoad;

extern bool lf_entry_begin_load(const LfResource *resource, LfEntryLoad *load);
extern bool lf_entry_fill(const LfGrant *grant, const LfEntryLoad *load);
extern void lf_entry_cancel_load(const LfResource *resource, const LfEntryLoad *load);

/*
 * Ends the grant `token` if it is the resource's latest and not over yet, also
 * while it is loading.  True if it was live until now (false: over before, or
 * its deadline had passed, which then is how it ended).
 */
extern bool lf_entry_end(const LfResource *resource, int64 token, LfOver how);

/*
 * Prolongs a live grant, whose time is not up to a lock service; LfGrantState
 * afterwards.  False if it was not live.
 */
extern bool lf_entry_extend(const LfResource *resource, int64 token, int64 ttl,
							LfGrantState *state);

/*
 * Worker: the deadline of a live grant, as its lock service says, be it earlier
 * or later than before; but no later than `latest`, or than it was.  False if it
 * was not live any more.  *state is the grant's afterwards, if it has an entry.
 */
extern bool lf_entry_set_deadline(const LfResource *resource, uint32 hash, int64 token,
								  LfClock deadline, LfClock latest, LfGrantState *state);

/* Worker: the holder of a revoked grant may adopt again. */
extern void lf_entry_lift_bar(const LfResource *resource, int64 token);

/* The scope of a live grant that its session holds becomes wider, or was not. */
extern void lf_entry_set_scope(const LfResource *resource, int64 token, LfScope scope);

/*
 * Worker: step 1 of a mint, "over" first, then "draining".  False if the entry
 * is not there, not loaded, or draining already.  *end_written: the table has
 * the old grant's end.
 */
extern bool lf_entry_begin_mint(const LfResource *resource, LfOver how,
								LfGrantState *old, bool *end_written);
extern void lf_entry_cancel_mint(const LfResource *resource);

/* Worker: step 4.  state.over says whether it is published as ended already. */
extern void lf_entry_publish(const LfGrant *grant);

/*
 * Worker: prolongs what its watchdog keeps alive, and notes what lapsed.
 * alive(owner, pid) says whether a session still counts.  Returns when to look
 * again.
 */
typedef bool (*LfOwnerCheck) (int owner, int pid, LfScope scope);
extern LfClock lf_entry_sweep(Oid database, LfOwnerCheck alive, int *live);

/*
 * Worker: ends that are not in the table yet.  take: up to max of them; they
 * come again until end_written said that they are committed.
 */
typedef struct LfEnd
{
	int			slot;
	int64		token;
	LfScope		scope;
	LfOver		how;
	TimestampTz at;
} LfEnd;
extern int	lf_entry_take_ends(Oid database, LfEnd *ends, int max);
extern void lf_entry_end_written(const LfEnd *end);

/* Worker: are there any, of any database?  They will make room. */
extern bool lf_entry_ends_are_pending(void);

/* Is there an end of this resource's grant that is not in the table yet? */
extern bool lf_entry_end_is_pending(const LfResource *resource);

/* Forgets all entries of a database: it was dropped, or begins a new epoch. */
extern void lf_entry_forget_database(Oid database);

/* When this memory began: the server's start, or its restart after a crash. */
extern LfClock lf_entry_memory_since(void);

extern bool lf_grant_is_live(const LfGrantState *state, LfClock now);

#endif							/* LF_FENCE_ENTRY_H */
