/*
 * examine.c
 *		SQL: examine_guard, for check(): what only C can say of a guard.
 *
 * Runs in backends, for the DBA.
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
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

PG_FUNCTION_INFO_V1(lf_examine_guard);

/*
 * Parses the guard as its trigger would.  The message of what is wrong with it,
 * or NULL.  In a subtransaction, since an error is an answer here.
 */
static char *
problem_of(Relation relation, Trigger *trigger)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	char	   *volatile problem = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		lf_guard_info(relation, trigger, NULL);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		problem = error->message;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return problem;
}

static int64
highest_stamp(Relation relation, const char *column)
{
	char	   *query = psprintf("SELECT pg_catalog.max(%s) FROM %s", quote_identifier(column),
								 quote_qualified_identifier(get_namespace_name(RelationGetNamespace(relation)),
															RelationGetRelationName(relation)));
	bool		isnull = true;
	int64		stamp = 0;

	SPI_connect();
	if (SPI_execute(query, true, 1) == SPI_OK_SELECT && SPI_processed == 1)
		stamp = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
											1, &isnull));
	SPI_finish();
	return isnull ? 0 : stamp;
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

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	relation = table_open(PG_GETARG_OID(0), AccessShareLock);
	trigger = lf_guard_find_trigger(relation);
	values[1] = BoolGetDatum(false);
	if (trigger != NULL)
		problem = problem_of(relation, trigger);
	if (problem != NULL)
	{
		values[0] = CStringGetTextDatum(problem);
		nulls[0] = false;
	}
	else if (trigger != NULL)
		values[1] = BoolGetDatum(highest_stamp(relation,
											   trigger->tgargs[LF_GUARD_ARG_TOKEN_COLUMN]) >
								 lf_grants_last_token());
	table_close(relation, NoLock);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
