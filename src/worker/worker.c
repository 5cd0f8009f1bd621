/*
 * worker.c
 *		A database's worker: the one process that mints, and writes the audit.
 *
 * Each pass looks at everything that there may be to do (level-triggered: a
 * wake-up that is lost costs a second, no more), and then sleeps with no
 * transaction open.  Nothing in it blocks: not on a table's lock, not on a
 * token's, not on a standby.
 *
 * What must end well: termination and kill -9 at any moment (entries left
 * draining and records left taken are settled by the next worker), CREATE and
 * DROP EXTENSION committed or rolled back, DROP, RENAME and copying of the
 * database (the launcher's side asks it to leave), hostile settings of the
 * database or the role, a second worker (it exits), ERRORs (each unit of work
 * has its own transaction; what is left ends the process, exit code 1, and the
 * launcher starts a clean one).
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "audit/audit.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/database.h"
#include "base/notify.h"
#include "base/settings.h"
#include "base/shmem.h"
#include "base/transaction.h"
#include "coordinator/redis_status.h"
#include "fence/ends.h"
#include "fence/entry.h"
#include "fence/epoch.h"
#include "fence/mint.h"
#include "fence/token_lock.h"
#include "lease/queue.h"
#include "lease/request.h"
#include "lease/tracked.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/procsignal.h"
#include "tcop/tcopprot.h"
#include "commands/dbcommands.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "worker/launcher.h"
#include "worker/purge.h"
#include "worker/wait.h"
#include "worker/watch.h"
#include "worker/worker.h"

/* Nothing live, nothing asked for so long: the worker retires. */
#define LINGER			INT64CONST(10000000)

/* Longest sleep; with records or ends that could not be written, and idle. */
#define TICK			INT64CONST(1000000)
#define TICK_BUSY		INT64CONST(100000)

/*
 * Tables are only ever locked without waiting.  What is left are rows of ours
 * that somebody else has locked: an error then, that one item's, and no wait
 * for the end of that transaction.
 */
#define LOCK_LIMIT		"200ms"

/* As many ends are written in one pass as fit: requests must not wait for all. */
#define ENDS_LIMIT		INT64CONST(10000)

/* Leases are looked at no more often than this, however many lapse. */
#define SWEEP_APART		INT64CONST(5000)

typedef struct Worker
{
	int			database;		/* index; -1: not attached */
	Oid			extension;		/* whose tables we know; invalid: none */
	XLogRecPtr	recover_from;	/* standbys must pass this */
	bool		recovered;
	LfClock		sweep_at;
	LfClock		idle_since;
	LfClock		last_sweep;
	int			live;			/* leases, at the last sweep */
	int		   *idle_pids;		/* sessions idle for too long */
	int			idle_count;
	bool		reloaded;		/* settings, since the last pass */
	bool		ends_left;		/* that are not in the table yet */
} Worker;

static Worker worker = {.database = -1};

static void
detach_at_exit(int code, Datum arg)
{
	if (worker.database >= 0)
		lf_redis_status_disconnected(MyDatabaseId);
	lf_database_detach(worker.database, code == 0);
}

static void
pin(const char *name, const char *value)
{
	if (GetConfigOption(name, true, false) != NULL)
		SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE);
}

/*
 * Whatever ALTER DATABASE and ALTER ROLE say.  This one before we connect: they
 * are read within a transaction, whose time it would begin to count.
 */
static void
pin_settings_to_connect(void)
{
	pin("transaction_timeout", "0");
}

/*
 * The rest.  Plans are kept for as long as the worker lives: one that was made
 * while a table was small must not read all of it for each grant when it has
 * grown.
 */
static void
pin_settings(void)
{
	pin("role", "none");
	pin("search_path", "pg_catalog, pg_temp");
	pin("synchronous_commit", "local");
	pin("default_transaction_read_only", "off");
	pin("default_transaction_isolation", "read committed");
	pin("default_transaction_deferrable", "off");
	pin("statement_timeout", "0");
	pin("lock_timeout", LOCK_LIMIT);
	pin("idle_in_transaction_session_timeout", "0");
	pin("session_replication_role", "origin");
	pin("row_security", "on");
	pin("default_tablespace", "");
	pin("enable_seqscan", "off");
	pin("jit", "off");
	pin("max_parallel_workers_per_gather", "0");
	pin("debug_discard_caches", "0");
	pin("zero_damaged_pages", "off");
	pin("exit_on_error", "off");
}

