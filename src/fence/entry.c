/*
 * entry.c
 *		Entries: each resource's latest grant, in shared memory.
 *
 * Runs in every process.  Where entries lie, and how they are found and locked,
 * is slots.c's business: here is what becomes of them.
 *
 * What must end well: a loader that dies (the next one loads again), a worker
 * that dies between any two steps.
 */
#include "postgres.h"

#include "base/compat.h"
#include "fence/entry.h"
#include "fence/slots.h"
#include "utils/timestamp.h"

const char *
lf_scope_name(LfScope scope)
{
	switch (scope)
	{
		case LF_SCOPE_TRANSACTION:
			return "transaction";
		case LF_SCOPE_SESSION:
			return "session";
		case LF_SCOPE_DETACHED:
			return "detached";
	}
	return "?";					/* keep the compiler quiet */
}

const char *
lf_over_name(LfOver over)
{
	switch (over)
	{
		case LF_OVER_NOT:
			return "live";
		case LF_OVER_LAPSED:
			return "lapsed";
		case LF_OVER_RELEASED:
			return "released";
		case LF_OVER_REVOKED:
			return "revoked";
		case LF_OVER_TAKEN:
			return "taken over";
	}
	return "?";					/* keep the compiler quiet */
}

const char *
lf_coordinator_name(LfCoordinator coordinator)
{
	switch (coordinator)
	{
		case LF_COORDINATOR_EMBEDDED:
			return "embedded";
		case LF_COORDINATOR_EXTERNAL:
			return "external";
		case LF_COORDINATOR_REDIS:
			return "redis";
	}
	return "?";					/* keep the compiler quiet */
}

bool
lf_grant_is_live(const LfGrantState *state, LfClock now)
{
	return state->token != 0 && !state->loading &&
		state->over == LF_OVER_NOT && now < state->deadline;
}

bool
lf_entry_look(const LfResource *resource, uint32 hash, LfGrantState *state)
{
	LWLock	   *lock = lf_slots_partition(hash);
	LfSlot	   *slot;

	LWLockAcquire(lock, LW_SHARED);
	slot = lf_slots_find(resource, hash);
	if (slot != NULL)
		*state = slot->grant.state;
	LWLockRelease(lock);
	return slot != NULL;
}

bool
lf_entry_look_at_owner(const LfResource *resource, uint32 hash, LfGrantState *state,
					   int *owner_pid)
{
	LfSlot	   *slot = lf_slots_lock_hash(resource, hash, LW_SHARED);

	if (slot == NULL)
		return false;
	*state = slot->grant.state;
	*owner_pid = slot->grant.owner_pid;
	lf_slots_unlock(slot);
	return true;
}

bool
lf_entry_read(const LfResource *resource, LfGrant *grant)
{
	LfSlot	   *slot = lf_slots_lock(resource, LW_SHARED);

	if (slot == NULL)
		return false;
	*grant = slot->grant;
	lf_slots_unlock(slot);
	return true;
}

bool
lf_entry_next(Oid database, int *cursor, LfGrant *grant)
{
	lf_shmem_require();
	while (*cursor < lf_slots_count())
	{
		LfSlot	   *slot = lf_slots_lock_number((*cursor)++, database, LW_SHARED);

		if (slot == NULL)
			continue;
		*grant = slot->grant;
		lf_slots_unlock(slot);
		return true;
	}
	return false;
}

/* ---------------------------------------------------------------------------
 * Loading
 * ---------------------------------------------------------------------------
 */

/* Caller has the slot locked exclusively. */
static void
set_over(LfSlot *slot, LfOver how)
{
	LfGrantState *state = &slot->grant.state;

	state->over = how;
	state->over_since = lf_clock_now();
	state->barred = how == LF_OVER_REVOKED && state->adopted;
	slot->grant.ended_at = GetCurrentTimestamp();
	if (!state->loading && state->token != 0 && !lf_slots_end_is_written(slot))
		lf_slots_list_end(slot);
}

