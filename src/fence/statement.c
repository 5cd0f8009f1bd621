/*
 * statement.c
 *		The statements of the guarded functions, and the cache of their plans.
 *
 * Runs in backends, as the caller: row level security, privileges, partitions,
 * other triggers and generated columns hold by themselves.
 *
 * Everything that is named is looked up, quoted and qualified, operators too;
 * everything that is a value is a parameter.  The cache is bounded, and what
 * was prepared for a table is forgotten when the table changes; the plans in it
 * are PostgreSQL's own and follow roles and policies by themselves.
 */
#include "postgres.h"

#include "access/genam.h"
#include "base/compat.h"
#include "catalog/pg_am.h"
#include "catalog/pg_index.h"
#include "common/hashfn.h"
#include "fence/statement.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/typcache.h"
#include "catalog/pg_operator.h"

#define CACHED_PLANS 64

/*
 * What makes two calls share a plan: table, kind, columns, and which columns
 * the caller may select.
 */
typedef struct Signature
{
	uint32		hash;
	int			length;
	char	   *bytes;
} Signature;

typedef struct CachedStatement
{
	Signature	signature;
	Oid			relation;
	bool		valid;
	int			users;			/* running now: a trigger may bring us back here */
	uint64		last_used;
	SPIPlanPtr	plan;
} CachedStatement;

/* A statement while its text is written. */
typedef struct Writer
{
	const LfStatement *statement;
	const char *alias;			/* of the table: no column's name */
	StringInfoData text;
	Oid		   *types;
	Datum	   *values;
	char	   *nulls;
	int			count;
} Writer;

static CachedStatement cache[CACHED_PLANS];
static uint64 use_counter = 0;
static bool callback_registered = false;

static void
invalidate(Datum arg, Oid relid)
{
	for (int i = 0; i < CACHED_PLANS; i++)
	{
		if (relid == InvalidOid || cache[i].relation == relid)
			cache[i].valid = false;
	}
}

/* A schema changed its name: texts that name it may mean another table now. */
static void
invalidate_all(Datum arg, int cache_id, uint32 hash)
{
	invalidate(arg, InvalidOid);
}

static void
register_callbacks(void)
{
	if (callback_registered)
		return;
	CacheRegisterRelcacheCallback(invalidate, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, invalidate_all, (Datum) 0);
	callback_registered = true;
}

/* ---- parameters ---- */

static Form_pg_attribute
attribute_of(const LfStatement *statement, AttrNumber number)
{
	return TupleDescAttr(RelationGetDescr(statement->relation), number - 1);
}

static int
add_parameter(Writer *writer, Oid type, Datum value, bool isnull)
{
	writer->types[writer->count] = type;
	writer->values[writer->count] = value;
	writer->nulls[writer->count] = isnull ? 'n' : ' ';
	return ++writer->count;
}

/* compared: as lf_columns_of_json() was told */
static void
add_columns(Writer *writer, const LfColumns *columns, bool compared)
{
	for (int i = 0; columns != NULL && i < columns->count; i++)
	{
		Oid			type = attribute_of(writer->statement, columns->numbers[i])->atttypid;

		add_parameter(writer, compared ? getBaseType(type) : type,
					  columns->values[i], columns->nulls[i]);
	}
}

/* In this order: changes, counter's amount and bound, key, expected. */
static void
collect_parameters(Writer *writer)
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

/* ---- text ---- */

static const char *
column_name(const LfStatement *statement, AttrNumber number)
{
	return quote_identifier(NameStr(attribute_of(statement, number)->attname));
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
write_key(Writer *writer, int first)
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
write_expected(Writer *writer, int first)
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
write_selectable(Writer *writer, const Bitmapset *selectable)
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
write_returning(Writer *writer, const Bitmapset *selectable)
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
write_update(Writer *writer, const Bitmapset *selectable)
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
write_counter(Writer *writer, bool down)
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
write_insert(Writer *writer, const Bitmapset *selectable)
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
write_delete(Writer *writer, const Bitmapset *selectable)
{
	const LfStatement *statement = writer->statement;

	appendStringInfo(&writer->text, "DELETE FROM %s AS %s",
					 table_name(statement->relation), writer->alias);
	write_key(writer, 1);
	write_expected(writer, statement->key->count + 1);
	write_returning(writer, selectable);
}

static void
write_look(Writer *writer, const Bitmapset *selectable)
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

static void
write_text(Writer *writer, const Bitmapset *selectable)
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

/* ---- the key must be unique ---- */

static bool
index_has_key(Relation index, const LfColumns *key)
{
	Form_pg_index form = index->rd_index;

	if (!form->indisunique || !form->indisvalid || !form->indimmediate ||
		form->indnkeyatts != key->count ||
		RelationGetIndexExpressions(index) != NIL || RelationGetIndexPredicate(index) != NIL)
		return false;
	for (int i = 0; i < form->indnkeyatts; i++)
	{
		if (!lf_columns_include(key, form->indkey.values[i]))
			return false;
	}
	return true;
}

static void
check_key_is_unique(const LfStatement *statement)
{
	List	   *indexes = RelationGetIndexList(statement->relation);
	bool		found = false;
	ListCell   *cell;

	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		found = found || index_has_key(index, statement->key);
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	if (!found)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"key\" does not name a unique key of table \"%s\"",
						RelationGetRelationName(statement->relation)),
				 errhint("Give all the columns of its primary key, or of another unique index, and no others.")));
}

/* ---- the cache ---- */

