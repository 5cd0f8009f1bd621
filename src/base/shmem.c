/*
 * shmem.c
 *		The tranche of our LWLocks, and each backend's place in shared arrays.
 *
 * Runs in the postmaster (requesting) and in every process (the rest).
 */
#include "postgres.h"

#include "base/shmem.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"

#define LF_TRANCHE "lease_fence"

static LWLockPadded *locks = NULL;

void
lf_lwlock_request(void)
{
	RequestNamedLWLockTranche(LF_TRANCHE, LF_LOCK_COUNT);
}

void
lf_shmem_require(void)
{
	if (IsBinaryUpgrade)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("lease_fence does not work in binary upgrade mode"),
				 errdetail("pg_upgrade starts servers in this mode.")));
}

LWLock *
lf_lwlock(int name)
{
	Assert(name >= 0 && name < LF_LOCK_COUNT);
	if (locks == NULL)
	{
		lf_shmem_require();
		locks = GetNamedLWLockTranche(LF_TRANCHE);
	}
	return &locks[name].lock;
}

/*
 * Regular backends, walsenders and background workers have the first
 * MaxBackends elements of allProcs; auxiliary processes never call us.
 */
int
lf_backend_slot(void)
{
	int			slot = (int) (MyProc - ProcGlobal->allProcs);

	Assert(slot >= 0 && slot < MaxBackends);
	return slot;
}

/*
 * The process may be gone and its place taken over: a latch set in vain is
 * harmless, every waiter of ours looks at its state again.
 */
void
lf_backend_wake(int slot)
{
	if (slot >= 0 && slot < MaxBackends)
		SetLatch(&ProcGlobal->allProcs[slot].procLatch);
}
