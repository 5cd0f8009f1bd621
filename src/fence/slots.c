/*
 * slots.c
 *		The slots of entries: memory, chains, the free list, eviction and the
 *		list of ends to be written.
 *
 * Runs in every process.  What an entry means is entry.c's business.  A chain
 * and the slots in it belong to one of the partitions' LWLocks.  The free list,
 * the eviction hand and the list of ends belong to LF_LOCK_ENTRY_SLOTS, which
 * may be taken inside a partition's lock, never around one.
 *
 * What must end well: a table of slots that is full (an entry that is over, and
 * whose end is committed, makes room; nothing else does), two processes that
 * insert one name (the second gives its slot back), a slot that changes its
 * name while somebody is on the way to it by its number.
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/settings.h"
#include "fence/slots.h"
#include "storage/shmem.h"

LfSlots		lf_slots = {NULL, NULL, NULL, NULL};

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

/* ---------------------------------------------------------------------------
 * Memory, for entry.h
 * ---------------------------------------------------------------------------
 */

/* Of what lies before the slots: each of these begins with a line of the cache. */
static Size
size_before_slots(void)
{
	Size		size = MAXALIGN(sizeof(LfSlotsHead));

	size = add_size(size, MAXALIGN(mul_size(count_buckets(), sizeof(int))));
	size = add_size(size, mul_size(count_slots(), sizeof(Oid)));
	return CACHELINEALIGN(size);
}

Size
lf_entry_shmem_size(void)
{
	return add_size(size_before_slots(), mul_size(count_slots(), sizeof(LfSlot)));
}

void
lf_entry_shmem_init(void)
{
	bool		there;
	char	   *place = ShmemInitStruct("lease_fence entries",
										lf_entry_shmem_size(), &there);

	lf_slots.head = (LfSlotsHead *) place;
	lf_slots.buckets = (int *) (place + MAXALIGN(sizeof(LfSlotsHead)));
	lf_slots.databases = (Oid *) ((char *) lf_slots.buckets +
								  MAXALIGN(count_buckets() * sizeof(int)));
	lf_slots.slots = (LfSlot *) (place + size_before_slots());
	if (there)
		return;

	lf_slots.head->slot_count = count_slots();
	lf_slots.head->bucket_count = count_buckets();
	lf_slots.head->end_head = LF_NO_SLOT;
	lf_slots.head->hand = 0;
	pg_atomic_init_u64(&lf_slots.head->last_load, 0);
	lf_slots.head->since = lf_clock_now();
	for (int i = 0; i < lf_slots.head->bucket_count; i++)
		lf_slots.buckets[i] = LF_NO_SLOT;
	for (int i = 0; i < lf_slots.head->slot_count; i++)
	{
		memset(&lf_slots.slots[i], 0, sizeof(LfSlot));
		lf_slots.slots[i].end_previous = LF_NO_END;
		lf_slots.databases[i] = InvalidOid;
		lf_slots.slots[i].next = i + 1 < lf_slots.head->slot_count ? i + 1 : LF_NO_SLOT;
	}
	lf_slots.head->free_head = 0;
}

LfClock
lf_entry_memory_since(void)
{
	return lf_slots.head->since;
}

/* ---------------------------------------------------------------------------
 * The list of ends
 * ---------------------------------------------------------------------------
 */

void
lf_slots_list_end(LfSlot *slot)
{
	int			index = lf_slots_number(slot);

	if (lf_slots_end_is_listed(slot))
		return;
	LWLockAcquire(lf_lwlock(LF_LOCK_ENTRY_SLOTS), LW_EXCLUSIVE);
	slot->end_previous = LF_NO_SLOT;
	slot->end_next = lf_slots.head->end_head;
	if (lf_slots.head->end_head != LF_NO_SLOT)
		lf_slots.slots[lf_slots.head->end_head].end_previous = index;
	lf_slots.head->end_head = index;
	LWLockRelease(lf_lwlock(LF_LOCK_ENTRY_SLOTS));
}

void
lf_slots_unlist_end(LfSlot *slot, bool written)
{
	if (!lf_slots_end_is_listed(slot))
	{
		slot->end_previous = written ? LF_END_WRITTEN : LF_NO_END;
		return;
	}
	LWLockAcquire(lf_lwlock(LF_LOCK_ENTRY_SLOTS), LW_EXCLUSIVE);
	if (slot->end_previous != LF_NO_SLOT)
		lf_slots.slots[slot->end_previous].end_next = slot->end_next;
	else
		lf_slots.head->end_head = slot->end_next;
	if (slot->end_next != LF_NO_SLOT)
		lf_slots.slots[slot->end_next].end_previous = slot->end_previous;
	slot->end_previous = written ? LF_END_WRITTEN : LF_NO_END;
	LWLockRelease(lf_lwlock(LF_LOCK_ENTRY_SLOTS));
}

bool
lf_slots_any_ends(void)
{
	bool		any;

	LWLockAcquire(lf_lwlock(LF_LOCK_ENTRY_SLOTS), LW_SHARED);
	any = lf_slots.head->end_head != LF_NO_SLOT;
	LWLockRelease(lf_lwlock(LF_LOCK_ENTRY_SLOTS));
	return any;
}

int
lf_slots_collect_ends(Oid database, int *numbers, int max)
{
	LfSlot	   *slots = lf_slots.slots;
	int			found = 0;

	LWLockAcquire(lf_lwlock(LF_LOCK_ENTRY_SLOTS), LW_SHARED);
	for (int i = lf_slots.head->end_head; i != LF_NO_SLOT && found < max; i = slots[i].end_next)
	{
		/* a listed slot does not change its name without leaving the list */
		if (slots[i].grant.resource.database == database)
			numbers[found++] = i;
	}
	LWLockRelease(lf_lwlock(LF_LOCK_ENTRY_SLOTS));
	return found;
}

