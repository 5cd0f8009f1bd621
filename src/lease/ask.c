/*
 * ask.c
 *		Asking the worker and waiting for its answer.
 *
 * Runs in backends.
 *
 * What must end well: cancel, statement_timeout, lock_timeout and termination
 * at every point (the request is withdrawn, and what had just been granted is
 * given back), a worker that is not there or dies, a deadlock that leads through
 * the writers we wait for (found by PostgreSQL's own detector, which sees us
 * wait for their transactions).
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/database.h"
#include "base/errors.h"
#include "base/settings.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fence/grants.h"
#include "fence/token_lock.h"
#include "lease/ask.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

/* Nobody wakes us when a worker cannot start. */
#define LOOK_AGAIN			1000	/* ms */
#define WORKER_START_LIMIT	INT64CONST(10000000)

static bool asking = false;
static bool exit_callback_registered = false;
static uint32 wait_event = 0;

void
lf_ask_require_primary(void)
{
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("leases can only be taken on the primary"),
				 errdetail("This server is a standby in recovery.")));
}

/* An answer that came too late for us is a grant that nobody has. */
static void
give_back(const LfRequest *last)
{
	if ((last->kind != LF_REQUEST_ACQUIRE && last->kind != LF_REQUEST_IMPORT &&
		 last->kind != LF_REQUEST_ADOPT) || last->answer != LF_ANSWER_GRANTED)
		return;
	if (last->count == 1)
		lf_entry_end(&last->resource, last->token, LF_OVER_RELEASED);
	else
	{
		dsm_segment *segment = dsm_find_mapping(last->names);
		LfRequestName *names = segment == NULL ? NULL : dsm_segment_address(segment);

		for (int i = 0; names != NULL && i < last->count; i++)
			lf_entry_end(&names[i].resource, names[i].token, LF_OVER_RELEASED);
	}
	lf_database_want(lf_database_find(last->database));
}

/* Withdraws what is asked, and gives back what was granted just now. */
static void
abandon(void)
{
	LfRequest	last;

	if (!asking)
		return;
	asking = false;
	if (lf_request_withdraw(&last))
		give_back(&last);
	else
		lf_database_wake(lf_database_find(last.database));
}

static void
abandon_at_exit(int code, Datum arg)
{
	abandon();
}

/*
 * Waits for one of the transactions that share the token's lock, at most ms: the
 * worker says whether another one is in the way then.  By way
 * of lock_timeout, since a lock wait has no other end; in a subtransaction,
 * since only that undoes an error; and a lock_timeout of ours stays here, while
 * the user's own is an error as ever.  An error goes on from outside of the
 * subtransaction: whoever catches it undoes the one that is his.
 */
static void
wait_for_writers(int64 token, long ms)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int			users_timeout = LockTimeout;
	bool		ours = users_timeout == 0 || ms < users_timeout;
	ErrorData  *volatile error = NULL;
	VirtualTransactionId *holders;
	LOCKTAG		tag;

	lf_token_lock_tag(&tag, token);
	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		if (ours)
			LockTimeout = ms;
		holders = GetLockConflicts(&tag, ExclusiveLock, NULL);
		if (VirtualTransactionIdIsValid(holders[0]))
			VirtualXactLock(holders[0], true);
		LockTimeout = users_timeout;
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		LockTimeout = users_timeout;
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();

		/*
		 * Also before an error goes on: else it would end this subtransaction
		 * alone, and a deadlock's victim keep its locks until its client says
		 * ROLLBACK.
		 */
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (error != NULL && (!ours || error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE))
		ReThrowError(error);
	if (error != NULL)
		FreeErrorData(error);
}

static void
raise_no_worker(int database)
{
	LfDatabaseView view;

	memset(&view, 0, sizeof(view));
	lf_database_look(database, &view);
	ereport(ERROR,
			(errcode(LF_ERRCODE_WORKER),
			 errmsg("the lease_fence worker of this database is not running"),
			 errdetail("%d starts in a row have failed.", view.failures),
			 errhint("The server log says why. It needs a free place within max_worker_processes.")));
}

