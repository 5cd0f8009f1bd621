/*
 * utility.c
 *		Utility commands that workers and leases must know of.
 *
 * A worker is connected to its database, and PostgreSQL refuses to drop, rename,
 * move or copy a database to which anybody is connected.  So the session that is
 * about to do that holds the database's place: the worker leaves, and none
 * starts until the transaction has ended.  And DISCARD ALL gives up what the
 * session has leased.
 *
 * What must end well:
 *	- the command is rolled back, fails, or its session is cancelled or
 *	  terminated at any moment: the hold ends with the transaction, and the
 *	  launcher starts the worker again if it was wanted;
 *	- it commits: a dropped database's place and entries are forgotten, every
 *	  other command is followed by the worker's return;
 *	- the worker does not leave in time: PostgreSQL says that the database is in
 *	  use, as of any other connection;
 *	- somebody who may not do that tries: the worker is not disturbed;
 *	- another session does the same at the same time: holds nest, and one on a
 *	  place that was given back in the meantime ends without effect.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "base/compat.h"
#include "base/database.h"
#include "coordinator/redis_status.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "fence/entry.h"
#include "fence/epoch.h"
#include "lease/held.h"
#include "nodes/parsenodes.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/syscache.h"
#include "worker/utility.h"

#define LEAVE_LIMIT	(10 * INT64CONST(1000000))	/* us */
#define LEAVE_POLL	10			/* ms */

typedef enum LfCommand
{
	LF_COMMAND_OTHER,
	LF_COMMAND_DROP,
	LF_COMMAND_RENAME,
	LF_COMMAND_MOVE,			/* to another tablespace */
	LF_COMMAND_COPY				/* as a template */
} LfCommand;

/* A database that this transaction has to itself, or drops. */
typedef struct LfAway
{
	Oid			database;
	bool		held;
	bool		renamed;
	bool		dropped;
} LfAway;

static ProcessUtility_hook_type previous_hook = NULL;

/*
 * No allocation, so that the callbacks cannot fail.  More than there are places
 * cannot be held, and at most one command of a transaction is a DROP.
 */
static LfAway aways[LF_MAX_DATABASES + 1];
static int	away_count = 0;

static DefElem *
option_named(List *options, const char *name)
{
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem    *option = lfirst(cell);

		if (strcmp(option->defname, name) == 0)
			return option;
	}
	return NULL;
}

/* What the command does to an existing database, and to which. */
static LfCommand
classify(Node *statement, const char **database)
{
	DefElem    *option;

	switch (nodeTag(statement))
	{
		case T_DropdbStmt:
			*database = ((DropdbStmt *) statement)->dbname;
			return LF_COMMAND_DROP;
		case T_RenameStmt:
			if (((RenameStmt *) statement)->renameType != OBJECT_DATABASE)
				return LF_COMMAND_OTHER;
			*database = ((RenameStmt *) statement)->subname;
			return LF_COMMAND_RENAME;
		case T_AlterDatabaseStmt:
			if (option_named(((AlterDatabaseStmt *) statement)->options,
							 "tablespace") == NULL)
				return LF_COMMAND_OTHER;
			*database = ((AlterDatabaseStmt *) statement)->dbname;
			return LF_COMMAND_MOVE;
		case T_CreatedbStmt:
			option = option_named(((CreatedbStmt *) statement)->options,
								  "template");
			*database = option != NULL && option->arg != NULL ?
				defGetString(option) : "template1";
			return LF_COMMAND_COPY;
		default:
			return LF_COMMAND_OTHER;
	}
}

static bool
may_create_databases(void)
{
	HeapTuple	tuple;
	bool		may;

	if (superuser())
		return true;
	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(GetUserId()));
	if (!HeapTupleIsValid(tuple))
		return false;
	may = ((Form_pg_authid) GETSTRUCT(tuple))->rolcreatedb;
	ReleaseSysCache(tuple);
	return may;
}

/*
 * Would PostgreSQL let this user do that?  Its own checks come later and decide;
 * this only keeps a worker from being stopped by who could not go on.
 */
static bool
is_permitted(LfCommand command, Oid database)
{
	HeapTuple	tuple;
	bool		owner;
	bool		template;

	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	if (!HeapTupleIsValid(tuple))
		return false;
	owner = has_privs_of_role(GetUserId(),
							  ((Form_pg_database) GETSTRUCT(tuple))->datdba);
	template = ((Form_pg_database) GETSTRUCT(tuple))->datistemplate;
	ReleaseSysCache(tuple);

	switch (command)
	{
		case LF_COMMAND_DROP:
			return owner && !template;
		case LF_COMMAND_RENAME:
			return owner && may_create_databases();
		case LF_COMMAND_MOVE:
			return owner;
		case LF_COMMAND_COPY:
			return (owner || template) && may_create_databases();
		default:
			return false;
	}
}

static bool
could_succeed(LfCommand command, Oid database, bool top_level)
{
	/* Only as a template can a database be one's own. */
	if (command != LF_COMMAND_COPY && database == MyDatabaseId)
		return false;
	/* Of these, renaming alone is allowed in a transaction block. */
	if (command != LF_COMMAND_RENAME && IsInTransactionBlock(top_level))
		return false;
	return is_permitted(command, database);
}

