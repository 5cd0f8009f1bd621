/*
 * tracked_profiles.c
 *		Which leases are to be tracked, by the profiles and by the entries.
 *
 * Runs in the database's worker, in transactions of its own.
 */
#include "postgres.h"

#include "base/transaction.h"
#include "coordinator/profile.h"
#include "fence/entry.h"
#include "lease/tracked_list.h"

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
	return grant->nonce != 0 &&
		now < lf_clock_after(Max(state->over_since, state->deadline), state->ttl);
}

/* In a transaction: a new worker finds what the one before it tracked. */
static void
recover(void *arg)
{
	int			cursor = 0;
	LfGrant		grant;
	LfLock		lock;

	while (lf_entry_next(MyDatabaseId, &cursor, &grant))
	{
		if (needs_tracking(&grant) && lock_of(&grant.resource, &lock))
		{
			lf_tracked_add(&grant, &lock);
			lf_tracked_look_soon(grant.state.token);
		}
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
	uint64		generation = lf_profile_generation();

	if (!recovered)
		recovered = lf_transaction_try("finding leases of lock services", recover, NULL, &end, &problem);
	if (generation != profiles_seen && !lf_tracked_is_empty() &&
		lf_transaction_try("comparing profiles", compare_profiles, NULL, &end, &problem))
		profiles_seen = generation;
}