/* Is there a worker to answer?  *since: none since then. */
static bool
look_after_worker(int database, LfClock *since)
{
	LfDatabaseView view;

	lf_database_want(database);
	if (lf_database_look(database, &view) && view.state == LF_WORKER_RUNNING)
	{
		*since = lf_clock_now();
		return true;
	}
	if (lf_clock_now() - *since > WORKER_START_LIMIT)
		raise_no_worker(database);
	return false;
}

/* Writers under an older grant are in the way.  False: time is over. */
static bool
wait_behind_writers(int database, const LfRequest *request, LfClock until)
{
	long		longest = lf_clock_milliseconds_until(until, DeadlockTimeout + 1000L);

	if (longest <= 0)
		return false;
	wait_for_writers(request->blocked_token, longest);
	lf_request_retry();
	lf_database_wake(database);
	return true;
}

/* Until the answer is there or time is over; not before there is a worker. */
static void
wait_for_answer(int database, LfRequest *request, LfClock until)
{
	LfClock		no_worker_since = lf_clock_now();

	for (;;)
	{
		bool		worker_runs;
		long		longest;

		CHECK_FOR_INTERRUPTS();
		ResetLatch(MyLatch);
		lf_request_look(request);
		if (request->state == LF_REQUEST_ANSWERED)
			return;
		if (request->state == LF_REQUEST_BLOCKED)
		{
			if (!wait_behind_writers(database, request, until))
				return;
			continue;
		}
		worker_runs = look_after_worker(database, &no_worker_since);
		longest = lf_clock_milliseconds_until(until, LOOK_AGAIN);
		if (longest <= 0 && worker_runs)
			return;
		WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
				  longest > 0 ? longest : LOOK_AGAIN,
				  lf_wait_event(&wait_event, "LeaseFenceLease"));
	}
}

/* One of several resources may be meant: the one that this token is of. */
static void
raise_own_way(const LfRequest *request)
{
	LfResource	resource = request->resource;
	LfGrant		grant;

	if (lf_grants_by_token(request->token, &grant))
		resource = grant.resource;
	ereport(ERROR,
			(errcode(LF_ERRCODE_OWN_WAY),
			 errmsg("this transaction is in its own way: it has written under an older grant of resource \"%.*s\"",
					resource.length, resource.name),
			 errdetail("A new grant waits until every transaction that wrote under the older one has ended."),
			 errhint("Roll back first, then acquire the lease and start from the reads.")));
}

static void
raise_coordinator(const LfRequest *request)
{
	ereport(ERROR,
			(errcode(LF_ERRCODE_COORDINATOR),
			 errmsg("the lock service of resource \"%.*s\" is not available",
					request->resource.length, request->resource.name),
			 errdetail("Nothing was granted: %s.", request->message),
			 errhint("Leases that were granted before live until their deadlines. The view lease_fence.worker_status says how the server is.")));
}

/*
 * What no caller can go on after.
 */
static void
raise_refusal(const LfRequest *request)
{
	switch (request->answer)
	{
		case LF_ANSWER_GRANTED:
		case LF_ANSWER_NOTHING:
		case LF_ANSWER_BUSY:
		case LF_ANSWER_OLDER:
		case LF_ANSWER_OTHER_ROLE:
		case LF_ANSWER_OVER:
		case LF_ANSWER_NOT_HOLDER:
			return;
		case LF_ANSWER_COORDINATOR:
			raise_coordinator(request);
			break;
		case LF_ANSWER_OWN_WAY:
			raise_own_way(request);
			break;
		case LF_ANSWER_CYCLE:
			ereport(ERROR,
					(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
					 errmsg("deadlock detected"),
					 errdetail("Process %d waits for the lease of resource \"%.*s\", whose holder waits, by way of leases or locks, for this process.",
							   MyProcPid, request->resource.length, request->resource.name),
					 errhint("Take leases in one order everywhere, or all at once with lease_fence.acquire_all().")));
			break;
		case LF_ANSWER_NO_ROOM:
			ereport(ERROR,
					(errcode(LF_ERRCODE_WORKER),
					 errmsg("no room for another lease"),
					 errdetail("%d leases can be live at once.", lf_max_leases),
					 errhint("Increase lease_fence.max_leases and restart the server.")));
			break;
		case LF_ANSWER_NO_EXTENSION:
			ereport(ERROR,
					(errcode(LF_ERRCODE_WORKER),
					 errmsg("the lease_fence worker does not see the extension in this database"),
					 errdetail("It was created in a transaction that has not committed yet, or has been dropped."),
					 errhint("CREATE EXTENSION lease_fence must be committed before the first lease is taken.")));
			break;
		case LF_ANSWER_FAILED:
			ereport(ERROR,
					(errcode(LF_ERRCODE_WORKER),
					 errmsg("the lease_fence worker could not do it: %s", request->message),
					 errdetail("Nothing was granted."),
					 errhint("Try again; the server log says more.")));
			break;
	}
}