/* Is the entry there?  Takes part in the load that is under way, if one is. */
static bool
join_load(const LfResource *resource, LfEntryLoad *load)
{
	LfSlot	   *slot = lf_slots_lock(resource, LW_SHARED);

	load->number = 0;
	if (slot == NULL)
		return false;
	if (slot->grant.state.loading)
		load->number = slot->grant.of.load;
	lf_slots_unlock(slot);
	return true;
}

bool
lf_entry_begin_load(const LfResource *resource, LfEntryLoad *load)
{
	uint32		hash = lf_resource_hash(resource);
	LfGrant		unknown;

	load->inserted = false;
	if (join_load(resource, load))
		return true;
	memset(&unknown, 0, sizeof(unknown));
	unknown.resource = *resource;
	unknown.state.loading = true;
	unknown.state.owner = -1;
	if (!lf_slots_insert(&unknown, hash, &load->inserted))
		return false;
	join_load(resource, load);
	return true;
}

/*
 * Only for the load that the caller has taken part in since before it looked
 * into the table: that one may be over, its grant ended and evicted, and what
 * the caller has read be what a later load must not believe.
 */
bool
lf_entry_fill(const LfGrant *grant, const LfEntryLoad *load)
{
	LfSlot	   *slot = lf_slots_lock(&grant->resource, LW_EXCLUSIVE);
	bool		loaded;

	if (slot == NULL)
		return false;
	if (slot->grant.state.loading && slot->grant.of.load == load->number)
	{
		LfOver		over = slot->grant.state.over;
		bool		draining = slot->grant.state.draining;

		slot->grant = *grant;
		slot->grant.state.loading = false;
		slot->grant.state.draining = draining;
		lf_slots_unlist_end(slot, grant->state.token == 0 || grant->ended_at != 0);
		if (over == LF_OVER_NOT)
			over = grant->state.over;
		if (over != LF_OVER_NOT && !lf_slots_end_is_written(slot))
			set_over(slot, over);
	}
	loaded = !slot->grant.state.loading && slot->grant.state.token == grant->state.token;
	lf_slots_unlock(slot);
	return loaded;
}

void
lf_entry_cancel_load(const LfResource *resource, const LfEntryLoad *load)
{
	LfSlot	   *slot = lf_slots_lock(resource, LW_EXCLUSIVE);

	if (slot == NULL)
		return;
	if (slot->grant.state.loading && slot->grant.of.load == load->number &&
		slot->grant.state.over == LF_OVER_NOT && !slot->grant.state.draining)
		lf_slots_free(slot);
	else
		lf_slots_unlock(slot);
}

/* ---------------------------------------------------------------------------
 * A grant's life
 * ---------------------------------------------------------------------------
 */

bool
lf_entry_end(const LfResource *resource, int64 token, LfOver how)
{
	LfSlot	   *slot = lf_slots_lock(resource, LW_EXCLUSIVE);
	bool		was_live = false;

	if (slot == NULL)
		return false;
	if (slot->grant.state.over == LF_OVER_NOT &&
		(slot->grant.state.loading || slot->grant.state.token == token))
	{
		was_live = lf_grant_is_live(&slot->grant.state, lf_clock_now());
		set_over(slot, was_live || slot->grant.state.loading ? how : LF_OVER_LAPSED);
	}
	lf_slots_unlock(slot);
	return was_live;
}

bool
lf_entry_extend(const LfResource *resource, int64 token, int64 ttl,
				LfGrantState *state)
{
	LfSlot	   *slot = lf_slots_lock(resource, LW_EXCLUSIVE);
	LfClock		now;
	bool		done = false;

	memset(state, 0, sizeof(*state));
	if (slot == NULL)
		return false;
	now = lf_clock_now();
	Assert(slot->grant.state.token != token ||
		   slot->grant.state.coordinator != LF_COORDINATOR_REDIS);
	if (slot->grant.state.token == token && lf_grant_is_live(&slot->grant.state, now))
	{
		LfGrantState *mine = &slot->grant.state;

		mine->deadline = Max(mine->deadline,
							 lf_clock_after(now, ttl > 0 ? ttl : mine->ttl));
		slot->grant.renewals++;
		done = true;
	}
	*state = slot->grant.state;
	lf_slots_unlock(slot);
	return done;
}

