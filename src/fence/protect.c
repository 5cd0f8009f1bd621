/*
 * protect.c
 *		protect(), set_mode(), unprotect(): a guard is a trigger, a token
 *		column and a row in guard_modes.
 *
 * Runs in the backend of the table's owner; the readers that protect.h offers
 * run in every backend that writes a guarded table.
 *
 * Trigger and column are made by DDL as the owner would type it, so that
 * privileges, partitions, event triggers and dependencies are PostgreSQL's
 * business.  guard_modes is not the owner's to write: it is reached below the
 * level of privileges and triggers.
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/catalog.h"
#include "fence/epoch.h"
#include "fence/grants.h"
#include "fence/stamp.h"
#include "fence/protect.h"
#include "fence/template.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/indexing.h"
#include "catalog/objectaddress.h"
#include "catalog/partition.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "optimizer/optimizer.h"
#include "rewrite/rewriteHandler.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(lf_protect);
PG_FUNCTION_INFO_V1(lf_set_mode);
PG_FUNCTION_INFO_V1(lf_unprotect);

/* Columns of guard_modes. */
#define GUARD_MODES_RELATION	1
#define GUARD_MODES_MODE		2
#define GUARD_MODES_CHANGED_AT	3
#define GUARD_MODES_COLUMNS		3

/* What protect() was asked for, and what it found. */
typedef struct Protection
{
	Oid			relation;
	const char *table;			/* qualified and quoted */
	const char *resource;
	const char *token_column;
	const char *mode;
	const char *lapsed;
	const char *inserts;

	bool		column_exists;
	bool		column_nullable;
	bool		column_default; /* it has the default 0 */
	char	   *old_trigger;	/* a guard under another name, or NULL */
} Protection;

/* ---------------------------------------------------------------------------
 * Arguments and rights
 * ---------------------------------------------------------------------------
 */

static Datum
argument(FunctionCallInfo fcinfo, int number, const char *name)
{
	if (PG_ARGISNULL(number))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must not be NULL", name)));
	return PG_GETARG_DATUM(number);
}

/* A text argument that must be one of these; c may be NULL. */
static char *
choice_argument(FunctionCallInfo fcinfo, int number, const char *name,
				const char *a, const char *b, const char *c)
{
	char	   *value = TextDatumGetCString(argument(fcinfo, number, name));

	if (strcmp(value, a) == 0 || strcmp(value, b) == 0 ||
		(c != NULL && strcmp(value, c) == 0))
		return value;

	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid value for argument \"%s\": \"%s\"", name, value),
			 c != NULL
			 ? errhint("Available values: %s, %s, %s.", a, b, c)
			 : errhint("Available values: %s, %s.", a, b)));
	return NULL;				/* not reached */
}

static char *
mode_argument(FunctionCallInfo fcinfo, int number)
{
	return choice_argument(fcinfo, number, "mode", "enforce", "observe", "off");
}

/* Asked before a lock is taken, so that only owners can make others wait. */
static void
require_owner(Oid relation)
{
	char	   *name = get_rel_name(relation);

	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relation)));
	if (!lf_owns_relation(relation, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER,
					   get_relkind_objtype(get_rel_relkind(relation)), name);
}

static char *
qualified_name(Oid relation)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relation)),
									  get_rel_name(relation));
}

static void
run(const char *command)
{
	int			result = SPI_execute(command, false, 0);

	if (result < 0)
		elog(ERROR, "could not run \"%s\": %s", command,
			 SPI_result_code_string(result));
}

/* ---------------------------------------------------------------------------
 * What can be protected
 * ---------------------------------------------------------------------------
 */

static void
refuse_table(Relation rel, int sqlstate, const char *what, const char *hint)
{
	ereport(ERROR,
			(errcode(sqlstate),
			 errmsg("\"%s\" cannot be protected: %s",
					RelationGetRelationName(rel), what),
			 errhint("%s", hint)));
}

