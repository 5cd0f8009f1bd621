/*
 * entry.c
 *		Entries: each resource's latest grant, in shared memory.
 *
 * Runs in every process.  Slots are found by a hash of the full name, in
 * chains; a chain and the slots in it belong to one of the partitions' LWLocks.
 * The free list, the eviction hand and the list of ends to be written belong to
 * LF_LOCK_ENTRY_SLOTS, which may be taken inside a partition's lock, never
 * around one.
 *
 * What must end well: a table of slots that is full (an entry that is over, and
 * whose end is committed, makes room; nothing else does), a loader that dies
 * (the next one loads again), a worker that dies between any two steps.
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/settings.h"
#include "base/shmem.h"
#include "fence/entry.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#define NO_SLOT (-1)

typedef struct LfSlot
{
	uint32		hash;
	int			next;			/* in its chain, or in the free list */
	int			end_next;		/* in the list of ends to be written */
	int			end_previous;
	bool		used;
	bool		in_end_list;
	bool		end_written;	/* the table has the end of state.token */
	LfGrant		grant;
} LfSlot;

typedef struct LfEntries
{
	int			slot_count;
	int			bucket_count;	/* a power of two */
	int			free_head;
	int			end_head;
	int			hand;			/* where eviction looks next */
	LfClock		since;			/* what is remembered begins here */
} LfEntries;

static LfEntries *entries = NULL;
static int *buckets = NULL;
static LfSlot *slots = NULL;

/*
 * Room beside the live leases for the names whose lease is over: they make
 * room for others, but not before their end is in the table.
 */
static int
count_slots(void)
{
	return lf_max_leases + lf_max_leases / 8 + 64;
}

static int
count_buckets(void)
{
	int			count = 1024;

	while (count < count_slots())
		count *= 2;
	return count;
}

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

Size
lf_entry_shmem_size(void)
{
	Size		size = MAXALIGN(sizeof(LfEntries));

	size = add_size(size, MAXALIGN(mul_size(count_buckets(), sizeof(int))));
	return add_size(size, mul_size(count_slots(), sizeof(LfSlot)));
}

void
lf_entry_shmem_init(void)
{
	bool		there;
	char	   *place = ShmemInitStruct("lease_fence entries",
										lf_entry_shmem_size(), &there);

	entries = (LfEntries *) place;
	buckets = (int *) (place + MAXALIGN(sizeof(LfEntries)));
	slots = (LfSlot *) ((char *) buckets +
						MAXALIGN(count_buckets() * sizeof(int)));
	if (there)
		return;

	entries->slot_count = count_slots();
	entries->bucket_count = count_buckets();
	entries->end_head = NO_SLOT;
	entries->hand = 0;
	entries->since = lf_clock_now();
	for (int i = 0; i < entries->bucket_count; i++)
		buckets[i] = NO_SLOT;
	for (int i = 0; i < entries->slot_count; i++)
	{
		memset(&slots[i], 0, sizeof(LfSlot));
		slots[i].next = i + 1 < entries->slot_count ? i + 1 : NO_SLOT;
	}
	entries->free_head = 0;
}

LfClock
lf_entry_memory_since(void)
{
	return entries->since;
}

static inline LWLock *
partition_lock(uint32 hash)
{
	return lf_lwlock(LF_LOCK_ENTRIES + hash % LF_ENTRY_PARTITIONS);
}

static inline int *
bucket_of(uint32 hash)
{
	return &buckets[hash & (entries->bucket_count - 1)];
}

/* Caller holds the partition's lock. */
static LfSlot *
find_slot(const LfResource *resource, uint32 hash)
{
	for (int i = *bucket_of(hash); i != NO_SLOT; i = slots[i].next)
	{
		if (slots[i].hash == hash &&
			lf_resource_equal(&slots[i].grant.resource, resource))
			return &slots[i];
	}
	return NULL;
}

