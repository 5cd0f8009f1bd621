/*
 * result.c
 *		The row that a function of ours returns.
 *
 * Runs in backends.
 *
 * PostgreSQL would make the row type of OUT arguments anew at each call, from
 * pg_proc's arrays: that is a tenth of what guarded_decrement() costs.  A function
 * keeps its row type as long as it has its oid, so nothing invalidates what is
 * kept here.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "base/compat.h"
#include "base/result.h"
#include "funcapi.h"
#include "utils/memutils.h"

/* More than there are functions that return a row; the oldest makes room. */
#define KEPT 16

typedef struct KeptType
{
	Oid			function;
	TupleDesc	desc;
} KeptType;

static KeptType kept[KEPT];
static int	next = 0;

static TupleDesc
make_type(FunctionCallInfo fcinfo)
{
	MemoryContext saved;
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	saved = MemoryContextSwitchTo(TopMemoryContext);
	desc = CreateTupleDescCopy(BlessTupleDesc(desc));
	MemoryContextSwitchTo(saved);
	return desc;
}

static TupleDesc
type_of(FunctionCallInfo fcinfo)
{
	Oid			function = fcinfo->flinfo->fn_oid;
	KeptType   *one;

	for (int i = 0; i < KEPT; i++)
	{
		if (kept[i].function == function && kept[i].desc != NULL)
			return kept[i].desc;
	}
	one = &kept[next];
	next = (next + 1) % KEPT;
	if (one->desc != NULL)
		FreeTupleDesc(one->desc);
	one->desc = NULL;
	one->desc = make_type(fcinfo);
	one->function = function;
	return one->desc;
}

Datum
lf_result_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	return HeapTupleGetDatum(heap_form_tuple(type_of(fcinfo), values, nulls));
}
