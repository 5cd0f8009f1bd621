/*
 * stamp.c
 *		The stamps that guarded tables hold.
 *
 * Runs in workers (a new epoch's floor is above them all) and in backends.
 *
 * Anybody can make a trigger on lease_fence.guard(): what is read here is a
 * stranger's table, and only ever a plain or a partitioned one.
 */
#include "postgres.h"

#include "access/xact.h"
#include "base/compat.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fence/stamp.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/resowner.h"
#include "utils/syscache.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

/* How long a worker reads one table, in milliseconds. */
#define TABLE_TIMEOUT 10000

/* Microseconds from 2000-01-01, PostgreSQL's own zero, to 2026-01-01 UTC. */
#define START_OF_2026 (INT64CONST(9497) * USECS_PER_DAY)

/* Tokens count microseconds from 2025: one year ahead of the clock. */
int64
lf_stamp_plausible_max(void)
{
	return GetCurrentTimestamp() - START_OF_2026 + 2 * 366 * USECS_PER_DAY;
}

/* A table as guards have it, and its owner; false for anything else. */
static bool
is_plain_table(Oid relation, Oid *owner)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relation));
	Form_pg_class form;
	bool		plain;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_class) GETSTRUCT(tuple);
	plain = (form->relkind == RELKIND_RELATION || form->relkind == RELKIND_PARTITIONED_TABLE) &&
		form->relpersistence != RELPERSISTENCE_TEMP;
	*owner = form->relowner;
	ReleaseSysCache(tuple);
	return plain;
}

/* Locks it and all its partitions, or none of it counts. */
static bool
lock_all(Oid relation)
{
	ListCell   *cell;
	Oid			owner;

	foreach(cell, find_all_inheritors(relation, NoLock, NULL))
	{
		if (!ConditionalLockRelationOid(lfirst_oid(cell), AccessShareLock) ||
			!is_plain_table(lfirst_oid(cell), &owner))
			return false;
	}
	return true;
}

static int64
run_query(const char *query)
{
	bool		isnull = true;
	int64		stamp = 0;

	if (SPI_execute(query, true, 1) == SPI_OK_SELECT && SPI_processed == 1)
		stamp = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
											1, &isnull));
	return isnull ? 0 : stamp;
}

int64
lf_stamp_of_table(Oid relation, const char *column, int64 up_to)
{
	AttrNumber	number = get_attnum(relation, column);
	char	   *schema = get_namespace_name(get_rel_namespace(relation));
	char	   *name = get_rel_name(relation);
	Oid			owner;
	Oid			saved_user;
	int			saved_context;
	int			saved_settings;
	int64		stamp;

	/* Renamed, dropped or locked meanwhile: check() tells of what is left out. */
	if (!lock_all(relation) || !is_plain_table(relation, &owner) ||
		schema == NULL || name == NULL || number == InvalidAttrNumber ||
		get_atttype(relation, number) != INT8OID)
		return 0;
	GetUserIdAndSecContext(&saved_user, &saved_context);
	SetUserIdAndSecContext(owner, saved_context | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_RESTRICTED_OPERATION | SECURITY_NOFORCE_RLS);
	saved_settings = NewGUCNestLevel();
	stamp = run_query(psprintf("SELECT pg_catalog.max(%s) FROM %s WHERE %s OPERATOR(pg_catalog.<=) %lld",
							   quote_identifier(column),
							   quote_qualified_identifier(schema, name),
							   quote_identifier(column),
							   (long long) up_to));
	AtEOXact_GUC(false, saved_settings);
	SetUserIdAndSecContext(saved_user, saved_context);
	return stamp;
}

/*
 * One table of many: what goes wrong in it, and how long it takes, is its
 * owner's business and must not keep a new epoch from beginning.  A table that
 * is left out can have stamps above the floor: check() tells.
 */
static int64
try_table(Oid relation, const char *column)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner resources = CurrentResourceOwner;
	volatile int64 stamp = 0;

	BeginInternalSubTransaction(NULL);
	enable_timeout_after(STATEMENT_TIMEOUT, TABLE_TIMEOUT);
	PG_TRY();
	{
		stamp = lf_stamp_of_table(relation, column, lf_stamp_plausible_max());
		disable_timeout(STATEMENT_TIMEOUT, false);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		disable_timeout(STATEMENT_TIMEOUT, false);
		MemoryContextSwitchTo(context);
		EmitErrorReport();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = resources;
	return stamp;
}

int64
lf_stamp_largest(void)
{
	SPITupleTable *guards;
	uint64		count;
	int64		largest = 0;

	SPI_execute("SELECT relation::pg_catalog.oid, token_column FROM lease_fence.guards",
				true, 0);
	guards = SPI_tuptable;
	count = SPI_processed;
	for (uint64 i = 0; i < count; i++)
	{
		bool		isnull;
		Oid			relation = DatumGetObjectId(SPI_getbinval(guards->vals[i],
															  guards->tupdesc, 1, &isnull));
		char	   *column = SPI_getvalue(guards->vals[i], guards->tupdesc, 2);

		if (column != NULL)
			largest = Max(largest, try_table(relation, column));
	}
	return largest;
}
