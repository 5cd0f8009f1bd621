/*
 * drain.c
 *		Writers that are in the way of a new grant, and their termination.
 *
 * Runs in the worker, which only ever looks: who asked for the grant waits for
 * these transactions with PostgreSQL's own means.
 *
 * What must end well: a writer that is idle in its transaction for ever (its
 * session is terminated), one that waits for its synchronous standby (left
 * alone: its commit is in the WAL), a prepared transaction (left alone, and
 * named), a session that prepared one and went on (left alone).
 */
#include "postgres.h"

#include <signal.h>

#include "access/twophase.h"
#include "audit/audit.h"
#include "base/compat.h"
#include "base/database.h"
#include "base/settings.h"
#include "base/stat.h"
#include "fence/drain.h"
#include "fence/token_lock.h"
#include "replication/syncrep.h"
#include "storage/lwlock.h"

/* A session that survives its termination that long is signalled again. */
#define SIGNAL_AGAIN INT64CONST(1000000)

/*
 * The running transaction's process, if the transaction is still the one that
 * has the lock.  A virtual xid that is no longer its backend's is a prepared
 * transaction, or one that has just ended.
 */
static PGPROC *
running_process(VirtualTransactionId vxid)
{
	PGPROC	   *proc;

	if (VirtualTransactionIdIsRecoveredPreparedXact(vxid))
		return NULL;
	proc = lf_vxid_proc(vxid);
	if (proc == NULL || LF_PROC_LXID(proc) != vxid.localTransactionId)
		return NULL;
	return proc;
}

static TransactionId
prepared_xid(VirtualTransactionId vxid)
{
	bool		more;

	if (VirtualTransactionIdIsRecoveredPreparedXact(vxid))
		return vxid.localTransactionId;
	return TwoPhaseGetXidByVirtualXID(vxid, &more);
}

static void
remember_termination(LfMint *mint, int pid)
{
	LfTermination *termination;

	for (int i = 0; i < mint->termination_count; i++)
	{
		if (mint->terminations[i].pid == pid)
			return;				/* signalled again */
	}
	if (mint->terminations == NULL)
		mint->terminations = palloc(sizeof(LfTermination));
	else
		mint->terminations = repalloc(mint->terminations,
									  (mint->termination_count + 1) * sizeof(LfTermination));
	termination = &mint->terminations[mint->termination_count++];
	memset(termination, 0, sizeof(*termination));
	termination->resource = mint->grant.resource;
	termination->old_token = mint->old.token;
	termination->reason = lf_over_reason(mint->old.over);
	termination->pid = pid;
	lf_stat_add(lf_database_mine(), LF_STAT_TERMINATED, 1);
	ereport(LOG,
			(errmsg("lease_fence: terminating process %d, which has written to resource \"%.*s\" under token %lld",
					pid, mint->grant.resource.length, mint->grant.resource.name,
					(long long) mint->old.token),
			 errdetail("That grant is over (%s), a new one waits, and lease_fence.drain_timeout has passed.",
					   lf_over_name(mint->old.over))));
}

/*
 * The transaction's identity and the signal are under one ProcArrayLock, so
 * that the signal meets the transaction and not the session's next one.
 */
static void
terminate(LfMint *mint, VirtualTransactionId vxid, int asker)
{
	PGPROC	   *proc;
	int			pid = 0;

	LWLockAcquire(ProcArrayLock, LW_SHARED);
	proc = running_process(vxid);
	if (proc != NULL && proc - ProcGlobal->allProcs != asker &&
		proc->syncRepState == SYNC_REP_NOT_WAITING && proc->pid != 0 &&
		kill(proc->pid, SIGTERM) == 0)
		pid = proc->pid;
	LWLockRelease(ProcArrayLock);
	if (pid != 0)
		remember_termination(mint, pid);
}

LfDrainState
lf_drain_look(LfMint *mint, int asker)
{
	LfClock		now = lf_clock_now();
	bool		terminating = now >= mint->terminate_at;
	LfDrainState result = LF_DRAIN_BLOCKED;
	VirtualTransactionId *holders;
	LOCKTAG		tag;

	lf_token_lock_tag(&tag, mint->old.token);
	holders = GetLockConflicts(&tag, ExclusiveLock, NULL);
	memset(&mint->blocker, 0, sizeof(mint->blocker));
	for (int i = 0; VirtualTransactionIdIsValid(holders[i]); i++)
	{
		PGPROC	   *proc = running_process(holders[i]);

		if (proc != NULL && proc - ProcGlobal->allProcs == asker)
			result = LF_DRAIN_OWN_WAY;
		else if (proc != NULL)
		{
			mint->blocker.pid = proc->pid;
			if (terminating)
				terminate(mint, holders[i], asker);
		}
		else
			mint->blocker.prepared = prepared_xid(holders[i]);
	}
	pfree(holders);
	if (terminating)
		mint->terminate_at = lf_clock_after(now, SIGNAL_AGAIN);
	return result;
}
