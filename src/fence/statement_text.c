/*
 * statement_text.c
 *		The statements of the guarded functions: text and parameters.
 *
 * Runs in backends, as the caller.
 *
 * What must end well: everything that is named is looked up, quoted and
 * qualified, operators too; everything that is a value is a parameter.  No text
 * of a caller's and no search_path has a say.
 */
#include "postgres.h"

#include "base/compat.h"
#include "catalog/pg_operator.h"
#include "fence/statement_text.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

/* ---- parameters ---- */

static Form_pg_attribute
attribute_of(const LfStatement *statement, AttrNumber number)
{
	return TupleDescAttr(RelationGetDescr(statement->relation), number - 1);
}

static int
add_parameter(LfStatementWriter *writer, Oid type, Datum value, bool isnull)
{
	writer->types[writer->count] = type;
	writer->values[writer->count] = value;
	writer->nulls[writer->count] = isnull ? 'n' : ' ';
	return ++writer->count;
}

/* compared: as lf_columns_of_json() was told */
static void
add_columns(LfStatementWriter *writer, const LfColumns *columns, bool compared)
{
	for (int i = 0; columns != NULL && i < columns->count; i++)
	{
		Oid			type = attribute_of(writer->statement, columns->numbers[i])->atttypid;

		add_parameter(writer, compared ? getBaseType(type) : type,
					  columns->values[i], columns->nulls[i]);
	}
}

/* A name that no column has, so that it means the row. */
static const char *
row_alias(Relation relation)
{
	TupleDesc	desc = RelationGetDescr(relation);
	char	   *alias = pstrdup("t");

	for (int i = 0; i < desc->natts; i++)
	{
		if (strcmp(NameStr(TupleDescAttr(desc, i)->attname), alias) == 0)
		{
			alias = psprintf("%s_", alias);
			i = -1;
		}
	}
	return alias;
}

/* In this order: changes, counter's amount and bound, key, expected. */
static void
collect_parameters(LfStatementWriter *writer)
{
	const LfStatement *statement = writer->statement;
	int			room = 2;

	room += statement->changes != NULL ? statement->changes->count : 0;
	room += statement->key != NULL ? statement->key->count : 0;
	room += statement->expected != NULL ? statement->expected->count : 0;
	writer->types = palloc(room * sizeof(Oid));
	writer->values = palloc(room * sizeof(Datum));
	writer->nulls = palloc(room);
	add_columns(writer, statement->changes, false);
	if (statement->counter != InvalidAttrNumber)
	{
		Oid			type = attribute_of(statement, statement->counter)->atttypid;

		add_parameter(writer, type, statement->amount, false);
		add_parameter(writer, type, statement->bound, !statement->bounded);
	}
	add_columns(writer, statement->key, true);
	add_columns(writer, statement->expected, true);
}

void
lf_statement_writer_init(LfStatementWriter *writer, const LfStatement *statement)
{
	memset(writer, 0, sizeof(*writer));
	writer->statement = statement;
	writer->alias = row_alias(statement->relation);
	collect_parameters(writer);
}

/* ---- text ---- */

static const char *
column_name(const LfStatement *statement, AttrNumber number)
{
	return quote_identifier(NameStr(attribute_of(statement, number)->attname));
}

static const char *
table_name(Relation relation)
{
	return quote_qualified_identifier(get_namespace_name(RelationGetNamespace(relation)),
									  RelationGetRelationName(relation));
}

/* OPERATOR(schema.name): no search_path has a say. */
static char *
operator_name(Oid operator)
{
	HeapTuple	tuple = SearchSysCache1(OPEROID, ObjectIdGetDatum(operator));
	Form_pg_operator form;
	char	   *name;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for operator %u", operator);
	form = (Form_pg_operator) GETSTRUCT(tuple);
	name = psprintf("OPERATOR(%s.%s)", quote_identifier(get_namespace_name(form->oprnamespace)),
					NameStr(form->oprname));
	ReleaseSysCache(tuple);
	return name;
}

/* The equality of a column's type; the error names the column. */
static Oid
equality_of(const LfStatement *statement, AttrNumber number)
{
	Form_pg_attribute attribute = attribute_of(statement, number);
	TypeCacheEntry *type = lookup_type_cache(attribute->atttypid, TYPECACHE_EQ_OPR);

	if (!OidIsValid(type->eq_opr))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("column \"%s\" of type %s cannot be compared for equality",
						NameStr(attribute->attname), format_type_be(attribute->atttypid))));
	return type->eq_opr;
}

static void
write_key(LfStatementWriter *writer, int first)
{
	const LfStatement *statement = writer->statement;

	appendStringInfoString(&writer->text, " WHERE ");
	for (int i = 0; i < statement->key->count; i++)
		appendStringInfo(&writer->text, "%s%s.%s %s $%d", i > 0 ? " AND " : "", writer->alias,
						 column_name(statement, statement->key->numbers[i]),
						 operator_name(equality_of(statement, statement->key->numbers[i])),
						 first + i);
}

