/*
 * launcher.c
 *		The process that starts the databases' workers.
 *
 * One per server, connected to no database (it would be in the way of DROP
 * DATABASE).  It starts a worker for every place that is WANTED (see
 * base/database.c) and, by name, for the databases in lease_fence.databases;
 * such a worker finds its place itself, and from then on the place speaks for
 * the name.  Each pass works out anew what should be; a latch only makes it come
 * sooner.
 *
 * What must end well:
 *	- a worker that was registered and never comes (the fork failed, it died
 *	  early): its handle says so, or else a time limit;
 *	- the launcher dies: its successor leaves running workers alone, and has the
 *	  time limit for those that were starting;
 *	- no background worker slot is free, a named database does not exist, a
 *	  worker dies each time: tried again for ever, ever more slowly, with one
 *	  line in the log for each change of state.
 *
 * An error ends the process, the postmaster starts it again after a second.
 */
#include "postgres.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/database.h"
#include "base/settings.h"
#include "libpq/pqsignal.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/backend_status.h"
#include "utils/memutils.h"
#include "utils/varlena.h"
#include "worker/launcher.h"

#define SECOND			INT64CONST(1000000)
#define IDLE_TICK		10000	/* ms */

/* How long a worker may be STARTING if we cannot, or can, see its state. */
#define START_LIMIT_BLIND	(10 * SECOND)
#define START_LIMIT			(60 * SECOND)

/* A worker started for a place; by the place's index. */
typedef struct LfStart
{
	Oid			database;
	BackgroundWorkerHandle *handle; /* NULL: not ours, or seen to end */
	bool		reported;		/* that it fails */
} LfStart;

/* A name in lease_fence.databases. */
typedef struct LfName
{
	char		name[NAMEDATALEN];
	BackgroundWorkerHandle *handle;
	int			failures;
	LfClock		retry_at;
	bool		reported;
} LfName;

static LfStart starts[LF_MAX_DATABASES];
static List *names = NIL;		/* of LfName *, in TopMemoryContext */
static bool slots_used_up = false;