bool
lf_entry_set_deadline(const LfResource *resource, uint32 hash, int64 token,
					  LfClock deadline, LfClock latest, LfGrantState *state)
{
	LfSlot	   *slot = lf_slots_lock_hash(resource, hash, LW_EXCLUSIVE);
	bool		done;

	if (slot == NULL)
		return false;
	done = slot->grant.state.token == token &&
		lf_grant_is_live(&slot->grant.state, lf_clock_now());
	if (done)
	{
		deadline = Min(deadline, Max(slot->grant.state.deadline, latest));
		if (deadline > slot->grant.state.deadline)
			slot->grant.renewals++;
		slot->grant.state.deadline = deadline;
	}
	*state = slot->grant.state;
	lf_slots_unlock(slot);
	return done;
}

void
lf_entry_lift_bar(const LfResource *resource, int64 token)
{
	LfSlot	   *slot = lf_slots_lock(resource, LW_EXCLUSIVE);

	if (slot == NULL)
		return;
	if (slot->grant.state.token == token)
		slot->grant.state.barred = false;
	lf_slots_unlock(slot);
}

void
lf_entry_set_scope(const LfResource *resource, int64 token, LfScope scope)
{
	LfSlot	   *slot = lf_slots_lock(resource, LW_EXCLUSIVE);

	if (slot == NULL)
		return;
	if (slot->grant.state.token == token)
		slot->grant.state.scope = scope;
	lf_slots_unlock(slot);
}

/* ---------------------------------------------------------------------------
 * Minting
 * ---------------------------------------------------------------------------
 */

/*
 * Two writes in this order: a reader that sees "draining" without "over" would
 * have no reason to give, and a failed grant takes back the second one alone.
 */
bool
lf_entry_begin_mint(const LfResource *resource, LfOver how, LfGrantState *old,
					bool *end_written)
{
	LfSlot	   *slot = lf_slots_lock(resource, LW_EXCLUSIVE);
	bool		ready = false;

	if (slot == NULL)
		return false;
	if (!slot->grant.state.loading && !slot->grant.state.draining)
	{
		if (slot->grant.state.over == LF_OVER_NOT)
			set_over(slot, lf_grant_is_live(&slot->grant.state, lf_clock_now()) ?
					 how : LF_OVER_LAPSED);
		slot->grant.state.draining = true;
		if (slot->grant.state.drain_since == 0)
			slot->grant.state.drain_since = lf_clock_now();
		*old = slot->grant.state;
		*end_written = lf_slots_end_is_written(slot);
		ready = true;
	}
	lf_slots_unlock(slot);
	return ready;
}

void
lf_entry_cancel_mint(const LfResource *resource)
{
	LfSlot	   *slot = lf_slots_lock(resource, LW_EXCLUSIVE);

	if (slot == NULL)
		return;
	slot->grant.state.draining = false;
	lf_slots_unlock(slot);
}

/* The mint's transaction has written the old grant's end as well. */
void
lf_entry_publish(const LfGrant *grant)
{
	LfSlot	   *slot = lf_slots_lock(&grant->resource, LW_EXCLUSIVE);

	if (slot == NULL)
		return;
	lf_slots_unlist_end(slot, false);
	slot->grant = *grant;
	if (grant->state.over != LF_OVER_NOT)
		set_over(slot, grant->state.over);
	lf_slots_unlock(slot);
}

/* ---------------------------------------------------------------------------
 * The worker's rounds
 * ---------------------------------------------------------------------------
 */