/* Caller holds the partition's lock exclusively. */
static void
list_end(LfSlot *slot)
{
	int			index = slot - slots;

	if (slot->in_end_list)
		return;
	LWLockAcquire(lf_lwlock(LF_LOCK_ENTRY_SLOTS), LW_EXCLUSIVE);
	slot->end_previous = NO_SLOT;
	slot->end_next = entries->end_head;
	if (entries->end_head != NO_SLOT)
		slots[entries->end_head].end_previous = index;
	entries->end_head = index;
	slot->in_end_list = true;
	LWLockRelease(lf_lwlock(LF_LOCK_ENTRY_SLOTS));
}

/* Caller holds the partition's lock exclusively. */
static void
unlist_end(LfSlot *slot)
{
	if (!slot->in_end_list)
		return;
	LWLockAcquire(lf_lwlock(LF_LOCK_ENTRY_SLOTS), LW_EXCLUSIVE);
	if (slot->end_previous != NO_SLOT)
		slots[slot->end_previous].end_next = slot->end_next;
	else
		entries->end_head = slot->end_next;
	if (slot->end_next != NO_SLOT)
		slots[slot->end_next].end_previous = slot->end_previous;
	slot->in_end_list = false;
	LWLockRelease(lf_lwlock(LF_LOCK_ENTRY_SLOTS));
}

/* Takes a used slot out of its chain.  Caller holds the partition's lock. */
static void
unchain(LfSlot *slot)
{
	int		   *link = bucket_of(slot->hash);
	int			index = slot - slots;

	while (*link != index)
		link = &slots[*link].next;
	*link = slot->next;
	unlist_end(slot);
	slot->used = false;
}

static void
give_back(LfSlot *slot)
{
	LWLockAcquire(lf_lwlock(LF_LOCK_ENTRY_SLOTS), LW_EXCLUSIVE);
	slot->next = entries->free_head;
	entries->free_head = slot - slots;
	LWLockRelease(lf_lwlock(LF_LOCK_ENTRY_SLOTS));
}

/*
 * An entry may only go when the table says all that it says: it is over, its
 * end is committed, and no mint is at work on it.
 */
static bool
may_evict(const LfSlot *slot)
{
	return slot->used && slot->end_written &&
		!slot->grant.state.draining && !slot->grant.state.loading;
}

static LfSlot *
evict(int index)
{
	LfSlot	   *slot = &slots[index];
	uint32		hash = slot->hash;	/* read unlocked: checked again below */
	LWLock	   *lock = partition_lock(hash);
	bool		gone = false;

	if (!may_evict(slot))
		return NULL;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (slot->hash == hash && may_evict(slot))
	{
		unchain(slot);
		gone = true;
	}
	LWLockRelease(lock);
	return gone ? slot : NULL;
}

/* A slot that is in no chain and no list, or NULL.  No lock of ours is held. */
static LfSlot *
take_slot(void)
{
	LfSlot	   *slot = NULL;

	LWLockAcquire(lf_lwlock(LF_LOCK_ENTRY_SLOTS), LW_EXCLUSIVE);
	if (entries->free_head != NO_SLOT)
	{
		slot = &slots[entries->free_head];
		entries->free_head = slot->next;
	}
	LWLockRelease(lf_lwlock(LF_LOCK_ENTRY_SLOTS));

	for (int tries = 0; slot == NULL && tries < entries->slot_count; tries++)
	{
		int			index;

		LWLockAcquire(lf_lwlock(LF_LOCK_ENTRY_SLOTS), LW_EXCLUSIVE);
		index = entries->hand;
		entries->hand = (index + 1) % entries->slot_count;
		LWLockRelease(lf_lwlock(LF_LOCK_ENTRY_SLOTS));
		slot = evict(index);
	}
	return slot;
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
	LWLock	   *lock = partition_lock(hash);
	LfSlot	   *slot;

	LWLockAcquire(lock, LW_SHARED);
	slot = find_slot(resource, hash);
	if (slot != NULL)
		*state = slot->grant.state;
	LWLockRelease(lock);
	return slot != NULL;
}

