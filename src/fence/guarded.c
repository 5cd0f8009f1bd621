/*
 * guarded.c
 *		SQL: guarded_update, _decrement, _increment, _insert, _delete.
 *
 * Runs in backends.  A thin layer: present the token for this call, run one
 * statement, let the guard's trigger decide.  What the statement did not write
 * is looked at, so that a stale caller gets an error and never an outcome.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "base/compat.h"
#include "base/result.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fence/check.h"
#include "fence/guard.h"
#include "fence/guarded_call.h"
#include "fence/present.h"
#include "fence/reject.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"

PG_FUNCTION_INFO_V1(lf_guarded_update);
PG_FUNCTION_INFO_V1(lf_guarded_decrement);
PG_FUNCTION_INFO_V1(lf_guarded_increment);
PG_FUNCTION_INFO_V1(lf_guarded_insert);
PG_FUNCTION_INFO_V1(lf_guarded_delete);

/*
 * The arguments of a request that an operation key stands for, without the token:
 * the number of each, and the output function of its type.
 */
typedef struct LfRequestPart
{
	int			number;
	PGFunction	output;
} LfRequestPart;

/* ---- the operation key ---- */

static void
append_part(StringInfo request, const char *part)
{
	if (part == NULL)
		appendStringInfoString(request, "-;");
	else
		appendStringInfo(request, "%zu:%s;", strlen(part), part);
}

/*
 * True if it was applied before: the earlier answer is this call's.  Without a
 * key there is nothing to look up, and the arguments are not made text of.
 */
static bool
was_applied(LfGuardedCall *call, int number, const char *function,
			const LfRequestPart *parts, int count)
{
	StringInfoData request;
	Jsonb	   *earlier;
	char	   *key = lf_guarded_call_text(call, number, textout);

	if (key == NULL)
		return false;
	initStringInfo(&request);
	append_part(&request, function);
	append_part(&request, get_namespace_name(RelationGetNamespace(call->relation)));
	append_part(&request, RelationGetRelationName(call->relation));
	for (int i = 0; i < count; i++)
		append_part(&request, lf_guarded_call_text(call, parts[i].number, parts[i].output));
	earlier = lf_operation_begin(&call->operation, key,
								 RelationGetRelid(call->relation), request.data);
	if (earlier == NULL)
		return false;
	call->outcome = "replayed";
	call->has_answer = true;
	call->answer = JsonbPGetDatum(earlier);
	return true;
}

/* ---- running ---- */

static void
keep_answer(LfGuardedCall *call)
{
	Form_pg_attribute attribute;
	bool		isnull;
	Datum		value;

	if (SPI_tuptable == NULL || SPI_tuptable->tupdesc->natts == 0)
		return;
	attribute = TupleDescAttr(SPI_tuptable->tupdesc, 0);
	value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	call->has_answer = !isnull;
	if (!isnull)
		call->answer = SPI_datumTransfer(value, attribute->attbyval, attribute->attlen);
}

/* A composite value with the relation's own layout, as a tuple. */
static HeapTuple
tuple_of_row(Datum row)
{
	HeapTupleHeader header = DatumGetHeapTupleHeader(row);
	HeapTuple	tuple = palloc0(sizeof(HeapTupleData));

	tuple->t_len = HeapTupleHeaderGetDatumLength(header);
	ItemPointerSetInvalid(&tuple->t_self);
	tuple->t_tableOid = InvalidOid;
	tuple->t_data = header;
	return tuple;
}

/* The row that LOOK found; what the caller may not select is NULL in it. */
static HeapTuple
row_seen(Relation relation, const Bitmapset *selected)
{
	TupleDesc	desc = RelationGetDescr(relation);
	HeapTuple	found = SPI_tuptable->vals[0];
	Datum	   *values;
	bool	   *nulls;
	bool		isnull;
	int			number = 0;
	int			place = 0;

	if (selected == NULL)
		return tuple_of_row(SPI_getbinval(found, SPI_tuptable->tupdesc, 1, &isnull));
	values = palloc0(desc->natts * sizeof(Datum));
	nulls = palloc(desc->natts * sizeof(bool));
	memset(nulls, true, desc->natts * sizeof(bool));
	while ((number = bms_next_member(selected, number)) > 0)
		values[number - 1] = SPI_getbinval(found, SPI_tuptable->tupdesc, ++place,
										   &nulls[number - 1]);
	return heap_form_tuple(desc, values, nulls);
}