static void
check_kind(Relation rel)
{
	Form_pg_class form = rel->rd_rel;

	if (form->relkind != RELKIND_RELATION &&
		form->relkind != RELKIND_PARTITIONED_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" cannot be protected", RelationGetRelationName(rel)),
				 errdetail_relkind_not_supported(form->relkind),
				 errhint("Protect the table that holds the rows.")));
	if (IsSystemRelation(rel))
		refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "it is a system catalog",
					 "Protect tables of your own.");
	if (form->relnamespace == lf_catalog_required()->schema)
		refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE,
					 "it belongs to the extension lease_fence",
					 "Protect tables of your own.");
	if (form->relpersistence == RELPERSISTENCE_TEMP)
		refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "it is a temporary table",
					 "Nobody else can write it.");
	if (OidIsValid(form->reloftype))
		refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "it is a typed table",
					 "A typed table cannot have a token column; make it an ordinary one with ALTER TABLE ... NOT OF.");
	if (form->relispartition)
		refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "it is a partition",
					 "Protect the partitioned table: its partitions are then guarded too.");
	if (has_superclass(RelationGetRelid(rel)) ||
		(form->relkind == RELKIND_RELATION &&
		 find_inheritance_children(RelationGetRelid(rel), NoLock) != NIL))
		refuse_table(rel, ERRCODE_FEATURE_NOT_SUPPORTED, "it takes part in table inheritance",
					 "Use declarative partitioning, or end the inheritance with ALTER TABLE ... NO INHERIT.");
}

/*
 * The guard must be the last to see a row.  PostgreSQL sorts triggers by name
 * in byte order.
 */
static void
check_triggers(Relation rel)
{
	TriggerDesc *triggers = rel->trigdesc;
	Oid			guard = lf_catalog_required()->guard_function;
	int			i;

	for (i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		Trigger    *trigger = &triggers->triggers[i];

		if (trigger->tgfoid == guard)
			continue;
		if (strcmp(trigger->tgname, LF_GUARD_TRIGGER) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("table \"%s\" has a trigger \"%s\" that is not a guard",
							RelationGetRelationName(rel), LF_GUARD_TRIGGER),
					 errhint("Rename it with ALTER TRIGGER ... RENAME TO.")));
		if (TRIGGER_FOR_ROW(trigger->tgtype) && TRIGGER_FOR_BEFORE(trigger->tgtype) &&
			trigger->tgenabled != TRIGGER_DISABLED &&
			strcmp(trigger->tgname, LF_GUARD_TRIGGER) > 0)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("trigger \"%s\" of table \"%s\" would run after the guard",
							trigger->tgname, RelationGetRelationName(rel)),
					 errdetail("It could change the row that the guard has let through."),
					 errhint("Rename it to something that sorts before \"%s\".",
							 LF_GUARD_TRIGGER)));
	}
}

/*
 * The token column changes with each write: it can be no key, and no part of
 * what decides where a row is.
 */
static void
check_token_column_use(Relation rel, AttrNumber column)
{
	Bitmapset  *wanted = bms_make_singleton(column - FirstLowInvalidHeapAttributeNumber);
	Bitmapset  *keys = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_KEY);
	bool		in_key = bms_overlap(keys, wanted);

	if (!in_key && rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		in_key = has_partition_attrs(rel, wanted, NULL);
	if (in_key)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("token column \"%s\" of table \"%s\" is part of a key",
						get_attname(RelationGetRelid(rel), column, false),
						RelationGetRelationName(rel)),
				 errdetail("Each write changes it."),
				 errhint("Give another name as token_column: a column that does not exist is added.")));
	bms_free(keys);
	bms_free(wanted);
}

/* Each partition has triggers and partition keys of its own. */
static void
check_partitions(Relation root, const char *token_column, LOCKMODE lockmode)
{
	List	   *members = find_all_inheritors(RelationGetRelid(root), lockmode, NULL);
	ListCell   *cell;

	foreach(cell, members)
	{
		Relation	rel = table_open(lfirst_oid(cell), NoLock);
		AttrNumber	column = get_attnum(RelationGetRelid(rel), token_column);

		if (rel->rd_rel->relkind == RELKIND_FOREIGN_TABLE)
			refuse_table(root, ERRCODE_FEATURE_NOT_SUPPORTED, "it has a foreign partition",
						 "Others write those rows without asking this database.");
		check_triggers(rel);
		if (column > 0)
			check_token_column_use(rel, column);
		table_close(rel, NoLock);
	}
	list_free(members);
}