static void
write_expected(LfStatementWriter *writer, int first)
{
	const LfStatement *statement = writer->statement;

	for (int i = 0; statement->expected != NULL && i < statement->expected->count; i++)
	{
		const char *column = column_name(statement, statement->expected->numbers[i]);

		appendStringInfo(&writer->text, " AND (%s.%s %s $%d OR (%s.%s IS NULL AND $%d IS NULL))",
						 writer->alias, column,
						 operator_name(equality_of(statement, statement->expected->numbers[i])),
						 first + i, writer->alias, column, first + i);
	}
}

static void
write_selectable(LfStatementWriter *writer, const Bitmapset *selectable)
{
	const char *separator = "";
	int			number = 0;

	while ((number = bms_next_member(selectable, number)) > 0)
	{
		appendStringInfo(&writer->text, "%s%s.%s", separator, writer->alias,
						 column_name(writer->statement, number));
		separator = ", ";
	}
}

/* The row as jsonb, as far as the caller may select it; nothing if not at all. */
static void
write_returning(LfStatementWriter *writer, const Bitmapset *selectable)
{
	if (selectable == NULL)
	{
		appendStringInfo(&writer->text, " RETURNING pg_catalog.to_jsonb(%s)", writer->alias);
		return;
	}
	if (bms_num_members(selectable) == 1)
		return;
	appendStringInfoString(&writer->text,
						   " RETURNING (SELECT pg_catalog.to_jsonb(r.*) FROM (SELECT ");
	write_selectable(writer, selectable);
	appendStringInfoString(&writer->text, ") AS r)");
}

static void
write_update(LfStatementWriter *writer, const Bitmapset *selectable)
{
	const LfStatement *statement = writer->statement;
	const LfColumns *changes = statement->changes;

	appendStringInfo(&writer->text, "UPDATE %s AS %s SET ",
					 table_name(statement->relation), writer->alias);
	for (int i = 0; i < changes->count; i++)
		appendStringInfo(&writer->text, "%s%s = $%d", i > 0 ? ", " : "",
						 column_name(statement, changes->numbers[i]), i + 1);
	write_key(writer, changes->count + 1);
	write_expected(writer, changes->count + statement->key->count + 1);
	write_returning(writer, selectable);
}

/*
 * The bound is compared with the old value: it was moved by the amount where
 * it could be done without overflow.
 */
static void
write_counter(LfStatementWriter *writer, bool down)
{
	const LfStatement *statement = writer->statement;
	const char *column = column_name(statement, statement->counter);

	appendStringInfo(&writer->text, "UPDATE %s AS %s SET %s = %s.%s OPERATOR(pg_catalog.%c) $1",
					 table_name(statement->relation), writer->alias, column,
					 writer->alias, column, down ? '-' : '+');
	write_key(writer, 3);
	appendStringInfo(&writer->text,
					 " AND ($2 IS NULL OR %s.%s OPERATOR(pg_catalog.%s) $2) RETURNING %s.%s",
					 writer->alias, column, down ? ">=" : "<=", writer->alias, column);
}

static void
write_insert(LfStatementWriter *writer, const Bitmapset *selectable)
{
	const LfStatement *statement = writer->statement;
	const LfColumns *changes = statement->changes;

	appendStringInfo(&writer->text, "INSERT INTO %s AS %s ",
					 table_name(statement->relation), writer->alias);
	if (changes->count == 0)
		appendStringInfoString(&writer->text, "DEFAULT VALUES");
	for (int i = 0; i < changes->count; i++)
		appendStringInfo(&writer->text, "%s%s", i > 0 ? ", " : "(",
						 column_name(statement, changes->numbers[i]));
	for (int i = 0; i < changes->count; i++)
		appendStringInfo(&writer->text, "%s$%d", i > 0 ? ", " : ") VALUES (", i + 1);
	if (changes->count > 0)
		appendStringInfoChar(&writer->text, ')');
	write_returning(writer, selectable);
}

static void
write_delete(LfStatementWriter *writer, const Bitmapset *selectable)
{
	const LfStatement *statement = writer->statement;

	appendStringInfo(&writer->text, "DELETE FROM %s AS %s",
					 table_name(statement->relation), writer->alias);
	write_key(writer, 1);
	write_expected(writer, statement->key->count + 1);
	write_returning(writer, selectable);
}

static void
write_look(LfStatementWriter *writer, const Bitmapset *selectable)
{
	appendStringInfoString(&writer->text, "SELECT ");
	if (selectable == NULL)
		appendStringInfoString(&writer->text, writer->alias);
	else
		write_selectable(writer, selectable);
	appendStringInfo(&writer->text, " FROM %s AS %s",
					 table_name(writer->statement->relation), writer->alias);
	write_key(writer, 1);
}

void
lf_statement_write(LfStatementWriter *writer, const Bitmapset *selectable)
{
	initStringInfo(&writer->text);
	switch (writer->statement->kind)
	{
		case LF_STATEMENT_UPDATE:
			write_update(writer, selectable);
			break;
		case LF_STATEMENT_DECREMENT:
			write_counter(writer, true);
			break;
		case LF_STATEMENT_INCREMENT:
			write_counter(writer, false);
			break;
		case LF_STATEMENT_INSERT:
			write_insert(writer, selectable);
			break;
		case LF_STATEMENT_DELETE:
			write_delete(writer, selectable);
			break;
		case LF_STATEMENT_LOOK:
			write_look(writer, selectable);
			break;
	}
}
