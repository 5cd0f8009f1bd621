/*
 * guarded_call.c
 *		The arguments of the guarded functions, read and checked.
 *
 * Runs in backends.
 *
 * What must end well: nothing of a caller's text becomes SQL (see columns.h); a
 * table that is not guarded, and a column that is not for the caller to write, is
 * refused before anything is looked at or written.
 */
#include "postgres.h"

#include "access/relation.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "fence/amount.h"
#include "fence/guarded_call.h"
#include "fence/protect.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"

static bool
is_null(const LfGuardedCall *call, int number)
{
	return call->fcinfo->args[number].isnull;
}

static void
refuse_null(const char *argument)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("argument \"%s\" must not be NULL", argument)));
}

static void
open_table(LfGuardedCall *call)
{
	Oid			relid;

	if (is_null(call, 0))
		refuse_null("relation");
	relid = DatumGetObjectId(call->fcinfo->args[0].value);
	lf_catalog_required();
	call->relation = relation_open(relid, RowExclusiveLock);
	call->statement.relation = call->relation;
	if (call->relation->rd_rel->relkind == RELKIND_RELATION ||
		call->relation->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		call->guard = lf_guard_find_trigger(call->relation);
	else
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a table", RelationGetRelationName(call->relation))));
	if (call->guard == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" is not guarded", RelationGetRelationName(call->relation)),
				 errhint("Its owner guards it with lease_fence.protect().")));
}

void
lf_guarded_call_begin(LfGuardedCall *call, FunctionCallInfo fcinfo, LfStatementKind kind)
{
	memset(call, 0, sizeof(*call));
	call->fcinfo = fcinfo;
	call->statement.kind = kind;
	open_table(call);
}

void
lf_guarded_call_token(LfGuardedCall *call, int number)
{
	if (is_null(call, number))
		return;
	call->token = DatumGetInt64(call->fcinfo->args[number].value);
	if (call->token <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"token\" must be positive: %lld", (long long) call->token)));
}

/* The text of an argument for the request's digest, or NULL. */
char *
lf_guarded_call_text(LfGuardedCall *call, int number, PGFunction output)
{
	if (is_null(call, number))
		return NULL;
	return DatumGetCString(DirectFunctionCall1(output, call->fcinfo->args[number].value));
}

void
lf_guarded_call_key(LfGuardedCall *call, int number)
{
	if (is_null(call, number))
		refuse_null("key");
	lf_columns_of_key(call->relation, TextDatumGetCString(call->fcinfo->args[number].value),
					  &call->key);
	call->statement.key = &call->key;
}

static Jsonb *
json_argument(LfGuardedCall *call, int number)
{
	return DatumGetJsonbP(call->fcinfo->args[number].value);
}

void
lf_guarded_call_expected(LfGuardedCall *call, int number)
{
	if (is_null(call, number))
		return;
	lf_columns_of_json(call->relation, json_argument(call, number), "expected", true,
					   &call->expected);
	call->statement.expected = &call->expected;
}

/* Columns that a guarded function may not write. */
static void
check_writable(LfGuardedCall *call, const char *argument, AttrNumber number)
{
	Form_pg_attribute attribute = TupleDescAttr(RelationGetDescr(call->relation), number - 1);
	const char *why = NULL;

	if (strcmp(NameStr(attribute->attname),
			   call->guard->tgargs[LF_GUARD_ARG_TOKEN_COLUMN]) == 0)
		why = "It is the guard's token column.";
	else if (attribute->attgenerated != '\0')
		why = "It is a generated column.";
	else if (call->statement.key != NULL && lf_columns_include(call->statement.key, number))
		why = "It is part of the key.";
	if (why != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must not change the column \"%s\"", argument,
						NameStr(attribute->attname)),
				 errdetail_internal("%s", why)));
}

void
lf_guarded_call_changes(LfGuardedCall *call, int number, const char *argument)
{
	if (is_null(call, number))
		refuse_null(argument);
	lf_columns_of_json(call->relation, json_argument(call, number), argument, false,
					   &call->changes);
	for (int i = 0; i < call->changes.count; i++)
		check_writable(call, argument, call->changes.numbers[i]);
	call->statement.changes = &call->changes;
}

void
lf_guarded_call_counter(LfGuardedCall *call, int column, int amount, int limit, bool down)
{
	NameData   *name;
	AttrNumber	number;
	LfAmount	amounts;

	if (is_null(call, column))
		refuse_null("column_name");
	if (is_null(call, amount))
		refuse_null("amount");
	name = DatumGetName(call->fcinfo->args[column].value);
	number = get_attnum(RelationGetRelid(call->relation), NameStr(*name));
	if (number <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"column_name\" names the column \"%s\", which table \"%s\" does not have",
						NameStr(*name), RelationGetRelationName(call->relation))));
	check_writable(call, "column_name", number);
	lf_amount_for_column(TupleDescAttr(RelationGetDescr(call->relation), number - 1), down,
						 DatumGetNumeric(call->fcinfo->args[amount].value),
						 is_null(call, limit) ? NULL :
						 DatumGetNumeric(call->fcinfo->args[limit].value),
						 &amounts);
	call->statement.counter = number;
	call->statement.amount = amounts.amount;
	call->statement.bound = amounts.bound;
	call->statement.bounded = amounts.bounded;
	call->impossible = amounts.never;
}