static void
check_given_token(LfGuardedCall *call)
{
	LfWrite		write = {NULL, "write", NULL, NULL};
	LfResource	resource;
	LfVerdict	verdict;

	if (call->token == 0 || !lf_guard_enforces(call->relation, call->guard))
		return;
	lf_check_token(call->token, &verdict, &resource);
	if (verdict.kind == LF_VERDICT_REJECTED)
		lf_reject_write(&write, resource.length > 0 ? &resource : NULL, NULL, &verdict);
}

/* The counter's present value goes with not_met. */
static void
keep_counter(LfGuardedCall *call, HeapTuple row)
{
	Form_pg_attribute attribute;
	bool		isnull;
	Datum		value;

	if (call->statement.counter == InvalidAttrNumber)
		return;
	attribute = TupleDescAttr(RelationGetDescr(call->relation), call->statement.counter - 1);
	value = heap_getattr(row, call->statement.counter, RelationGetDescr(call->relation), &isnull);
	call->has_answer = !isnull;
	if (!isnull)
		call->answer = SPI_datumTransfer(value, attribute->attbyval, attribute->attlen);
}

/* Nothing was written: because there is no such row, or it did not meet. */
static void
explain_unwritten(LfGuardedCall *call)
{
	LfStatement look;
	HeapTuple	row;
	Bitmapset  *selected;

	memset(&look, 0, sizeof(look));
	look.kind = LF_STATEMENT_LOOK;
	look.relation = call->relation;
	look.key = call->statement.key;
	call->outcome = "not_met";
	if (look.key == NULL)
	{
		check_given_token(call);
		return;
	}
	if (lf_statement_run(&look, &selected) == 0)
	{
		check_given_token(call);
		call->outcome = "not_found";
	}
	else
	{
		row = row_seen(call->relation, selected);
		if (!lf_guard_check_unwritten(call->relation, call->guard, row, selected))
			check_given_token(call);
		keep_counter(call, row);
	}
}

static void
execute(LfGuardedCall *call)
{
	SPI_connect();
	if (!call->impossible && lf_statement_run(&call->statement, NULL) > 0)
	{
		call->outcome = "applied";
		keep_answer(call);
	}
	else
		explain_unwritten(call);
	SPI_finish();
}

/* The counters' value is of their column's type. */
static Datum
counter_as_numeric(LfGuardedCall *call)
{
	Oid			type = getBaseType(TupleDescAttr(RelationGetDescr(call->relation),
												 call->statement.counter - 1)->atttypid);

	switch (type)
	{
		case INT2OID:
			return NumericGetDatum(int64_to_numeric(DatumGetInt16(call->answer)));
		case INT4OID:
			return NumericGetDatum(int64_to_numeric(DatumGetInt32(call->answer)));
		case INT8OID:
			return NumericGetDatum(int64_to_numeric(DatumGetInt64(call->answer)));
		default:
			return call->answer;
	}
}

/* What is stored under an operation key: any jsonb. */
static Jsonb *
answer_as_jsonb(LfGuardedCall *call)
{
	JsonbValue	value;

	if (call->has_answer && call->statement.counter == InvalidAttrNumber)
		return DatumGetJsonbP(call->answer);
	value.type = call->has_answer ? jbvNumeric : jbvNull;
	if (call->has_answer)
	{
		value.val.numeric = DatumGetNumeric(call->answer);
		if (numeric_is_nan(value.val.numeric) || numeric_is_inf(value.val.numeric))
		{
			/* JSON has no such numbers: a dump of them could not be restored */
			value.type = jbvString;
			value.val.string.val = DatumGetCString(DirectFunctionCall1(numeric_out, call->answer));
			value.val.string.len = strlen(value.val.string.val);
		}
	}
	return JsonbValueToJsonb(&value);
}

static void
run(LfGuardedCall *call)
{
	int64		before = lf_present_begin_call(call->token);

	PG_TRY();
	{
		execute(call);
	}
	PG_FINALLY();
	{
		lf_present_end_call(before);
	}
	PG_END_TRY();
	if (call->has_answer && call->statement.counter != InvalidAttrNumber)
		call->answer = counter_as_numeric(call);
	if (call->operation.key != NULL && strcmp(call->outcome, "applied") == 0)
		lf_operation_applied(&call->operation, call->token, answer_as_jsonb(call));
}