/* Caller has the slot locked exclusively.  When to look again. */
static LfClock
sweep_slot(LfSlot *slot, LfClock now, LfOwnerCheck alive, int *live)
{
	LfGrantState *state = &slot->grant.state;

	if (state->loading || state->token == 0 || state->over != LF_OVER_NOT)
		return LF_CLOCK_NEVER;
	if (now >= state->deadline)
	{
		/*
		 * Not "over": a guard may accept a lapsed grant until it is
		 * superseded.  Whatever the watchdog wanted, it came too late.
		 */
		if (!lf_slots_end_is_written(slot) && !lf_slots_end_is_listed(slot))
		{
			slot->grant.ended_at = GetCurrentTimestamp();
			lf_slots_list_end(slot);
		}
		return LF_CLOCK_NEVER;
	}
	(*live)++;
	if (!state->watchdog || state->coordinator == LF_COORDINATOR_REDIS)
		return state->deadline;
	if (state->deadline - now <= state->ttl - state->ttl / 3 + state->ttl / 30 &&
		alive(state->owner, slot->grant.owner_pid, state->scope))
	{
		state->deadline = lf_clock_after(now, state->ttl);
		slot->grant.renewals++;
	}
	if (state->deadline - now > state->ttl - state->ttl / 3)
		return state->deadline - (state->ttl - state->ttl / 3);
	return state->deadline;
}

LfClock
lf_entry_sweep(Oid database, LfOwnerCheck alive, int *live)
{
	LfClock		next = LF_CLOCK_NEVER;

	*live = 0;
	for (int i = 0; i < lf_slots_count(); i++)
	{
		LfSlot	   *slot = lf_slots_lock_number(i, database, LW_EXCLUSIVE);

		if (slot == NULL)
			continue;
		next = Min(next, sweep_slot(slot, lf_clock_now(), alive, live));
		lf_slots_unlock(slot);
	}
	return next;
}

/* What is to be written of a slot; false: nothing (any more). */
static bool
read_end(int number, Oid database, LfEnd *end)
{
	LfSlot	   *slot = lf_slots_lock_number(number, database, LW_SHARED);
	const LfGrantState *state;
	bool		ended;

	if (slot == NULL)
		return false;
	ended = lf_slots_end_is_listed(slot);
	if (ended)
	{
		state = &slot->grant.state;
		end->slot = number;
		end->token = state->token;
		end->scope = state->scope;
		end->how = state->over != LF_OVER_NOT ? state->over : LF_OVER_LAPSED;
		end->at = slot->grant.ended_at;
	}
	lf_slots_unlock(slot);
	return ended;
}

int
lf_entry_take_ends(Oid database, LfEnd *ends, int max)
{
	int			taken = 0;
	int			candidates[256];
	int			found = lf_slots_collect_ends(database, candidates,
											  Min(max, (int) lengthof(candidates)));

	for (int i = 0; i < found; i++)
	{
		if (read_end(candidates[i], database, &ends[taken]))
			taken++;
	}
	return taken;
}

void
lf_entry_end_written(const LfEnd *end)
{
	LfSlot	   *slot = lf_slots_lock_number(end->slot, MyDatabaseId, LW_EXCLUSIVE);

	if (slot == NULL)
		return;
	if (lf_slots_end_is_listed(slot) && slot->grant.state.token == end->token)
		lf_slots_unlist_end(slot, true);
	lf_slots_unlock(slot);
}

bool
lf_entry_ends_are_pending(void)
{
	return lf_slots_any_ends();
}

bool
lf_entry_end_is_pending(const LfResource *resource)
{
	LfSlot	   *slot = lf_slots_lock(resource, LW_SHARED);
	bool		pending;

	if (slot == NULL)
		return false;
	pending = lf_slots_end_is_listed(slot);
	lf_slots_unlock(slot);
	return pending;
}

void
lf_entry_forget_database(Oid database)
{
	for (int i = 0; i < lf_slots_count(); i++)
	{
		LfSlot	   *slot = lf_slots_lock_number(i, database, LW_EXCLUSIVE);

		if (slot != NULL)
			lf_slots_free(slot);
	}
}

LfReason
lf_over_reason(LfOver over)
{
	switch (over)
	{
		case LF_OVER_RELEASED:
			return LF_REASON_RELEASED;
		case LF_OVER_REVOKED:
			return LF_REASON_REVOKED;
		case LF_OVER_TAKEN:
			return LF_REASON_SUPERSEDED;
		case LF_OVER_NOT:
		case LF_OVER_LAPSED:
			break;
	}
	return LF_REASON_LAPSED;
}
