/*
 * watch.c
 *		The worker's own look at check(): changes of state go to the log.
 *
 * Runs in the worker.  Guarded tables are not scanned here: of what check()
 * says, the stamps are the DBA's to ask for.  Where another session has locked
 * one, the worker's lock_timeout ends the look, and the next one comes.
 */
#include "postgres.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/settings.h"
#include "base/transaction.h"
#include "executor/spi.h"
#include "nodes/pg_list.h"
#include "utils/memutils.h"
#include "worker/watch.h"

#define WATCH_EVERY INT64CONST(60000000)	/* microseconds */

static List *known = NIL;		/* of strings, in TopMemoryContext */

static bool
contains(List *list, const char *string)
{
	ListCell   *cell;

	foreach(cell, list)
	{
		if (strcmp((const char *) lfirst(cell), string) == 0)
			return true;
	}
	return false;
}

/* What is in one list and not in the other. */
static void
report(List *list, List *other, const char *what)
{
	ListCell   *cell;

	foreach(cell, list)
	{
		if (!contains(other, lfirst(cell)))
			ereport(LOG, (errmsg("lease_fence: %s: %s", what, (char *) lfirst(cell))));
	}
}

static void
collect(void *arg)
{
	List	  **found = arg;

	SPI_connect();
	SPI_execute("SELECT severity || ': ' || object || ': ' || problem FROM lease_fence.check_catalogs()",
				true, 0);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		MemoryContext saved = MemoryContextSwitchTo(TopMemoryContext);

		*found = lappend(*found, SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1));
		MemoryContextSwitchTo(saved);
	}
	SPI_finish();
}

void
lf_watch_pass(bool soon)
{
	static LfClock due = 0;
	LfClock		now = lf_clock_now();
	List	   *found = NIL;
	XLogRecPtr	end;
	char	   *problem;
	bool		done;

	if (now < due && !soon)
		return;
	due = lf_clock_after(now, WATCH_EVERY);
	done = lf_transaction_try("checking guards", collect, &found, &end, &problem);
	if (!done)
		return;
	report(found, known, "check() has a new finding");
	report(known, found, "check() no longer finds");
	list_free_deep(known);
	known = found;
}