static void
connect_to_database(Oid oid)
{
	if (OidIsValid(oid))
	{
		worker.database = lf_database_find(oid);
		if (worker.database < 0 || !lf_database_attach(worker.database))
		{
			worker.database = -1;
			proc_exit(0);
		}
		BackgroundWorkerInitializeConnectionByOid(oid, InvalidOid, 0);
		return;
	}
	BackgroundWorkerInitializeConnection(MyBgworkerEntry->bgw_extra, NULL, 0);
	worker.database = lf_database_mine();
	if (worker.database < 0)
		proc_exit(1);
	if (!lf_database_attach(worker.database))
	{
		worker.database = -1;
		proc_exit(0);
	}
}

static void
start(Datum main_arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	before_shmem_exit(detach_at_exit, (Datum) 0);
	BackgroundWorkerUnblockSignals();

	pin_settings_to_connect();
	connect_to_database(DatumGetObjectId(main_arg));
	pin_settings();

	/* The one before us may be on its way out still: the launcher tries again. */
	if (!lf_token_lock_minter())
		proc_exit(1);

	lf_audit_adopt(worker.database);
	lf_queue_recover();
	lf_tracked_install();
	worker.recover_from = GetFlushRecPtr(NULL);
	worker.idle_since = lf_clock_now();
}

/* The extension as it is in pg_extension now; invalid: none. */
static void
look_for_extension(void *arg)
{
	const LfCatalog *catalog;

	AcceptInvalidationMessages();
	catalog = lf_catalog();
	*(Oid *) arg = catalog == NULL ? InvalidOid : catalog->extension;
}

/*
 * Is there an extension to work for?  One that was dropped and created again
 * is another one, and nothing of the old one's leases is true any more: also
 * when that happened while no worker was running.
 */
static bool
extension_is_there(void)
{
	Oid			extension = InvalidOid;
	XLogRecPtr	end;
	char	   *problem;

	if (!lf_transaction_try("looking for the extension", look_for_extension,
							&extension, &end, &problem))
		return OidIsValid(worker.extension);	/* not known: as before */
	if (extension != worker.extension &&
		lf_epoch_forget_other(worker.database, extension))
	{
		lf_queue_start_over();
		lf_entry_forget_database(MyDatabaseId);
	}
	worker.extension = extension;
	return OidIsValid(extension);
}

static void
begin_epoch(void *arg)
{
	*(int64 *) arg = lf_epoch_begin(worker.database, NULL);
}

/* False: no confirmed epoch to mint in; *next: when to look again. */
static bool
epoch_is_ready(LfClock *next)
{
	LfEpochView view;
	XLogRecPtr	end;
	char	   *problem;
	int64		floor = 0;

	switch (lf_epoch_need(worker.database, worker.extension))
	{
		case LF_EPOCH_GOOD:
			return true;
		case LF_EPOCH_LATER:
			*next = Min(*next, lf_clock_now() + TICK_BUSY);
			return false;
		case LF_EPOCH_FIRST:
			if (!lf_queue_is_asked())
				return false;
			break;
		case LF_EPOCH_DUE:
			break;
	}
	lf_epoch_look(worker.database, worker.extension, &view);
	if (!lf_queue_quiesce())
		return view.confirmed;	/* first the queue publishes what it has */
	if (!lf_transaction_try("beginning an epoch", begin_epoch, &floor, &end, &problem) ||
		floor == 0)
	{
		*next = Min(*next, lf_clock_now() + TICK_BUSY);
		return false;
	}
	lf_epoch_began(worker.database);
	return true;
}

/*
 * Which backends count as alive for the sake of their sessions' leases?  Found
 * out before the entries are looked at: it needs other locks, and memory.
 */
static void
look_at_sessions(void)
{
	TimestampTz now = GetCurrentTimestamp();
	int			backends = pgstat_fetch_stat_numbackends();

	if (worker.idle_pids == NULL)
		worker.idle_pids = MemoryContextAlloc(TopMemoryContext, MaxBackends * sizeof(int));
	worker.idle_count = 0;
	for (int i = 1; i <= backends; i++)
	{
		LocalPgBackendStatus *local = lf_backend_status(i);
		PgBackendStatus *status = local == NULL ? NULL : &local->backendStatus;

		/* with track_activities off it cannot be told: it lives */
		if (status == NULL || status->st_state == STATE_RUNNING ||
			status->st_state == STATE_DISABLED || worker.idle_count == MaxBackends ||
			!TimestampDifferenceExceeds(status->st_state_start_timestamp, now, lf_idle_limit))
			continue;
		worker.idle_pids[worker.idle_count++] = status->st_procpid;
	}
	pgstat_clear_backend_activity_snapshot();
	worker.idle_count = lf_request_add_idle(worker.idle_pids, worker.idle_count,
											lf_idle_limit * INT64CONST(1000));
}

static bool
owner_is_alive(int owner, int pid, LfScope scope)
{
	if (ProcGlobal->allProcs[owner].pid != pid)
		return false;
	for (int i = 0; scope == LF_SCOPE_SESSION && i < worker.idle_count; i++)
	{
		if (worker.idle_pids[i] == pid)
			return false;
	}
	return true;
}