/* Has the column the default 0?  As an expression it is a cast of one. */
static bool
default_is_zero(Relation rel, Form_pg_attribute attribute)
{
	Node	   *expression;

	if (!attribute->atthasdef)
		return false;
	expression = eval_const_expressions(NULL, build_column_default(rel, attribute->attnum));
	return IsA(expression, Const) && !((Const *) expression)->constisnull &&
		DatumGetInt64(((Const *) expression)->constvalue) == 0;
}

static void
check_token_column(Relation rel, Protection *protection)
{
	const char *name = protection->token_column;
	AttrNumber	column;
	Form_pg_attribute attribute;

	if (name[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"token_column\" must not be empty")));

	column = get_attnum(RelationGetRelid(rel), name);
	protection->column_exists = column != InvalidAttrNumber;
	if (!protection->column_exists)
		return;

	attribute = column > 0 ? TupleDescAttr(RelationGetDescr(rel), column - 1) : NULL;
	if (attribute == NULL || attribute->atttypid != INT8OID ||
		attribute->attgenerated != '\0' || attribute->attidentity != '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("column \"%s\" of table \"%s\" cannot hold tokens",
						name, RelationGetRelationName(rel)),
				 errdetail("A token column is an ordinary column of type bigint, neither generated nor an identity."),
				 errhint("Give another name as token_column: a column that does not exist is added.")));

	protection->column_nullable = !attribute->attnotnull;
	protection->column_default = default_is_zero(rel, attribute);
}

static void
check_template(Relation rel, const Protection *protection)
{
	LfTemplate *tmpl = lf_template_parse(protection->resource, RelationGetDescr(rel));
	AttrNumber *columns = palloc(RelationGetNumberOfAttributes(rel) * sizeof(AttrNumber));
	int			count = lf_template_columns(tmpl, columns, RelationGetNumberOfAttributes(rel));
	AttrNumber	token_column = get_attnum(RelationGetRelid(rel), protection->token_column);
	int			i;

	for (i = 0; i < count; i++)
	{
		if (columns[i] == token_column)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("resource template \"%s\" names the token column \"%s\"",
							protection->resource, protection->token_column),
					 errdetail("Each write changes it.")));
	}
}

static void
check_present_guard(Relation rel, Protection *protection)
{
	Trigger    *trigger = lf_guard_find_trigger(rel);

	if (trigger == NULL)
		return;
	if (trigger->tgnargs > LF_GUARD_ARG_TOKEN_COLUMN &&
		strcmp(trigger->tgargs[LF_GUARD_ARG_TOKEN_COLUMN],
			   protection->token_column) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("table \"%s\" is guarded with the token column \"%s\", not \"%s\"",
						RelationGetRelationName(rel),
						trigger->tgargs[LF_GUARD_ARG_TOKEN_COLUMN],
						protection->token_column),
				 errhint("To change it, call lease_fence.unprotect() first.")));
	if (strcmp(trigger->tgname, LF_GUARD_TRIGGER) != 0)
		protection->old_trigger = pstrdup(trigger->tgname);
}

/* Everything that can be wrong, before anything is changed. */
static void
check_protection(Protection *protection, LOCKMODE lockmode)
{
	Relation	rel = relation_open(protection->relation, NoLock);

	check_kind(rel);
	check_present_guard(rel, protection);
	check_token_column(rel, protection);
	check_template(rel, protection);
	check_partitions(rel, protection->token_column, lockmode);
	relation_close(rel, NoLock);
}

/* ---------------------------------------------------------------------------
 * Making the guard
 * ---------------------------------------------------------------------------
 */

/*
 * The largest stamp that the table holds already, or 0.
 *
 * It looks at the rows of now, also in a transaction with an old snapshot,
 * and past the policies of a table that enforces them on its owner too.
 */