static void
append_columns(StringInfo bytes, const LfColumns *columns)
{
	int			count = columns == NULL ? -1 : columns->count;

	appendBinaryStringInfo(bytes, (const char *) &count, sizeof(count));
	if (count > 0)
		appendBinaryStringInfo(bytes, (const char *) columns->numbers,
							   count * sizeof(AttrNumber));
}

static Signature
sign(const LfStatement *statement, const Bitmapset *selectable)
{
	Oid			relation = RelationGetRelid(statement->relation);
	StringInfoData bytes;
	Signature	signature;
	int			number = -1;

	initStringInfo(&bytes);
	appendBinaryStringInfo(&bytes, (const char *) &relation, sizeof(relation));
	appendStringInfoChar(&bytes, (char) statement->kind);
	appendBinaryStringInfo(&bytes, (const char *) &statement->counter, sizeof(AttrNumber));
	append_columns(&bytes, statement->changes);
	append_columns(&bytes, statement->key);
	append_columns(&bytes, statement->expected);
	appendStringInfoChar(&bytes, selectable == NULL ? 'a' : 's');
	while ((number = bms_next_member(selectable, number)) >= 0)
		appendBinaryStringInfo(&bytes, (const char *) &number, sizeof(number));
	signature.bytes = bytes.data;
	signature.length = bytes.len;
	signature.hash = hash_bytes((const unsigned char *) bytes.data, bytes.len);
	return signature;
}

static CachedStatement *
find_plan(const Signature *signature)
{
	for (int i = 0; i < CACHED_PLANS; i++)
	{
		CachedStatement *one = &cache[i];

		if (one->valid && one->plan != NULL && one->signature.hash == signature->hash &&
			one->signature.length == signature->length &&
			memcmp(one->signature.bytes, signature->bytes, signature->length) == 0)
			return one;
	}
	return NULL;
}

/* A place for a new plan: an invalid one, or the one not used for longest. */
static CachedStatement *
free_place(void)
{
	CachedStatement *oldest = NULL;

	for (int i = 0; i < CACHED_PLANS; i++)
	{
		CachedStatement *one = &cache[i];

		if (one->users > 0)
			continue;
		if (one->plan == NULL || !one->valid)
		{
			oldest = one;
			break;
		}
		if (oldest == NULL || one->last_used < oldest->last_used)
			oldest = one;
	}
	if (oldest == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("guarded functions call each other too deeply")));
	if (oldest->plan != NULL)
	{
		SPI_freeplan(oldest->plan);
		pfree(oldest->signature.bytes);
	}
	memset(oldest, 0, sizeof(*oldest));
	return oldest;
}

static CachedStatement *
prepare(Writer *writer, const Signature *signature, const Bitmapset *selectable)
{
	CachedStatement *place = free_place();
	SPIPlanPtr	plan;

	if (writer->statement->key != NULL)
		check_key_is_unique(writer->statement);
	write_text(writer, selectable);
	plan = SPI_prepare(writer->text.data, writer->count, writer->types);
	if (plan == NULL)
		elog(ERROR, "could not prepare \"%s\": %s", writer->text.data,
			 SPI_result_code_string(SPI_result));
	SPI_keepplan(plan);

	/* may have been taken meanwhile: preparing looks at tables */
	place = place->plan == NULL ? place : free_place();
	place->plan = plan;
	place->relation = RelationGetRelid(writer->statement->relation);
	place->signature = *signature;
	place->signature.bytes = MemoryContextAlloc(TopMemoryContext, signature->length);
	memcpy(place->signature.bytes, signature->bytes, signature->length);
	place->valid = true;
	return place;
}

/*
 * NULL: the caller may select every column; otherwise those that he may.
 */
static Bitmapset *
selectable_columns(Relation relation)
{
	TupleDesc	desc = RelationGetDescr(relation);
	Bitmapset  *columns = bms_make_singleton(0);

	if (pg_class_aclcheck(RelationGetRelid(relation), GetUserId(), ACL_SELECT) == ACLCHECK_OK)
		return NULL;
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (!attribute->attisdropped &&
			pg_attribute_aclcheck(RelationGetRelid(relation), attribute->attnum,
								  GetUserId(), ACL_SELECT) == ACLCHECK_OK)
			columns = bms_add_member(columns, attribute->attnum);
	}
	return columns;
}

static uint64
run_plan(CachedStatement *place, Writer *writer)
{
	int			result;

	place->last_used = ++use_counter;
	place->users++;
	PG_TRY();
	{
		result = SPI_execute_plan(place->plan, writer->values, writer->nulls, false, 0);
	}
	PG_FINALLY();
	{
		place->users--;
	}
	PG_END_TRY();
	if (result < 0)
		elog(ERROR, "could not execute a guarded statement: %s",
			 SPI_result_code_string(result));
	if (SPI_processed > 1)
		ereport(ERROR,
				(errcode(ERRCODE_CARDINALITY_VIOLATION),
				 errmsg("argument \"key\" names more than one row of table \"%s\"",
						RelationGetRelationName(writer->statement->relation)),
				 errdetail("Its unique index compares by another collation, or tables inherit from it.")));
	return SPI_processed;
}

uint64
lf_statement_run(const LfStatement *statement, Bitmapset **selected)
{
	Bitmapset  *selectable = selectable_columns(statement->relation);
	Signature	signature = sign(statement, selectable);
	Writer		writer = {.statement = statement, .alias = row_alias(statement->relation)};
	CachedStatement *place;

	register_callbacks();
	collect_parameters(&writer);
	place = find_plan(&signature);
	if (place == NULL)
		place = prepare(&writer, &signature, selectable);
	if (selected != NULL)
		*selected = selectable;
	return run_plan(place, &writer);
}