static void
sweep(LfClock now)
{
	if ((now < worker.sweep_at && now - worker.last_sweep < TICK) ||
		now - worker.last_sweep < SWEEP_APART)
		return;
	look_at_sessions();
	worker.last_sweep = now;
	worker.sweep_at = lf_entry_sweep(MyDatabaseId, owner_is_alive, &worker.live);
}

/* Leases: what is asked for, what lapses, what ended. */
static LfClock
serve_leases(void)
{
	LfClock		next;
	int			ends;

	lf_tracked_begin_pass();
	next = lf_queue_pass(worker.database);
	if (lf_queue_wants_room())
		worker.sweep_at = 0;
	sweep(lf_clock_now());
	next = Min(next, Max(worker.sweep_at, worker.last_sweep + SWEEP_APART));
	lf_tracked_pass(owner_is_alive, &next);
	ends = lf_ends_write_for(ENDS_LIMIT);
	worker.ends_left = ends != 0;
	if (ends > 0)
		next = lf_clock_now();
	else if (ends < 0)
		next = Min(next, lf_clock_now() + TICK_BUSY);
	return next;
}

/* Needs no epoch: who presents nothing is refused in any. */
static void
pass_audit(LfClock *next)
{
	if (lf_audit_write_pending(worker.database))
		*next = lf_clock_now();
	lf_audit_answer(worker.database);
	lf_audit_write_observed(worker.database);
	if (lf_audit_busy(worker.database))
		*next = Min(*next, lf_clock_now() + TICK_BUSY);
}

/*
 * One pass.  Returns when to look again though nobody wakes us.  A lease that
 * was granted in it is swept for the first time a tick later at the latest:
 * those that the watchdog prolongs have the default ttl, and who waits for one
 * that lapses is served by the queue's own clock.
 */
static LfClock
pass(void)
{
	LfClock		next = lf_clock_now() + TICK;

	pass_audit(&next);
	lf_coordinator_refresh();
	lf_coordinator_receive(&next);
	if (!worker.recovered)
		worker.recovered = lf_mint_recover(worker.recover_from);
	if (!worker.recovered)
		next = Min(next, lf_clock_now() + TICK_BUSY);
	else if (epoch_is_ready(&next))
		next = Min(next, serve_leases());
	lf_coordinator_flush(&next);
	lf_audit_answer(worker.database);
	if (!lf_notify_send(worker.database))
		next = Min(next, lf_clock_now() + TICK_BUSY);
	next = Min(next, lf_purge_pass(worker.database, worker.reloaded));
	lf_watch_pass(worker.reloaded);
	worker.reloaded = false;
	return next;
}

/* Without the extension there is nothing to do but to say so. */
static LfClock
pass_without_extension(void)
{
	lf_queue_refuse();
	lf_coordinator_disconnect("the extension was dropped");
	worker.live = 0;
	worker.ends_left = false;
	return lf_clock_now() + TICK;
}

static bool
is_named(void)
{
	char	   *name;
	bool		named;

	StartTransactionCommand();
	name = get_database_name(MyDatabaseId);
	named = name != NULL && lf_launcher_names(name);
	CommitTransactionCommand();
	return named;
}

static void
leave_if_nobody_needs_us(bool installed)
{
	LfClock		now = lf_clock_now();

	if (installed && (worker.live > 0 || worker.ends_left || !lf_queue_is_empty() ||
					  !lf_tracked_is_empty() ||
					  lf_audit_busy(worker.database) || !worker.recovered))
		worker.idle_since = now;
	if (now - worker.idle_since < LINGER)
		return;
	worker.idle_since = now;
	if (!is_named() && lf_database_try_retire(worker.database))
		proc_exit(0);
}

static void
take_interrupts(void)
{
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		worker.reloaded = true;
	}
	lf_database_beat(worker.database);
	if (lf_database_is_held(worker.database))
		proc_exit(0);
}

void
lf_worker_main(Datum main_arg)
{
	MemoryContext context;

	start(main_arg);
	context = AllocSetContextCreate(TopMemoryContext, "lease_fence pass",
									ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		LfClock		next;
		bool		installed;

		MemoryContextSwitchTo(context);
		MemoryContextReset(context);
		take_interrupts();
		installed = extension_is_there();
		next = installed ? pass() : pass_without_extension();
		leave_if_nobody_needs_us(installed);
		pgstat_report_stat(false);
		if (next <= lf_clock_now())
			continue;
		pgstat_report_activity(STATE_IDLE, "waiting for work");
		lf_wait(Max(1, lf_clock_milliseconds_until(next, TICK / 1000)));
	}
}