/* ---------------------------------------------------------------------------
 * Taking slots and giving them back
 * ---------------------------------------------------------------------------
 */

/* Takes a used slot out of its chain.  Caller holds the partition's lock. */
static void
unchain(LfSlot *slot)
{
	int		   *link = lf_slots_bucket(slot->hash);
	int			index = lf_slots_number(slot);

	while (*link != index)
		link = &lf_slots.slots[*link].next;
	*link = slot->next;
	lf_slots_unlist_end(slot, false);
	lf_slots.databases[index] = InvalidOid;
}

static void
give_back(LfSlot *slot)
{
	LWLockAcquire(lf_lwlock(LF_LOCK_ENTRY_SLOTS), LW_EXCLUSIVE);
	slot->next = lf_slots.head->free_head;
	lf_slots.head->free_head = lf_slots_number(slot);
	LWLockRelease(lf_lwlock(LF_LOCK_ENTRY_SLOTS));
}

/*
 * An entry may only go when the table says all that it says: it is over, its
 * end is committed, and no mint is at work on it.
 */
static bool
may_evict(const LfSlot *slot)
{
	return OidIsValid(lf_slots.databases[lf_slots_number(slot)]) &&
		lf_slots_end_is_written(slot) && !slot->grant.state.draining && !slot->grant.state.loading;
}

static LfSlot *
evict(int index)
{
	LfSlot	   *slot = &lf_slots.slots[index];
	uint32		hash = slot->hash;	/* read unlocked: checked again below */
	LWLock	   *lock = lf_slots_partition(hash);
	bool		gone = false;

	if (!may_evict(slot))
		return NULL;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (may_evict(slot))
	{
		pg_read_barrier();		/* as in lf_slots_lock_number */
		gone = slot->hash == hash;
	}
	if (gone)
		unchain(slot);
	LWLockRelease(lock);
	return gone ? slot : NULL;
}

/* A slot that is in no chain and no list, or NULL.  No lock of ours is held. */
static LfSlot *
take_slot(void)
{
	LfSlot	   *slot = NULL;

	LWLockAcquire(lf_lwlock(LF_LOCK_ENTRY_SLOTS), LW_EXCLUSIVE);
	if (lf_slots.head->free_head != LF_NO_SLOT)
	{
		slot = &lf_slots.slots[lf_slots.head->free_head];
		lf_slots.head->free_head = slot->next;
	}
	LWLockRelease(lf_lwlock(LF_LOCK_ENTRY_SLOTS));

	for (int tries = 0; slot == NULL && tries < lf_slots.head->slot_count; tries++)
	{
		int			index;

		LWLockAcquire(lf_lwlock(LF_LOCK_ENTRY_SLOTS), LW_EXCLUSIVE);
		index = lf_slots.head->hand;
		lf_slots.head->hand = (index + 1) % lf_slots.head->slot_count;
		LWLockRelease(lf_lwlock(LF_LOCK_ENTRY_SLOTS));
		slot = evict(index);
	}
	return slot;
}

bool
lf_slots_insert(const LfGrant *grant, uint32 hash, bool *inserted)
{
	LWLock	   *lock = lf_slots_partition(hash);
	LfSlot	   *fresh = take_slot();

	*inserted = false;
	if (fresh == NULL)
		return false;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (lf_slots_find(&grant->resource, hash) == NULL)
	{
		memset(fresh, 0, sizeof(LfSlot));
		fresh->hash = hash;
		fresh->end_previous = LF_NO_END;
		fresh->grant = *grant;
		fresh->grant.of.load = pg_atomic_add_fetch_u64(&lf_slots.head->last_load, 1);
		pg_write_barrier();		/* who sees it in use sees its hash */
		lf_slots.databases[lf_slots_number(fresh)] = grant->resource.database;
		fresh->next = *lf_slots_bucket(hash);
		*lf_slots_bucket(hash) = lf_slots_number(fresh);
		*inserted = true;
	}
	LWLockRelease(lock);
	if (!*inserted)
		give_back(fresh);
	return true;
}

void
lf_slots_free(LfSlot *slot)
{
	unchain(slot);
	lf_slots_unlock(slot);
	give_back(slot);
}

/* ---------------------------------------------------------------------------
 * Locking
 * ---------------------------------------------------------------------------
 */

LfSlot *
lf_slots_lock_hash(const LfResource *resource, uint32 hash, LWLockMode mode)
{
	LWLock	   *lock = lf_slots_partition(hash);
	LfSlot	   *slot;

	LWLockAcquire(lock, mode);
	slot = lf_slots_find(resource, hash);
	if (slot == NULL)
		LWLockRelease(lock);
	return slot;
}

LfSlot *
lf_slots_lock(const LfResource *resource, LWLockMode mode)
{
	return lf_slots_lock_hash(resource, lf_resource_hash(resource), mode);
}

/* It is looked at unlocked first: most slots are not the ones wanted. */
LfSlot *
lf_slots_lock_number(int number, Oid database, LWLockMode mode)
{
	LfSlot	   *slot = &lf_slots.slots[number];
	LWLock	   *lock;

	if (lf_slots.databases[number] != database)
		return NULL;
	pg_read_barrier();			/* pairs with the one in lf_slots_insert */
	lock = lf_slots_partition(slot->hash);
	LWLockAcquire(lock, mode);
	if (lf_slots.databases[number] == database)
	{
		/* it may be in use anew, in another partition: then its hash says so */
		pg_read_barrier();
		if (lock == lf_slots_partition(slot->hash))
			return slot;
	}
	LWLockRelease(lock);
	return NULL;
}