static int64
largest_stamp(const Protection *protection)
{
	const char *column = quote_identifier(protection->token_column);
	SPIPlanPtr	plan;
	Snapshot	snapshot;
	Oid			user;
	int			context;
	bool		has_null;
	bool		isnull;
	int64		stamp;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(user, context | SECURITY_NOFORCE_RLS);

	plan = SPI_prepare(psprintf("SELECT pg_catalog.max(%s), pg_catalog.bool_or(%s IS NULL) FROM %s",
								column, column, protection->table), 0, NULL);
	if (plan == NULL)
		elog(ERROR, "could not prepare a query on %s: %s", protection->table,
			 SPI_result_code_string(SPI_result));
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	if (SPI_execute_snapshot(plan, NULL, NULL, snapshot, InvalidSnapshot,
							 false, false, 1) != SPI_OK_SELECT || SPI_processed != 1)
		elog(ERROR, "could not read the stamps of %s", protection->table);
	UnregisterSnapshot(snapshot);

	SetUserIdAndSecContext(user, context);

	stamp = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0],
										SPI_tuptable->tupdesc, 1, &isnull));
	if (isnull)
		stamp = 0;
	has_null = DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0],
										  SPI_tuptable->tupdesc, 2, &isnull));
	if (!isnull && has_null)
		ereport(ERROR,
				(errcode(ERRCODE_NOT_NULL_VIOLATION),
				 errmsg("token column \"%s\" of table %s contains null values",
						protection->token_column, protection->table),
				 errhint("Set them to 0, which any token supersedes.")));
	return stamp;
}

/*
 * Stamps above every token minted here end all leases, since tokens must go on
 * above them: that is for who may begin an epoch.
 */
static void
check_stamp(const Protection *protection, int64 stamp)
{
	if (stamp > lf_stamp_plausible_max())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("token column \"%s\" of table %s contains %lld, which is no token",
						protection->token_column, protection->table, (long long) stamp),
				 errhint("Set such values to 0, which any token supersedes.")));
	if (stamp > lf_grants_last_token() &&
		!lf_may_execute(lf_catalog_required()->begin_epoch_function, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("token column \"%s\" of table %s contains %lld, which is above every token minted here",
						protection->token_column, protection->table, (long long) stamp),
				 errdetail("Guarding it begins a new epoch, which refuses every token of before."),
				 errhint("A role that may call lease_fence.begin_epoch() can guard it; or set such values to 0.")));
}

static void
make_token_column(const Protection *protection)
{
	const char *table = protection->table;
	const char *column = quote_identifier(protection->token_column);
	int64		stamp;

	if (!protection->column_exists)
	{
		run(psprintf("ALTER TABLE %s ADD COLUMN %s bigint NOT NULL DEFAULT 0",
					 table, column));
		return;
	}

	stamp = largest_stamp(protection);
	if (!protection->column_default)
		run(psprintf("ALTER TABLE %s ALTER COLUMN %s SET DEFAULT 0", table, column));
	if (protection->column_nullable)
		run(psprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL", table, column));
	check_stamp(protection, stamp);
	if (stamp > 0)
		lf_epoch_raise_floor_at_commit(stamp);
}

static void
make_trigger(const Protection *protection)
{
	Oid			function = lf_catalog_required()->guard_function;

	if (protection->old_trigger != NULL)
		run(psprintf("DROP TRIGGER %s ON %s",
					 quote_identifier(protection->old_trigger), protection->table));
	run(psprintf("CREATE OR REPLACE TRIGGER " LF_GUARD_TRIGGER
				 " BEFORE INSERT OR UPDATE OR DELETE ON %s"
				 " FOR EACH ROW EXECUTE FUNCTION %s(%s, %s, %s, %s)",
				 protection->table,
				 quote_qualified_identifier(get_namespace_name(get_func_namespace(function)),
											get_func_name(function)),
				 quote_literal_cstr(protection->resource),
				 quote_literal_cstr(protection->token_column),
				 quote_literal_cstr(protection->lapsed),
				 quote_literal_cstr(protection->inserts)));

	/* Also for what replication and session_replication_role bring. */
	run(psprintf("ALTER TABLE %s ENABLE ALWAYS TRIGGER " LF_GUARD_TRIGGER,
				 protection->table));
}

/* ---------------------------------------------------------------------------
 * guard_modes
 * ---------------------------------------------------------------------------
 */

/* The table's row as of now, and the scan to end when done with it. */
static SysScanDesc
begin_mode_scan(Relation modes, Oid relation, Snapshot snapshot, HeapTuple *row)
{
	ScanKeyData key;
	SysScanDesc scan;

	ScanKeyInit(&key, GUARD_MODES_RELATION, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relation));
	scan = systable_beginscan(modes, lf_catalog_required()->guard_modes_index,
							  true, snapshot, 1, &key);
	*row = systable_getnext(scan);
	return scan;
}

