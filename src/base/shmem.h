/*
 * shmem.h
 *		Shared memory that the rooms ask for, and the names of our LWLocks.
 *
 * Every room that owns a shared struct offers a size and an init function;
 * lease_fence.c calls them from the two shared memory hooks.  A room's struct
 * is touched by that room alone, under the locks listed here.
 */
#ifndef LF_BASE_SHMEM_H
#define LF_BASE_SHMEM_H

#include "storage/lwlock.h"

#define LF_ENTRY_PARTITIONS 16

typedef enum LfLockName
{
	LF_LOCK_DATABASES,			/* base/database.c */
	LF_LOCK_EPOCHS,				/* fence/epoch.c */
	LF_LOCK_ENTRY_SLOTS,		/* fence/slots.c: free slots, clock hand */
	LF_LOCK_REQUESTS,			/* lease/request.c */
	LF_LOCK_AUDIT,				/* audit/record.c */
	LF_LOCK_OBSERVE,			/* audit/observe.c */
	LF_LOCK_REDIS,				/* coordinator/redis_status.c */
	LF_LOCK_ENTRIES,			/* fence/slots.c: first of the partitions */
	LF_LOCK_COUNT = LF_LOCK_ENTRIES + LF_ENTRY_PARTITIONS
} LfLockName;

/*
 * No LWLock of ours is held across a heavyweight lock, ereport, table access
 * or SetLatch.  Two are never held at once, but for LF_LOCK_ENTRY_SLOTS inside
 * one entry partition.
 */
extern LWLock *lf_lwlock(int name);
extern void lf_lwlock_request(void);

/*
 * A server that pg_upgrade has started has no shared memory of ours (see
 * _PG_init): an ERROR there.  lf_lwlock calls it; who looks at a shared struct
 * without a lock first does so itself.
 */
extern void lf_shmem_require(void);

/* Place of this process in an array with one element per possible backend. */
extern int	lf_backend_slot(void);

/* Sets the latch of the process in that place, if there is one. */
extern void lf_backend_wake(int slot);

#endif							/* LF_BASE_SHMEM_H */
