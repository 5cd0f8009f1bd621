/*
 * columns.c
 *		Values for a table's columns, out of a caller's JSON.
 *
 * Runs in backends.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "base/compat.h"
#include "catalog/pg_type.h"
#include "fence/columns.h"
#include "nodes/makefuncs.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/relcache.h"

static Form_pg_attribute
find_column(Relation relation, const char *argument, const char *name)
{
	TupleDesc	desc = RelationGetDescr(relation);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (!attribute->attisdropped && strcmp(NameStr(attribute->attname), name) == 0)
			return attribute;
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("argument \"%s\" names the column \"%s\", which table \"%s\" does not have",
					argument, name, RelationGetRelationName(relation))));
}

/*
 * The value as an assignment would give it.  What is only compared is left as it
 * came: rounded to the column's digits it would equal what the caller never said.
 * text may be NULL for a domain, which may have its say about that too.
 */
static Datum
input_value(Form_pg_attribute attribute, char *text, bool compared)
{
	Oid			type = compared ? getBaseType(attribute->atttypid) : attribute->atttypid;
	Oid			input;
	Oid			parameter;

	getTypeInputInfo(type, &input, &parameter);
	return OidInputFunctionCall(input, text, parameter,
								compared ? -1 : attribute->atttypmod);
}

/*
 * A row without a value: jsonb_populate_record leaves alone what its object does
 * not name.  Given no row at all it would ask the other columns' domains whether
 * they like a NULL.
 */
static Datum
empty_row(Relation relation)
{
	TupleDesc	desc = RelationGetDescr(relation);
	Datum	   *values = palloc0(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));

	memset(nulls, true, desc->natts * sizeof(bool));
	return heap_copy_tuple_as_datum(heap_form_tuple(desc, values, nulls), desc);
}

/*
 * Arrays and objects for a column that is neither json nor jsonb: PostgreSQL's
 * own conversion, of a record type with all the table's columns.
 */
static Datum
input_container(Relation relation, Form_pg_attribute attribute, JsonbValue *value)
{
	LOCAL_FCINFO(fcinfo, 2);
	FmgrInfo	flinfo;
	JsonbParseState *state = NULL;
	JsonbValue	key;
	Jsonb	   *object;
	Const	   *row = makeNullConst(get_rel_type_id(RelationGetRelid(relation)), -1, InvalidOid);
	HeapTupleHeader record;
	HeapTupleData tuple;
	bool		isnull;

	key.type = jbvString;
	key.val.string.val = NameStr(attribute->attname);
	key.val.string.len = strlen(key.val.string.val);
	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	pushJsonbValue(&state, WJB_KEY, &key);
	pushJsonbValue(&state, WJB_VALUE, value);
	object = JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));

	fmgr_info(F_JSONB_POPULATE_RECORD, &flinfo);
	fmgr_info_set_expr((Node *) makeFuncExpr(F_JSONB_POPULATE_RECORD, RECORDOID,
											 list_make2(row, makeNullConst(JSONBOID, -1, InvalidOid)),
											 InvalidOid, InvalidOid, COERCE_EXPLICIT_CALL),
					   &flinfo);
	InitFunctionCallInfoData(*fcinfo, &flinfo, 2, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = empty_row(relation);
	fcinfo->args[0].isnull = false;
	fcinfo->args[1].value = JsonbPGetDatum(object);
	fcinfo->args[1].isnull = false;
	record = DatumGetHeapTupleHeader(FunctionCallInvoke(fcinfo));

	tuple.t_len = HeapTupleHeaderGetDatumLength(record);
	ItemPointerSetInvalid(&tuple.t_self);
	tuple.t_tableOid = InvalidOid;
	tuple.t_data = record;
	return heap_getattr(&tuple, attribute->attnum, RelationGetDescr(relation), &isnull);
}

