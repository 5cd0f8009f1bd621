/*
 * transaction.c
 *		The worker's transactions.
 *
 * Runs in workers.  What must end well: an ERROR in the middle (rolled back,
 * reported, the worker goes on), hostile settings of the database (the role is
 * set anew each time), a standby that does not answer (nobody blocks here, the
 * caller asks again).
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "base/compat.h"
#include "base/transaction.h"
#include "catalog/pg_authid.h"
#include "executor/spi.h"
#include "pgstat.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* Of who began the transaction: its end leaves another one behind. */
static MemoryContext callers_context = NULL;

void
lf_transaction_begin(const char *activity)
{
	callers_context = CurrentMemoryContext;
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, 0);
	PushActiveSnapshot(GetTransactionSnapshot());
	pgstat_report_activity(STATE_RUNNING, activity);
}

XLogRecPtr
lf_transaction_commit(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(callers_context);
	pgstat_report_activity(STATE_IDLE, NULL);
	return XactLastCommitEnd;
}

/*
 * What goes wrong again and again is one line a minute.
 */
static void
report(ErrorData *error)
{
	static char last[128] = "";
	static TimestampTz last_at = 0;
	TimestampTz now = GetCurrentTimestamp();

	if (strncmp(last, error->message, sizeof(last) - 1) == 0 &&
		!TimestampDifferenceExceeds(last_at, now, 60000))
		return;
	strlcpy(last, error->message, sizeof(last));
	last_at = now;
	EmitErrorReport();
}

bool
lf_transaction_try(const char *activity, void (*work) (void *arg),
				   void *arg, XLogRecPtr *end, char **problem)
{
	MemoryContext caller = CurrentMemoryContext;
	volatile bool done = false;

	PG_TRY();
	{
		lf_transaction_begin(activity);
		work(arg);
		*end = lf_transaction_commit();
		done = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		report(error);
		FlushErrorState();
		AbortCurrentTransaction();
		pgstat_report_activity(STATE_IDLE, NULL);
		*problem = error->message;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	return done;
}

/*
 * Walsenders move WalSndCtl->lsn on each reply, whether or not anybody waits
 * in a queue for it.
 */
bool
lf_standbys_passed(XLogRecPtr position)
{
	bool		passed;

	if (max_wal_senders == 0 ||
		SyncRepStandbyNames == NULL || SyncRepStandbyNames[0] == '\0')
		return true;
	LWLockAcquire(SyncRepLock, LW_SHARED);
	passed = WalSndCtl->lsn[SYNC_REP_WAIT_FLUSH] >= position;
	LWLockRelease(SyncRepLock);
	return passed;
}