bool
lf_entry_read(const LfResource *resource, LfGrant *grant)
{
	uint32		hash = lf_resource_hash(resource);
	LWLock	   *lock = partition_lock(hash);
	LfSlot	   *slot;

	LWLockAcquire(lock, LW_SHARED);
	slot = find_slot(resource, hash);
	if (slot != NULL)
		*grant = slot->grant;
	LWLockRelease(lock);
	return slot != NULL;
}

/*
 * Locks the partition of a slot that was found by its number, if the slot is in
 * use and the database's; NULL if not.
 */
static LWLock *
lock_slot(LfSlot *slot, Oid database, LWLockMode mode)
{
	LWLock	   *lock;

	if (!slot->used || slot->grant.resource.database != database)
		return NULL;
	pg_read_barrier();			/* pairs with the one where it comes into use */
	lock = partition_lock(slot->hash);
	LWLockAcquire(lock, mode);
	if (slot->used && slot->grant.resource.database == database &&
		lock == partition_lock(slot->hash))
		return lock;
	LWLockRelease(lock);
	return NULL;
}

bool
lf_entry_next(Oid database, int *cursor, LfGrant *grant)
{
	while (*cursor < entries->slot_count)
	{
		LfSlot	   *slot = &slots[(*cursor)++];
		LWLock	   *lock = lock_slot(slot, database, LW_SHARED);

		if (lock == NULL)
			continue;
		*grant = slot->grant;
		LWLockRelease(lock);
		return true;
	}
	return false;
}

/* Caller holds the partition's lock exclusively. */
static void
set_over(LfSlot *slot, LfOver how)
{
	LfGrantState *state = &slot->grant.state;

	state->over = how;
	state->over_since = lf_clock_now();
	slot->grant.ended_at = GetCurrentTimestamp();
	if (!state->loading && state->token != 0 && !slot->end_written)
		list_end(slot);
}

bool
lf_entry_begin_load(const LfResource *resource, bool *inserted)
{
	uint32		hash = lf_resource_hash(resource);
	LWLock	   *lock = partition_lock(hash);
	LfGrantState state;
	LfSlot	   *fresh;

	*inserted = false;
	if (lf_entry_look(resource, hash, &state))
		return true;
	fresh = take_slot();
	if (fresh == NULL)
		return false;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (find_slot(resource, hash) == NULL)
	{
		memset(fresh, 0, sizeof(LfSlot));
		fresh->hash = hash;
		fresh->grant.resource = *resource;
		fresh->grant.state.loading = true;
		fresh->grant.state.owner = -1;
		pg_write_barrier();		/* who sees it used sees its hash */
		fresh->used = true;
		fresh->next = *bucket_of(hash);
		*bucket_of(hash) = fresh - slots;
		*inserted = true;
		fresh = NULL;
	}
	LWLockRelease(lock);
	if (fresh != NULL)
		give_back(fresh);
	return true;
}

bool
lf_entry_fill(const LfGrant *grant)
{
	uint32		hash = lf_resource_hash(&grant->resource);
	LWLock	   *lock = partition_lock(hash);
	LfSlot	   *slot;
	bool		loaded;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	slot = find_slot(&grant->resource, hash);
	if (slot != NULL && slot->grant.state.loading)
	{
		LfOver		over = slot->grant.state.over;
		bool		draining = slot->grant.state.draining;

		slot->grant = *grant;
		slot->grant.state.loading = false;
		slot->grant.state.draining = draining;
		slot->end_written = grant->state.token == 0 || grant->ended_at != 0;
		if (over == LF_OVER_NOT)
			over = grant->state.over;
		if (over != LF_OVER_NOT && !slot->end_written)
			set_over(slot, over);
	}
	loaded = slot != NULL && slot->grant.state.token == grant->state.token;
	LWLockRelease(lock);
	return loaded;
}

