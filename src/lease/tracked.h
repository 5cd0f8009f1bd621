/*
 * tracked.h
 *		Leases whose time is up to a lock service: renewed, looked at, released.
 *
 * Runs in the worker.  All of it is rebuilt from the entries by a new worker.
 */
#ifndef LF_LEASE_TRACKED_H
#define LF_LEASE_TRACKED_H

#include "coordinator/coordinator.h"
#include "fence/entry.h"

/* Connects the lock services' events with who wants them; once. */
extern void lf_tracked_install(void);

extern void lf_tracked_add(const LfGrant *grant, const LfLock *lock);

/*
 * A lock of ours whose grant came to nothing: it is let go of, for as long as it
 * may be there.
 */
extern void lf_tracked_release(const LfLock *lock, const LfLockValue *value, int64 ttl);

/* A lease that was superseded: its lock is let go of, if it was ours. */
extern void lf_tracked_remove(int64 token);

/*
 * Somebody waits for a lock that others took: look at least that often,
 * microseconds apart.
 */
extern void lf_tracked_hurry(int64 token, int64 apart);

/*
 * The lock of a tracked lease; NULL: it is not tracked.  Its value is copied.
 */
extern const LfLock *lf_tracked_lock(int64 token, LfLockValue *value, bool *adopted);

/*
 * What an answer about a tracked lease's lock means for it: true if it is
 * prolonged, false if it is over, or nothing is known.
 */
extern bool lf_tracked_take_answer(int64 token, const LfLockQuestion *question,
								   const LfLockAnswer *answer);

/*
 * Finds what the worker before this one tracked, and compares with the profiles.
 * Before anything else in a pass; outside a transaction.
 */
extern void lf_tracked_begin_pass(void);

/* Has that been found?  Until then "not tracked" says nothing. */
extern bool lf_tracked_is_recovered(void);

/* Releases the locks of leases that have ended.  Before requests are looked at. */
extern void lf_tracked_release_ended(void);

/*
 * Renews and looks at what is due.  alive: as for lf_entry_sweep.  Outside a
 * transaction.
 */
extern void lf_tracked_pass(LfOwnerCheck alive, LfClock *next);

/* Nothing is watched. */
extern bool lf_tracked_is_empty(void);

#endif							/* LF_LEASE_TRACKED_H */