bool
lf_ask_worker(LfRequest *request, LfClock until)
{
	int			database = lf_database_mine();

	lf_ask_require_primary();
	lf_catalog_required();
	if (database < 0)
		ereport(ERROR,
				(errcode(LF_ERRCODE_WORKER),
				 errmsg("too many databases use lease_fence"),
				 errdetail("%d can at once.", LF_MAX_DATABASES),
				 errhint("A database that is dropped makes room for another one.")));

	if (!exit_callback_registered)
	{
		before_shmem_exit(abandon_at_exit, (Datum) 0);
		exit_callback_registered = true;
	}
	asking = true;
	lf_request_submit(request);
	PG_TRY();
	{
		wait_for_answer(database, request, until);
	}
	PG_CATCH();
	{
		abandon();
		PG_RE_THROW();
	}
	PG_END_TRY();

	asking = false;
	if (!lf_request_withdraw(request))
	{
		lf_database_wake(database);
		return false;
	}
	raise_refusal(request);
	return request->answer != LF_ANSWER_BUSY;
}

void
lf_ask_worker_to_follow(LfRequest *request)
{
	if (lf_ask_worker(request, lf_clock_after(lf_clock_now(), LF_ASK_DRAIN_LIMIT)))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("lease of resource \"%.*s\" is not available",
					request->resource.length, request->resource.name),
			 errdetail("Writers under the older grant have not ended in time."),
			 errhint("%s", lf_ask_who_is_in_the_way(request))));
}

static const char *
prepared_name(TransactionId xid)
{
	Oid			types[] = {TEXTOID};
	Datum		values[1];
	char	   *name = NULL;

	values[0] = CStringGetTextDatum(psprintf("%u", xid));
	SPI_connect();
	if (SPI_execute_with_args("SELECT gid FROM pg_catalog.pg_prepared_xacts"
							  " WHERE transaction::pg_catalog.text OPERATOR(pg_catalog.=) $1",
							  1, types, values, NULL, true, 1) == SPI_OK_SELECT &&
		SPI_processed == 1)
		name = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	if (name != NULL)
		name = MemoryContextStrdup(CurTransactionContext, name);
	SPI_finish();
	return name == NULL ? psprintf("%u", xid) : name;
}

const char *
lf_ask_who_is_in_the_way(const LfRequest *request)
{
	bool		may_know = has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
	LfGrant		grant;

	if (request->blocked_token != 0 && TransactionIdIsValid(request->blocker.prepared))
		return psprintf("Prepared transaction \"%s\" has written under token %lld and is in the way: COMMIT PREPARED or ROLLBACK PREPARED it.",
						prepared_name(request->blocker.prepared),
						(long long) request->blocked_token);
	if (request->blocked_token != 0 && request->blocker.pid != 0)
		return psprintf("Process %d has written under token %lld and is in the way until its transaction ends.",
						request->blocker.pid, (long long) request->blocked_token);
	if (!lf_entry_read(&request->resource, &grant) ||
		!lf_grant_is_live(&grant.state, lf_clock_now()))
		return request->elsewhere ? "A client of its lock service has it." :
			"Others are in the queue before this session.";
	if (!may_know || grant.owner_pid == 0)
		return psprintf("Token %lld has it. The view lease_fence.leases says more to its owner and to members of pg_monitor.",
						(long long) grant.state.token);
	return psprintf("Process %d has it, under token %lld.", grant.owner_pid,
					(long long) grant.state.token);
}