void
lf_entry_cancel_load(const LfResource *resource)
{
	uint32		hash = lf_resource_hash(resource);
	LWLock	   *lock = partition_lock(hash);
	LfSlot	   *slot;
	bool		gone = false;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	slot = find_slot(resource, hash);
	if (slot != NULL && slot->grant.state.loading &&
		slot->grant.state.over == LF_OVER_NOT && !slot->grant.state.draining)
	{
		unchain(slot);
		gone = true;
	}
	LWLockRelease(lock);
	if (gone)
		give_back(slot);
}

bool
lf_entry_end(const LfResource *resource, int64 token, LfOver how)
{
	uint32		hash = lf_resource_hash(resource);
	LWLock	   *lock = partition_lock(hash);
	LfSlot	   *slot;
	bool		was_live = false;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	slot = find_slot(resource, hash);
	if (slot != NULL && slot->grant.state.over == LF_OVER_NOT &&
		(slot->grant.state.loading || slot->grant.state.token == token))
	{
		was_live = lf_grant_is_live(&slot->grant.state, lf_clock_now());
		set_over(slot, was_live || slot->grant.state.loading ? how : LF_OVER_LAPSED);
	}
	LWLockRelease(lock);
	return was_live;
}

bool
lf_entry_extend(const LfResource *resource, int64 token, int64 ttl,
				LfGrantState *state)
{
	uint32		hash = lf_resource_hash(resource);
	LWLock	   *lock = partition_lock(hash);
	LfSlot	   *slot;
	bool		done = false;

	memset(state, 0, sizeof(*state));
	LWLockAcquire(lock, LW_EXCLUSIVE);
	slot = find_slot(resource, hash);
	if (slot != NULL)
	{
		LfGrantState *mine = &slot->grant.state;
		LfClock		now = lf_clock_now();

		if (mine->token == token && lf_grant_is_live(mine, now))
		{
			mine->deadline = Max(mine->deadline,
								 lf_clock_after(now, ttl > 0 ? ttl : mine->ttl));
			slot->grant.renewals++;
			done = true;
		}
		*state = *mine;
	}
	LWLockRelease(lock);
	return done;
}

void
lf_entry_set_scope(const LfResource *resource, int64 token, LfScope scope)
{
	uint32		hash = lf_resource_hash(resource);
	LWLock	   *lock = partition_lock(hash);
	LfSlot	   *slot;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	slot = find_slot(resource, hash);
	if (slot != NULL && slot->grant.state.token == token)
		slot->grant.state.scope = scope;
	LWLockRelease(lock);
}

/*
 * Two writes in this order: a reader that sees "draining" without "over" would
 * have no reason to give, and a failed grant takes back the second one alone.
 */
bool
lf_entry_begin_mint(const LfResource *resource, LfOver how, LfGrantState *old,
					bool *end_written)
{
	uint32		hash = lf_resource_hash(resource);
	LWLock	   *lock = partition_lock(hash);
	LfSlot	   *slot;
	bool		ready = false;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	slot = find_slot(resource, hash);
	if (slot != NULL && !slot->grant.state.loading && !slot->grant.state.draining)
	{
		if (slot->grant.state.over == LF_OVER_NOT)
			set_over(slot, lf_grant_is_live(&slot->grant.state, lf_clock_now()) ?
					 how : LF_OVER_LAPSED);
		slot->grant.state.draining = true;
		if (slot->grant.state.drain_since == 0)
			slot->grant.state.drain_since = lf_clock_now();
		*old = slot->grant.state;
		*end_written = slot->end_written;
		ready = true;
	}
	LWLockRelease(lock);
	return ready;
}

void
lf_entry_cancel_mint(const LfResource *resource)
{
	uint32		hash = lf_resource_hash(resource);
	LWLock	   *lock = partition_lock(hash);
	LfSlot	   *slot;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	slot = find_slot(resource, hash);
	if (slot != NULL)
		slot->grant.state.draining = false;
	LWLockRelease(lock);
}

/*
 * The mint's transaction has written the old grant's end as well.
 */