static Datum
input_json_value(Relation relation, Form_pg_attribute attribute, JsonbValue *value,
				 bool compared, bool *isnull)
{
	Oid			base_type = getBaseType(attribute->atttypid);

	*isnull = value->type == jbvNull;
	if (!*isnull && (base_type == JSONOID || base_type == JSONBOID))
		return input_value(attribute,
						   JsonbToCString(NULL, &JsonbValueToJsonb(value)->root, 0), compared);
	switch (value->type)
	{
		case jbvNull:
			/* a parameter of a domain's type is not checked again */
			if (!compared && base_type != attribute->atttypid)
				(void) input_value(attribute, NULL, false);
			return (Datum) 0;
		case jbvString:
			return input_value(attribute, pnstrdup(value->val.string.val,
												   value->val.string.len), compared);
		case jbvNumeric:
			return input_value(attribute,
							   DatumGetCString(DirectFunctionCall1(numeric_out,
																   NumericGetDatum(value->val.numeric))),
							   compared);
		case jbvBool:
			return input_value(attribute, value->val.boolean ? "true" : "false", compared);
		default:
			return input_container(relation, attribute, value);
	}
}

static void
make_room(LfColumns *columns, int count)
{
	columns->count = 0;
	columns->numbers = palloc(Max(count, 1) * sizeof(AttrNumber));
	columns->values = palloc(Max(count, 1) * sizeof(Datum));
	columns->nulls = palloc(Max(count, 1) * sizeof(bool));
}

/* Inserts in the order of numbers, so that equal sets have one plan. */
static void
add_column(LfColumns *columns, AttrNumber number, Datum value, bool isnull)
{
	int			place = columns->count++;

	while (place > 0 && columns->numbers[place - 1] > number)
	{
		columns->numbers[place] = columns->numbers[place - 1];
		columns->values[place] = columns->values[place - 1];
		columns->nulls[place] = columns->nulls[place - 1];
		place--;
	}
	columns->numbers[place] = number;
	columns->values[place] = value;
	columns->nulls[place] = isnull;
}

void
lf_columns_of_json(Relation relation, Jsonb *object, const char *argument,
				   bool compared, LfColumns *columns)
{
	JsonbIterator *iterator;
	JsonbValue	value;
	JsonbIteratorToken what;

	if (!JB_ROOT_IS_OBJECT(object))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must be a JSON object with the names of columns", argument)));
	make_room(columns, JB_ROOT_COUNT(object));
	iterator = JsonbIteratorInit(&object->root);
	while ((what = JsonbIteratorNext(&iterator, &value, true)) != WJB_DONE)
	{
		Form_pg_attribute attribute;
		Datum		datum;
		bool		isnull;

		if (what != WJB_KEY)
			continue;
		attribute = find_column(relation, argument,
								pnstrdup(value.val.string.val, value.val.string.len));
		JsonbIteratorNext(&iterator, &value, true);
		datum = input_json_value(relation, attribute, &value, compared, &isnull);
		add_column(columns, attribute->attnum, datum, isnull);
	}
}

/* The one column of the primary key. */
static Form_pg_attribute
single_key_column(Relation relation, const char *key)
{
	Bitmapset  *members = RelationGetIndexAttrBitmap(relation, INDEX_ATTR_BITMAP_PRIMARY_KEY);
	int			member;

	if (members == NULL || !bms_get_singleton_member(members, &member))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"key\" is the bare value \"%s\", but table \"%s\" has no primary key of one column",
						key, RelationGetRelationName(relation)),
				 errhint("Name the columns of a unique key: {\"column\": value, ...}.")));
	return TupleDescAttr(RelationGetDescr(relation),
						 member + FirstLowInvalidHeapAttributeNumber - 1);
}

void
lf_columns_of_key(Relation relation, const char *key, LfColumns *columns)
{
	if (key[0] == '{')
	{
		Datum		object = DirectFunctionCall1(jsonb_in, CStringGetDatum(key));

		lf_columns_of_json(relation, DatumGetJsonbP(object), "key", true, columns);
	}
	else
	{
		Form_pg_attribute attribute = single_key_column(relation, key);

		make_room(columns, 1);
		add_column(columns, attribute->attnum,
				   input_value(attribute, pstrdup(key), true), false);
	}
	for (int i = 0; i < columns->count; i++)
	{
		if (columns->nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("argument \"key\" has NULL for the column \"%s\"",
							NameStr(TupleDescAttr(RelationGetDescr(relation),
												  columns->numbers[i] - 1)->attname))));
	}
}

bool
lf_columns_include(const LfColumns *columns, AttrNumber number)
{
	for (int i = 0; i < columns->count; i++)
	{
		if (columns->numbers[i] == number)
			return true;
	}
	return false;
}