/*
 * Sets a guard's mode; NULL removes the row.  The object lock keeps two of us
 * from one row; no writer ever takes it.
 */
static void
write_mode(Oid relation, const char *mode)
{
	Relation	modes;
	Snapshot	snapshot;
	SysScanDesc scan;
	HeapTuple	old;
	HeapTuple	row;
	Datum		values[GUARD_MODES_COLUMNS];
	bool		nulls[GUARD_MODES_COLUMNS] = {false};

	LockDatabaseObject(RelationRelationId, relation, 0, ExclusiveLock);
	modes = table_open(lf_catalog_required()->guard_modes, RowExclusiveLock);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan = begin_mode_scan(modes, relation, snapshot, &old);

	if (mode == NULL)
	{
		if (HeapTupleIsValid(old))
			CatalogTupleDelete(modes, &old->t_self);
	}
	else
	{
		values[GUARD_MODES_RELATION - 1] = ObjectIdGetDatum(relation);
		values[GUARD_MODES_MODE - 1] = CStringGetTextDatum(mode);
		values[GUARD_MODES_CHANGED_AT - 1] = TimestampTzGetDatum(GetCurrentTimestamp());
		row = heap_form_tuple(RelationGetDescr(modes), values, nulls);
		if (HeapTupleIsValid(old))
			CatalogTupleUpdate(modes, &old->t_self, row);
		else
			CatalogTupleInsert(modes, row);
	}

	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(modes, NoLock);
	CommandCounterIncrement();
}

/*
 * Makes every backend look at the mode again, after our commit.
 *
 * For a partitioned table a list of its partitions would not do: one that is
 * attached between here and our commit would keep the old mode.
 */
static void
announce_mode(Oid relation)
{
	if (get_rel_relkind(relation) == RELKIND_PARTITIONED_TABLE)
		CacheInvalidateRelcacheAll();
	else
		CacheInvalidateRelcacheByRelid(relation);
}

/* The mode that is written for this very table; false if there is none. */
static bool
read_mode_row(Relation modes, Oid relation, Snapshot snapshot, LfGuardMode *mode)
{
	HeapTuple	row;
	SysScanDesc scan = begin_mode_scan(modes, relation, snapshot, &row);
	bool		found = HeapTupleIsValid(row);

	*mode = LF_MODE_ENFORCE;
	if (found)
	{
		bool		isnull;
		Datum		value = heap_getattr(row, GUARD_MODES_MODE,
										 RelationGetDescr(modes), &isnull);
		char	   *name = isnull ? pstrdup("") : TextDatumGetCString(value);

		if (strcmp(name, "observe") == 0)
			*mode = LF_MODE_OBSERVE;
		else if (strcmp(name, "off") == 0)
			*mode = LF_MODE_OFF;
		pfree(name);
	}
	systable_endscan(scan);
	return found;
}

/* ---------------------------------------------------------------------------
 * For the guard
 * ---------------------------------------------------------------------------
 */

Trigger *
lf_guard_find_trigger(Relation rel)
{
	const LfCatalog *catalog;
	int			i;

	if (rel->trigdesc == NULL || (catalog = lf_catalog()) == NULL)
		return NULL;
	for (i = 0; i < rel->trigdesc->numtriggers; i++)
	{
		if (rel->trigdesc->triggers[i].tgfoid == catalog->guard_function)
			return &rel->trigdesc->triggers[i];
	}
	return NULL;
}

LfGuardMode
lf_guard_mode_read(Oid relation)
{
	List	   *ancestors = get_rel_relispartition(relation) ? get_partition_ancestors(relation) : NIL;
	Relation	modes = table_open(lf_catalog_required()->guard_modes, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	LfGuardMode mode;
	bool		found = false;
	int			i;

	/* What protect() was called for has the row: mostly the topmost. */
	for (i = list_length(ancestors) - 1; i >= 0 && !found; i--)
		found = read_mode_row(modes, list_nth_oid(ancestors, i), snapshot, &mode);
	if (!found)
		(void) read_mode_row(modes, relation, snapshot, &mode);
	UnregisterSnapshot(snapshot);
	table_close(modes, AccessShareLock);
	list_free(ancestors);
	return mode;
}

/* ---------------------------------------------------------------------------
 * SQL functions
 * ---------------------------------------------------------------------------
 */

/* The guard of a table that is locked already; raises if there is none. */
static Trigger *
require_guard(Relation rel)
{
	Trigger    *trigger = lf_guard_find_trigger(rel);

	if (trigger == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table \"%s\" is not guarded", RelationGetRelationName(rel)),
				 errhint("See the view lease_fence.guards.")));
	if (trigger->tgisclone)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is guarded as a partition", RelationGetRelationName(rel)),
				 errhint("Name the partitioned table that was protected.")));
	return trigger;
}