void
lf_launcher_register(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	strlcpy(worker.bgw_name, "lease_fence launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "lease_fence launcher", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 1;
	strlcpy(worker.bgw_library_name, "lease_fence", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "lf_launcher_main", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

/* The names point into what is allocated here. */
static bool
split_names(List **result)
{
	return SplitIdentifierString(pstrdup(lf_databases), ',', result);
}

bool
lf_launcher_names(const char *database)
{
	List	   *list;
	ListCell   *cell;

	if (!split_names(&list))
		return false;
	foreach(cell, list)
	{
		if (strcmp(lfirst(cell), database) == 0)
			return true;
	}
	return false;
}

static void
drop_handle(BackgroundWorkerHandle **handle)
{
	if (*handle != NULL)
		pfree(*handle);
	*handle = NULL;
}

static bool
has_stopped(BackgroundWorkerHandle *handle)
{
	pid_t		pid;

	return GetBackgroundWorkerPid(handle, &pid) == BGWH_STOPPED;
}

static void
report_slots(bool used_up)
{
	if (used_up && !slots_used_up)
		ereport(WARNING,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("no background worker slot is free for a lease_fence worker"),
				 errdetail("It is tried again, with a growing delay of up to one minute."),
				 errhint("You might need to increase max_worker_processes.")));
	else if (!used_up && slots_used_up)
		ereport(LOG,
				(errmsg("a background worker slot is free for lease_fence again")));
	slots_used_up = used_up;
}

/* Registers a worker for a database known by OID, or else by name. */
static bool
register_worker(Oid database, const char *name, BackgroundWorkerHandle **handle)
{
	BackgroundWorker worker;
	MemoryContext old;
	bool		registered;

	memset(&worker, 0, sizeof(worker));
	if (OidIsValid(database))
		snprintf(worker.bgw_name, BGW_MAXLEN,
				 "lease_fence worker for database %u", database);
	else
		snprintf(worker.bgw_name, BGW_MAXLEN,
				 "lease_fence worker for database \"%s\"", name);
	strlcpy(worker.bgw_type, "lease_fence worker", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "lease_fence", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "lf_worker_main", BGW_MAXLEN);
	worker.bgw_main_arg = ObjectIdGetDatum(database);
	strlcpy(worker.bgw_extra, name, BGW_EXTRALEN);
	worker.bgw_notify_pid = MyProcPid;

	old = MemoryContextSwitchTo(TopMemoryContext);
	drop_handle(handle);
	registered = RegisterDynamicBackgroundWorker(&worker, handle);
	MemoryContextSwitchTo(old);

	report_slots(!registered);
	return registered;
}

/*
 * A STARTING worker: has it come to nothing?  One that attached in the meantime
 * is not STARTING any more, and lf_database_start_failed does nothing then.
 */
static void
watch_start(int index, LfStart *start, LfClock since)
{
	LfClock		now = lf_clock_now();

	if (start->handle == NULL)
	{
		if (now - since >= START_LIMIT_BLIND)
			lf_database_start_failed(index);
	}
	else if (has_stopped(start->handle))
	{
		drop_handle(&start->handle);
		lf_database_start_failed(index);
	}
	else if (now - since >= START_LIMIT)
	{
		/* Its slot must not be lost for good: it may never have been forked. */
		TerminateBackgroundWorker(start->handle);
		drop_handle(&start->handle);
		lf_database_start_failed(index);
	}
}

/* One line for a row of failures; that no slot is free has its own. */
static void
report_failures(LfStart *start, int failures)
{
	if (failures == 0 || start->reported)
		return;
	start->reported = true;
	if (!slots_used_up)
		ereport(LOG,
				(errmsg("lease_fence worker for database %u ended or could not be started",
						start->database),
				 errdetail("It is started again, with a growing delay of up to one minute.")));
}

static void
start_worker(int index, LfStart *start)
{
	if (!lf_database_begin_start(index))
		return;
	if (!register_worker(start->database, "", &start->handle))
		lf_database_start_failed(index);
}

/* Does what a place needs now; *due: when to look again, if that is sooner. */
static void
pass_place(int index, LfClock *due)
{
	LfStart    *start = &starts[index];
	LfDatabaseView view;
	LfClock		now = lf_clock_now();

	if (!lf_database_look(index, &view) || view.oid != start->database)
	{
		drop_handle(&start->handle);
		start->database = view.oid;
		start->reported = false;
	}

	switch (view.state)
	{
		case LF_WORKER_STOPPED:
			break;
		case LF_WORKER_WANTED:
			report_failures(start, view.failures);
			if (view.held)
				break;
			if (view.retry_at > now)
			{
				*due = Min(*due, view.retry_at);
				break;
			}
			start_worker(index, start);
			*due = Min(*due, now + SECOND);
			break;
		case LF_WORKER_STARTING:
			watch_start(index, start, view.state_since);
			*due = Min(*due, now + SECOND);
			break;
		case LF_WORKER_RUNNING:
			if (view.failures > 0 && lf_database_settle(index))
			{
				ereport(LOG,
						(errmsg("lease_fence worker for database %u is running again",
								view.oid)));
				start->reported = false;
			}
			break;
	}
}

/* The name has a place: that is looked after like any other. */
static void
name_is_placed(LfName *name, int index)
{
	LfDatabaseView view;

	if (name->reported)
		ereport(LOG,
				(errmsg("lease_fence worker for database \"%s\" was started",
						name->name)));
	name->reported = false;
	name->failures = 0;
	name->retry_at = 0;
	drop_handle(&name->handle);

	/* It may have retired while the setting did not name it. */
	if (lf_database_look(index, &view) && view.state == LF_WORKER_STOPPED)
		lf_database_want(index);
}

static void
name_has_failed(LfName *name)
{
	name->failures++;
	name->retry_at = lf_clock_after(lf_clock_now(),
									lf_database_backoff(name->failures));
	if (name->reported)
		return;
	name->reported = true;
	if (!slots_used_up)
		ereport(LOG,
				(errmsg("lease_fence worker for database \"%s\" could not be started",
						name->name),
				 errdetail("The database is named in lease_fence.databases. It is tried again, with a growing delay of up to one minute.")));
}

/*
 * Does what a name needs now.  Whether its worker has stopped is read first: if
 * it had attached before it stopped, its name is in the place by then.
 */
static void
pass_name(LfName *name, LfClock *due)
{
	bool		stopped = name->handle != NULL && has_stopped(name->handle);
	int			index = lf_database_find_named(name->name);

	if (index >= 0)
	{
		name_is_placed(name, index);
		return;
	}
	if (name->handle != NULL && !stopped)
		return;					/* we are told when it stops */
	if (stopped)
	{
		drop_handle(&name->handle);
		name_has_failed(name);
	}
	if (name->retry_at <= lf_clock_now() &&
		!register_worker(InvalidOid, name->name, &name->handle))
		name_has_failed(name);
	if (name->handle == NULL)
		*due = Min(*due, name->retry_at);
}

/* Names before places: a name can want a place's worker.  Answers when next. */
static LfClock
pass(void)
{
	LfClock		due = LF_CLOCK_NEVER;
	ListCell   *cell;
	int			i;

	foreach(cell, names)
		pass_name(lfirst(cell), &due);
	for (i = 0; i < LF_MAX_DATABASES; i++)
		pass_place(i, &due);
	return due;
}

static LfName *
name_in(List *list, const char *wanted)
{
	ListCell   *cell;

	foreach(cell, list)
	{
		LfName	   *name = lfirst(cell);

		if (strcmp(name->name, wanted) == 0)
			return name;
	}
	return NULL;
}

/* What is known about names that stay in the setting is kept. */
static void
read_names(void)
{
	List	   *list;
	List	   *kept = NIL;
	ListCell   *cell;
	MemoryContext old;

	if (!split_names(&list))
	{
		ereport(LOG,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid list syntax in parameter \"%s\"",
						"lease_fence.databases")));
		return;
	}

	old = MemoryContextSwitchTo(TopMemoryContext);
	foreach(cell, list)
	{
		LfName	   *name = name_in(names, lfirst(cell));

		if (name_in(kept, lfirst(cell)) != NULL)
			continue;
		if (name == NULL)
		{
			name = palloc0(sizeof(LfName));
			strlcpy(name->name, lfirst(cell), NAMEDATALEN);
		}
		kept = lappend(kept, name);
	}
	foreach(cell, names)
	{
		LfName	   *name = lfirst(cell);

		if (name_in(kept, name->name) != NULL)
			continue;
		drop_handle(&name->handle);
		pfree(name);
	}
	list_free(names);
	names = kept;
	MemoryContextSwitchTo(old);
}

static void
at_exit(int code, Datum arg)
{
	lf_database_launcher_detach();
}

/*
 * A connection to no database makes it seen in pg_stat_activity, and can be
 * terminated by pg_terminate_backend.  SIGUSR1 is how the postmaster tells that
 * a worker started or stopped.
 */
void
lf_launcher_main(Datum main_arg)
{
	static uint32 wait_event = 0;
	MemoryContext context;
	LfClock		due = 0;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	before_shmem_exit(at_exit, (Datum) 0);
	BackgroundWorkerUnblockSignals();

	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	lf_database_launcher_attach();
	pgstat_report_activity(STATE_IDLE, "starting the workers of databases");

	context = AllocSetContextCreate(TopMemoryContext, "lease_fence launcher",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	read_names();

	for (;;)
	{
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 lf_clock_milliseconds_until(due, IDLE_TICK),
						 lf_wait_event(&wait_event, "LeaseFenceLauncher"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			read_names();
		}
		due = pass();
		MemoryContextReset(context);
	}
}
