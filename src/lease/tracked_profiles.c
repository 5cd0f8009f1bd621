/*
 * tracked_profiles.c
 *		Which leases are to be tracked, by the profiles and by the entries.
 *
 * Runs in the database's worker, in transactions of its own.
 */
#include "postgres.h"

#include "base/catalog.h"
#include "base/transaction.h"
#include "coordinator/profile.h"
#include "fence/entry.h"
#include "lease/tracked_list.h"
#include "storage/lmgr.h"

static bool recovered = false;
static uint64 profiles_seen = 0;

/*
 * The lock of a resource, by the profiles as they are now; false: it has none, which
 * is that resource's matter alone.
 */
static bool
lock_of(const LfResource *resource, LfLock *lock)
{
	const LfProfile *profile = lf_profile_of(resource);

	return profile != NULL && profile->here && lf_profile_find_lock(profile, resource, lock);
}

/*
 * Is there something to be done about the lock still: renew it, look at it, or
 * release it, which the worker before us may not have come to?
 */
static bool
needs_tracking(const LfGrant *grant)
{
	const LfGrantState *state = &grant->state;
	LfClock		now = lf_clock_now();

	if (state->coordinator != LF_COORDINATOR_REDIS || state->loading || state->token == 0)
		return false;
	if (state->barred || lf_grant_is_live(state, now))
		return true;
	return lf_grant_nonce(grant) != 0 &&
		now < lf_clock_after(Max(state->over_since, state->deadline), state->ttl);
}

/* Never waited for: all that there is to do waited with it. */
static bool
lock_profiles(void)
{
	return ConditionalLockRelationOid(lf_catalog_required()->profiles, AccessShareLock);
}

/*
 * In a transaction: a new worker finds what the one before it tracked.  False in
 * *arg: somebody has locked the table.
 */
static void
recover(void *arg)
{
	int			cursor = 0;
	LfGrant		grant;
	LfLock		lock;

	*(bool *) arg = lock_profiles();
	if (!*(bool *) arg)
		return;
	while (lf_entry_next(MyDatabaseId, &cursor, &grant))
	{
		if (needs_tracking(&grant) && lock_of(&grant.resource, &lock))
		{
			lf_tracked_add(&grant, &lock);
			lf_tracked_look_soon(grant.state.token);
		}
	}
}

/*
 * A server is another one than before, and which leases are of it is not known yet:
 * all of lock services are over.
 */
void
lf_tracked_lose_unknown(void)
{
	int			cursor = 0;
	LfGrant		grant;

	while (!recovered && lf_entry_next(MyDatabaseId, &cursor, &grant))
	{
		if (grant.state.coordinator == LF_COORDINATOR_REDIS)
			lf_entry_end(&grant.resource, grant.state.token, LF_OVER_LAPSED);
	}
}

/* Leases whose profile says something else by now. */
static void
forget_if_other(LfTracked *tracked)
{
	LfLock		lock;

	if (tracked->resource == NULL || tracked->releasing)
		return;
	if (!lock_of(tracked->resource, &lock) || !lf_lock_equal(&lock, tracked->lock))
		lf_tracked_list_forget(tracked);
}

/*
 * In a transaction.  They are left alone until their deadline: their lock is where
 * nobody looks any more.
 */
static void
compare_profiles(void *arg)
{
	*(bool *) arg = lock_profiles();
	if (*(bool *) arg)
		lf_tracked_list_visit(forget_if_other);
}

bool
lf_tracked_is_recovered(void)
{
	return recovered;
}

void
lf_tracked_follow_profiles(void)
{
	XLogRecPtr	end;
	char	   *problem;
	bool		done = false;
	uint64		generation = lf_profile_generation();

	if (!recovered)
		recovered = lf_transaction_try("finding leases of lock services", recover, &done, &end, &problem) && done;
	if (generation != profiles_seen && !lf_tracked_is_empty() &&
		lf_transaction_try("comparing profiles", compare_profiles, &done, &end, &problem) && done)
		profiles_seen = generation;
}
