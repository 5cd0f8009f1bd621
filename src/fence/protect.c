/*
 * protect.c
 *		protect(), set_mode(), unprotect(): a guard is a trigger, a token
 *		column and a row in guard_modes.
 *
 * Runs in the backend of the table's owner; lf_guard_find_trigger in every
 * backend that writes a guarded table.
 *
 * This file is about what is done; protectable.c says beforehand to what it can
 * be done, guard_mode.c keeps the mode.
 *
 * Trigger and column are made by DDL as the owner would type it, so that
 * privileges, partitions, event triggers and dependencies are PostgreSQL's
 * business.
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/catalog.h"
#include "fence/epoch.h"
#include "fence/grants.h"
#include "fence/guard_mode.h"
#include "fence/protect.h"
#include "fence/protectable.h"
#include "fence/stamp.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/objectaddress.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(lf_protect);
PG_FUNCTION_INFO_V1(lf_set_mode);
PG_FUNCTION_INFO_V1(lf_unprotect);

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
largest_stamp(const LfProtection *protection)
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
check_stamp(const LfProtection *protection, int64 stamp)
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
make_token_column(const LfProtection *protection)
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
make_trigger(const LfProtection *protection)
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
 * For the guard
 * ---------------------------------------------------------------------------
 */

Trigger *
lf_guard_find_trigger(Relation rel)
{
	const LfCatalog *catalog = lf_catalog();
	int			i;

	if (rel->trigdesc == NULL || catalog == NULL)
		return NULL;
	for (i = 0; i < rel->trigdesc->numtriggers; i++)
	{
		if (rel->trigdesc->triggers[i].tgfoid == catalog->guard_function)
			return &CopyTriggerDesc(rel->trigdesc)->triggers[i];
	}
	return NULL;
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
lock_to_protect(const LfProtection *protection)
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
	LfProtection protection = {0};
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
	lf_protectable_check(&protection, lockmode);

	SPI_connect();
	make_token_column(&protection);
	make_trigger(&protection);
	SPI_finish();

	lf_guard_mode_write(protection.relation, protection.mode);
	lf_guard_mode_announce(protection.relation);
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

	lf_guard_mode_write(relation, mode);
	lf_guard_mode_announce(relation);
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

	lf_guard_mode_write(relation, NULL);
	PG_RETURN_VOID();
}
