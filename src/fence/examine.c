/*
 * examine.c
 *		SQL: examine_guard, for check(): what only C can say of a guard.
 *
 * Runs in backends, for the DBA.
 *
 * What must end well: anybody can make a trigger on lease_fence.guard(), on a
 * table or view of his, and what that does must neither get the DBA's rights nor
 * keep check() from telling of the other tables.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "executor/spi.h"
#include "fence/grants.h"
#include "fence/guard_info.h"
#include "fence/stamp.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

PG_FUNCTION_INFO_V1(lf_examine_guard);

/* The table is a stranger's: its own code must not run with our caller's rights. */
static bool
has_stamp_ahead(Relation relation, AttrNumber column)
{
	int64		stamp;

	SPI_connect();
	stamp = lf_stamp_of_table(RelationGetRelid(relation),
							  get_attname(RelationGetRelid(relation), column, false),
							  PG_INT64_MAX);
	SPI_finish();
	return stamp > lf_grants_last_token();
}

/*
 * Parses the guard as its trigger would, and looks at the stamps.  The message of
 * what is wrong with either, or NULL.  In a subtransaction, since an error is an
 * answer here, except that of who wants us to stop.
 */
static char *
problem_of(Relation relation, Trigger *trigger, bool *stamp_ahead)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	char	   *volatile problem = NULL;
	volatile bool reading = false;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		LfGuardInfo *info = lf_guard_info(relation, trigger, NULL);

		reading = true;
		*stamp_ahead = has_stamp_ahead(relation, info->token_column);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			ReThrowError(error);
		problem = reading ? psprintf("its stamps cannot be read: %s", error->message) :
			error->message;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return problem;
}

/* relation; OUT problem text, OUT stamp_ahead boolean */
Datum
lf_examine_guard(PG_FUNCTION_ARGS)
{
	Relation	relation;
	Trigger    *trigger;
	TupleDesc	desc;
	Datum		values[2];
	bool		nulls[2] = {true, false};
	char	   *problem = NULL;
	bool		stamp_ahead = false;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	relation = table_open(PG_GETARG_OID(0), AccessShareLock);
	trigger = lf_guard_find_trigger(relation);
	if (trigger != NULL)
		problem = problem_of(relation, trigger, &stamp_ahead);
	if (problem != NULL)
	{
		values[0] = CStringGetTextDatum(problem);
		nulls[0] = false;
	}
	values[1] = BoolGetDatum(stamp_ahead);
	table_close(relation, NoLock);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