void
lf_entry_publish(const LfGrant *grant)
{
	uint32		hash = lf_resource_hash(&grant->resource);
	LWLock	   *lock = partition_lock(hash);
	LfSlot	   *slot;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	slot = find_slot(&grant->resource, hash);
	if (slot != NULL)
	{
		unlist_end(slot);
		slot->end_written = false;
		slot->grant = *grant;
		if (grant->state.over != LF_OVER_NOT)
			set_over(slot, grant->state.over);
	}
	LWLockRelease(lock);
}

/* Caller holds the partition's lock exclusively.  When to look again. */
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
		if (!slot->end_written && !slot->in_end_list)
		{
			slot->grant.ended_at = GetCurrentTimestamp();
			list_end(slot);
		}
		return LF_CLOCK_NEVER;
	}
	(*live)++;
	if (!state->watchdog)
		return state->deadline;
	if (state->deadline - now <= state->ttl - state->ttl / 3 &&
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
	for (int i = 0; i < entries->slot_count; i++)
	{
		LWLock	   *lock = lock_slot(&slots[i], database, LW_EXCLUSIVE);

		if (lock == NULL)
			continue;
		next = Min(next, sweep_slot(&slots[i], lf_clock_now(), alive, live));
		LWLockRelease(lock);
	}
	return next;
}

/* What is to be written of this slot; false: nothing (any more). */
static bool
read_end(LfSlot *slot, Oid database, LfEnd *end)
{
	LWLock	   *lock = lock_slot(slot, database, LW_SHARED);
	const LfGrantState *state = &slot->grant.state;
	bool		ended;

	if (lock == NULL)
		return false;
	ended = slot->in_end_list;
	if (ended)
	{
		end->slot = slot - slots;
		end->token = state->token;
		end->how = state->over != LF_OVER_NOT ? state->over : LF_OVER_LAPSED;
		end->at = slot->grant.ended_at;
	}
	LWLockRelease(lock);
	return ended;
}

int
lf_entry_take_ends(Oid database, LfEnd *ends, int max)
{
	int			found = 0;
	int			taken = 0;
	int			candidates[256];

	max = Min(max, (int) lengthof(candidates));
	LWLockAcquire(lf_lwlock(LF_LOCK_ENTRY_SLOTS), LW_SHARED);
	for (int i = entries->end_head; i != NO_SLOT && found < max; i = slots[i].end_next)
	{
		/* a listed slot does not change its name without leaving the list */
		if (slots[i].grant.resource.database == database)
			candidates[found++] = i;
	}
	LWLockRelease(lf_lwlock(LF_LOCK_ENTRY_SLOTS));

	for (int i = 0; i < found; i++)
	{
		if (read_end(&slots[candidates[i]], database, &ends[taken]))
			taken++;
	}
	return taken;
}

void
lf_entry_end_written(const LfEnd *end)
{
	LfSlot	   *slot = &slots[end->slot];
	LWLock	   *lock = lock_slot(slot, MyDatabaseId, LW_EXCLUSIVE);

	if (lock == NULL)
		return;
	if (slot->in_end_list && slot->grant.state.token == end->token)
	{
		unlist_end(slot);
		slot->end_written = true;
	}
	LWLockRelease(lock);
}

bool
lf_entry_end_is_pending(const LfResource *resource)
{
	uint32		hash = lf_resource_hash(resource);
	LWLock	   *lock = partition_lock(hash);
	LfSlot	   *slot;
	bool		pending;

	LWLockAcquire(lock, LW_SHARED);
	slot = find_slot(resource, hash);
	pending = slot != NULL && slot->in_end_list;
	LWLockRelease(lock);
	return pending;
}

void
lf_entry_forget_database(Oid database)
{
	for (int i = 0; i < entries->slot_count; i++)
	{
		LWLock	   *lock = lock_slot(&slots[i], database, LW_EXCLUSIVE);

		if (lock == NULL)
			continue;
		unchain(&slots[i]);
		LWLockRelease(lock);
		give_back(&slots[i]);
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