/* A replayed answer of a counter comes back as jsonb. */
static void
unpack_replayed(LfGuardedCall *call)
{
	JsonbValue	value;

	if (call->statement.counter == InvalidAttrNumber)
	{
		call->has_answer = !JB_ROOT_IS_SCALAR(DatumGetJsonbP(call->answer));
		return;
	}
	call->has_answer = JsonbExtractScalar(&DatumGetJsonbP(call->answer)->root, &value) &&
		value.type != jbvNull;
	if (call->has_answer && value.type == jbvString)
		call->answer = DirectFunctionCall3(numeric_in,
										   CStringGetDatum(pnstrdup(value.val.string.val,
																	value.val.string.len)),
										   ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1));
	else if (call->has_answer)
		call->answer = NumericGetDatum(value.val.numeric);
}

static Datum
make_answer(LfGuardedCall *call)
{
	Datum		values[2];
	bool		nulls[2] = {false, false};

	values[0] = CStringGetTextDatum(call->outcome);
	values[1] = call->answer;
	nulls[1] = !call->has_answer;
	relation_close(call->relation, NoLock);
	return lf_result_row(call->fcinfo, values, nulls);
}

static Datum
run_or_replay(LfGuardedCall *call, int operation_key, const char *function,
			  const LfRequestPart *parts, int count)
{
	if (was_applied(call, operation_key, function, parts, count))
		unpack_replayed(call);
	else
		run(call);
	return make_answer(call);
}

/* ---- the functions ---- */

/* relation, key, changes, token, expected, operation_key */
Datum
lf_guarded_update(PG_FUNCTION_ARGS)
{
	LfGuardedCall call;
	static const LfRequestPart parts[] = {{1, textout}, {2, jsonb_out}, {4, jsonb_out}};

	lf_guarded_call_begin(&call, fcinfo, LF_STATEMENT_UPDATE);
	lf_guarded_call_key(&call, 1);
	lf_guarded_call_changes(&call, 2, "changes");
	if (call.changes.count == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"changes\" changes nothing")));
	lf_guarded_call_token(&call, 3);
	lf_guarded_call_expected(&call, 4);
	return run_or_replay(&call, 5, "guarded_update", parts, lengthof(parts));
}

/* relation, key, column_name, token, amount, floor or ceiling, operation_key */
static Datum
guarded_counter(FunctionCallInfo fcinfo, LfStatementKind kind, const char *function)
{
	LfGuardedCall call;
	static const LfRequestPart parts[] = {{1, textout}, {2, nameout}, {4, numeric_out}, {5, numeric_out}};

	lf_guarded_call_begin(&call, fcinfo, kind);
	lf_guarded_call_key(&call, 1);
	lf_guarded_call_token(&call, 3);
	lf_guarded_call_counter(&call, 2, 4, 5, kind == LF_STATEMENT_DECREMENT);
	return run_or_replay(&call, 6, function, parts, lengthof(parts));
}

Datum
lf_guarded_decrement(PG_FUNCTION_ARGS)
{
	return guarded_counter(fcinfo, LF_STATEMENT_DECREMENT, "guarded_decrement");
}

Datum
lf_guarded_increment(PG_FUNCTION_ARGS)
{
	return guarded_counter(fcinfo, LF_STATEMENT_INCREMENT, "guarded_increment");
}

/* relation, new_row, token, operation_key */
Datum
lf_guarded_insert(PG_FUNCTION_ARGS)
{
	LfGuardedCall call;
	static const LfRequestPart parts[] = {{1, jsonb_out}};

	lf_guarded_call_begin(&call, fcinfo, LF_STATEMENT_INSERT);
	lf_guarded_call_changes(&call, 1, "new_row");
	lf_guarded_call_token(&call, 2);
	return run_or_replay(&call, 3, "guarded_insert", parts, lengthof(parts));
}

/* relation, key, token, expected, operation_key */
Datum
lf_guarded_delete(PG_FUNCTION_ARGS)
{
	LfGuardedCall call;
	static const LfRequestPart parts[] = {{1, textout}, {3, jsonb_out}};

	lf_guarded_call_begin(&call, fcinfo, LF_STATEMENT_DELETE);
	lf_guarded_call_key(&call, 1);
	lf_guarded_call_token(&call, 2);
	lf_guarded_call_expected(&call, 3);
	return run_or_replay(&call, 4, "guarded_delete", parts, lengthof(parts));
}
