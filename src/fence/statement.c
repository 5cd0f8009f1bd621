/*
 * statement.c
 *		Runs the statements of the guarded functions, from a cache of plans.
 *
 * Runs in backends, as the caller: row level security, privileges, partitions,
 * other triggers and generated columns hold by themselves.
 *
 * What must end well: the cache is bounded, and what was prepared for a table is
 * forgotten when the table changes; the plans in it are PostgreSQL's own and
 * follow roles and policies by themselves.  A plan that is running is not given
 * up: a trigger may bring us back here.
 */
#include "postgres.h"

#include "access/genam.h"
#include "base/compat.h"
#include "catalog/pg_index.h"
#include "common/hashfn.h"
#include "fence/statement.h"
#include "fence/statement_text.h"
#include "utils/acl.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

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
prepare(LfStatementWriter *writer, const Signature *signature, const Bitmapset *selectable)
{
	CachedStatement *place = free_place();
	SPIPlanPtr	plan;

	if (writer->statement->key != NULL)
		check_key_is_unique(writer->statement);
	lf_statement_write(writer, selectable);
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
run_plan(CachedStatement *place, LfStatementWriter *writer)
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
	LfStatementWriter writer;
	CachedStatement *place;

	register_callbacks();
	lf_statement_writer_init(&writer, statement);
	place = find_plan(&signature);
	if (place == NULL)
		place = prepare(&writer, &signature, selectable);
	if (selected != NULL)
		*selected = selectable;
	return run_plan(place, &writer);
}