/*
 * Takes the strongest lock that protect() will need at once: to ask for more
 * later is an invitation to a deadlock.
 */
static LOCKMODE
lock_to_protect(const Protection *protection)
{
	HeapTuple	tuple = SearchSysCacheAttName(protection->relation, protection->token_column);
	LOCKMODE	lockmode = AccessExclusiveLock;

	if (HeapTupleIsValid(tuple))
	{
		Form_pg_attribute attribute = (Form_pg_attribute) GETSTRUCT(tuple);

		if (attribute->attnotnull && attribute->atthasdef)
			lockmode = ShareRowExclusiveLock;
		ReleaseSysCache(tuple);
	}
	LockRelationOid(protection->relation, lockmode);
	return lockmode;
}

Datum
lf_protect(PG_FUNCTION_ARGS)
{
	Protection	protection = {0};
	LOCKMODE	lockmode;

	protection.relation = DatumGetObjectId(argument(fcinfo, 0, "relation"));
	protection.resource = TextDatumGetCString(argument(fcinfo, 1, "resource"));
	protection.token_column = pstrdup(NameStr(*DatumGetName(argument(fcinfo, 2, "token_column"))));
	protection.mode = mode_argument(fcinfo, 3);
	protection.lapsed = choice_argument(fcinfo, 4, "lapsed", "reject", "accept", NULL);
	protection.inserts = choice_argument(fcinfo, 5, "inserts", "guard", "free", NULL);
	PreventCommandIfReadOnly("lease_fence.protect()");

	require_owner(protection.relation);
	lockmode = lock_to_protect(&protection);
	require_owner(protection.relation);
	protection.table = qualified_name(protection.relation);
	check_protection(&protection, lockmode);

	SPI_connect();
	make_token_column(&protection);
	make_trigger(&protection);
	SPI_finish();

	write_mode(protection.relation, protection.mode);
	announce_mode(protection.relation);
	PG_RETURN_VOID();
}

Datum
lf_set_mode(PG_FUNCTION_ARGS)
{
	Oid			relation = DatumGetObjectId(argument(fcinfo, 0, "relation"));
	char	   *mode = mode_argument(fcinfo, 1);
	Relation	rel;

	PreventCommandIfReadOnly("lease_fence.set_mode()");
	require_owner(relation);
	rel = relation_open(relation, AccessShareLock);
	require_owner(relation);
	require_guard(rel);
	relation_close(rel, NoLock);

	write_mode(relation, mode);
	announce_mode(relation);
	PG_RETURN_VOID();
}

Datum
lf_unprotect(PG_FUNCTION_ARGS)
{
	Oid			relation = DatumGetObjectId(argument(fcinfo, 0, "relation"));
	bool		drop_column = DatumGetBool(argument(fcinfo, 1, "drop_column"));
	Relation	rel;
	Trigger    *trigger;
	char	   *table;
	char	   *name;
	char	   *column = NULL;

	PreventCommandIfReadOnly("lease_fence.unprotect()");
	require_owner(relation);
	rel = relation_open(relation, AccessExclusiveLock);
	require_owner(relation);
	trigger = require_guard(rel);
	table = qualified_name(relation);
	name = pstrdup(trigger->tgname);
	if (drop_column && trigger->tgnargs > LF_GUARD_ARG_TOKEN_COLUMN)
		column = pstrdup(trigger->tgargs[LF_GUARD_ARG_TOKEN_COLUMN]);
	relation_close(rel, NoLock);

	SPI_connect();
	run(psprintf("DROP TRIGGER %s ON %s", quote_identifier(name), table));
	if (column != NULL)
		run(psprintf("ALTER TABLE %s DROP COLUMN IF EXISTS %s", table,
					 quote_identifier(column)));
	SPI_finish();

	write_mode(relation, NULL);
	PG_RETURN_VOID();
}