/* The place last: from then on it may be another database's. */
static void
forget_database(Oid database)
{
	int			index = lf_database_find(database);

	lf_entry_forget_database(database);
	if (index >= 0)
		lf_epoch_forget(index);
	lf_database_forget(database);
	lf_redis_status_forget_database(database);
}

/* Ends all holds; the transaction is over. */
static void
let_back(bool committed)
{
	while (away_count > 0)
	{
		LfAway		away = aways[--away_count];

		if (committed && away.dropped)
		{
			forget_database(away.database);
			continue;
		}
		if (committed && away.renamed)
			lf_database_renamed(away.database);
		if (away.held)
			lf_database_resume(away.database);
	}
}

/*
 * A transaction that was prepared keeps the database locked by itself: a worker
 * that starts meanwhile waits for it, interruptibly.
 */
static void
at_transaction_end(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			let_back(true);
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			let_back(false);
			break;
		default:
			break;
	}
}

/*
 * At exit the transaction was aborted before, by a before_shmem_exit callback of
 * PostgreSQL's: normally nothing is left to do here.
 */
static void
at_exit(int code, Datum arg)
{
	let_back(false);
}

/* This transaction's mark for a database; NULL if there is no room. */
static LfAway *
mark_away(Oid database)
{
	static bool registered = false;
	LfAway	   *away;
	int			i;

	for (i = 0; i < away_count; i++)
	{
		if (aways[i].database == database)
			return &aways[i];
	}
	if (away_count == lengthof(aways))
		return NULL;

	if (!registered)
	{
		on_shmem_exit(at_exit, (Datum) 0);
		registered = true;
	}
	away = &aways[away_count];
	memset(away, 0, sizeof(*away));
	away->database = database;
	away_count++;
	return away;
}

/* Neither a worker that is attached nor one that may attach any moment? */
static bool
is_alone(Oid database)
{
	int			index = lf_database_find(database);
	LfDatabaseView view;

	return index < 0 || !lf_database_look(index, &view) ||
		view.oid != database ||
		(view.worker_pid == 0 && view.state != LF_WORKER_STARTING);
}

static void
wait_until_alone(Oid database)
{
	static uint32 wait_event = 0;
	LfClock		limit = lf_clock_after(lf_clock_now(), LEAVE_LIMIT);

	while (!is_alone(database) && lf_clock_now() < limit)
	{
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 LEAVE_POLL,
						 lf_wait_event(&wait_event, "LeaseFenceWorkerLeave"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Before the command: if it needs a database without its worker, send that away.
 * The name is looked up without a lock, as the command will do it again under
 * its own; should it then mean another database, a worker has left in vain.
 */
static LfAway *
before_command(LfCommand command, const char *name, bool top_level)
{
	Oid			database;
	LfAway	   *away;

	/* No worker runs on a standby, nor can the command. */
	if (command == LF_COMMAND_OTHER || RecoveryInProgress())
		return NULL;
	database = get_database_oid(name, true);
	if (!OidIsValid(database) || !could_succeed(command, database, top_level))
		return NULL;
	away = mark_away(database);
	if (away == NULL)
		return NULL;

	/* From here on the transaction's end lets it back, whatever happens. */
	if (!away->held)
		away->held = lf_database_hold(database);
	if (away->held)
		wait_until_alone(database);
	return away;
}

/*
 * After it: what its commit will mean.  That the database which we have marked
 * is the one that is gone must be seen in the catalog.
 */
static void
after_command(LfCommand command, LfAway *away)
{
	if (command == LF_COMMAND_RENAME)
		away->renamed = true;
	else if (command == LF_COMMAND_DROP)
	{
		CommandCounterIncrement();
		away->dropped = !SearchSysCacheExists1(DATABASEOID,
											   ObjectIdGetDatum(away->database));
	}
}

static void
utility_hook(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
			 ProcessUtilityContext context, ParamListInfo params,
			 QueryEnvironment *queryEnv, DestReceiver *dest,
			 QueryCompletion *qc)
{
	Node	   *statement = pstmt->utilityStmt;
	bool		discard = IsA(statement, DiscardStmt) &&
		((DiscardStmt *) statement)->target == DISCARD_ALL;
	const char *database = NULL;
	LfCommand	command = classify(statement, &database);
	LfAway	   *away = before_command(command, database,
									  context == PROCESS_UTILITY_TOPLEVEL);

	/* The statement may be gone when this returns. */
	if (previous_hook != NULL)
		previous_hook(pstmt, queryString, readOnlyTree, context, params,
					  queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context,
								params, queryEnv, dest, qc);

	if (away != NULL)
		after_command(command, away);
	if (discard)
		lf_held_discard();
}

void
lf_utility_install_hook(void)
{
	previous_hook = ProcessUtility_hook;
	ProcessUtility_hook = utility_hook;
	RegisterXactCallback(at_transaction_end, NULL);
}
