/*
 * slots.h
 *		Where entries lie in shared memory.  Private: for entry.c alone.
 *
 * Slots are found by a hash of the full name, in chains; a chain and the slots
 * in it belong to one of the partitions' LWLocks.  What a function here needs to
 * be held, and what it leaves held, is said beside it.
 */
#ifndef LF_FENCE_SLOTS_H
#define LF_FENCE_SLOTS_H

#include "base/shmem.h"
#include "fence/entry.h"
#include "port/atomics.h"

#define LF_NO_SLOT (-1)

/* In the place of the one before it in the list of ends to be written. */
#define LF_NO_END		(-2)	/* it is not listed: there is none to be written */
#define LF_END_WRITTEN	(-3)	/* it is not listed: the table has that of state.token */

typedef struct LfSlot
{
	uint32		hash;
	int			next;			/* in its chain, or in the free list */
	int			end_next;		/* in the list of ends to be written */
	int			end_previous;
	LfGrant		grant;
} LfSlot;

typedef struct LfSlotsHead
{
	int			slot_count;
	int			bucket_count;	/* a power of two */
	int			free_head;
	int			end_head;
	int			hand;			/* where eviction looks next */
	pg_atomic_uint64 last_load;
	LfClock		since;			/* what is remembered begins here */
} LfSlotsHead;

/* Where this process has them. */
typedef struct LfSlots
{
	LfSlotsHead *head;
	int		   *buckets;
	Oid		   *databases;		/* whose slot that is; invalid: it is not in use */
	LfSlot	   *slots;
} LfSlots;

/* Hidden: the guard's look reads it as fast as a static variable. */
extern LfSlots lf_slots __attribute__((visibility("hidden")));

static inline LWLock *
lf_slots_partition(uint32 hash)
{
	return lf_lwlock(LF_LOCK_ENTRIES + hash % LF_ENTRY_PARTITIONS);
}

static inline int *
lf_slots_bucket(uint32 hash)
{
	return &lf_slots.buckets[hash & (lf_slots.head->bucket_count - 1)];
}

/* Caller holds the partition's lock, as for all that a slot says. */
static inline bool
lf_slots_end_is_listed(const LfSlot *slot)
{
	return slot->end_previous >= LF_NO_SLOT;
}

static inline bool
lf_slots_end_is_written(const LfSlot *slot)
{
	return slot->end_previous == LF_END_WRITTEN;
}

/* Caller holds the partition's lock. */
static inline LfSlot *
lf_slots_find(const LfResource *resource, uint32 hash)
{
	LfSlot	   *slots = lf_slots.slots;

	for (int i = *lf_slots_bucket(hash); i != LF_NO_SLOT; i = slots[i].next)
	{
		if (slots[i].hash == hash &&
			lf_resource_equal(&slots[i].grant.resource, resource))
			return &slots[i];
	}
	return NULL;
}

/*
 * Finds a slot and locks its partition; NULL, and nothing is locked, if there
 * is none.  lock_hash: with the name's hash.  lock_number: a slot that is known by
 * its number, if it is in use and the database's.
 */
extern LfSlot *lf_slots_lock_hash(const LfResource *resource, uint32 hash, LWLockMode mode);
extern LfSlot *lf_slots_lock(const LfResource *resource, LWLockMode mode);
extern LfSlot *lf_slots_lock_number(int number, Oid database, LWLockMode mode);

/* A slot keeps its hash for as long as its partition is locked. */
static inline void
lf_slots_unlock(const LfSlot *slot)
{
	LWLockRelease(lf_slots_partition(slot->hash));
}

static inline int
lf_slots_count(void)
{
	return lf_slots.head->slot_count;
}

static inline int
lf_slots_number(const LfSlot *slot)
{
	return slot - lf_slots.slots;
}

/*
 * Puts a grant that is loading into a slot of its own, and numbers the load, unless
 * its resource has one already (*inserted says which); false when there is no room.
 * No lock of ours is held.
 */
extern bool lf_slots_insert(const LfGrant *grant, uint32 hash, bool *inserted);

/* Caller has the slot locked exclusively, and has it no more afterwards. */
extern void lf_slots_free(LfSlot *slot);

/*
 * The list of ends to be written: adds a slot, or takes it out, if it is listed, and
 * says whether its end is written.  Caller has the slot locked exclusively.
 */
extern void lf_slots_list_end(LfSlot *slot);
extern void lf_slots_unlist_end(LfSlot *slot, bool written);

/* Is any slot listed, of any database?  No lock of ours is held. */
extern bool lf_slots_any_ends(void);

/* Numbers of listed slots, as of now.  No lock of ours is held. */
extern int	lf_slots_collect_ends(Oid database, int *numbers, int max);

#endif							/* LF_FENCE_SLOTS_H */
