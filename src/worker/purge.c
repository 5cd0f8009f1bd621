/*
 * purge.c
 *		What is older than its retention: ended grants, audit rows, operations.
 *
 * Runs in the worker, in bounded batches, each a transaction of its own that
 * takes its table's lock at once or not at all.
 *
 * What must end well: the highest token stays (the next one is counted from it),
 * so does the latest grant of a resource that is ordered by others (its number
 * is the bar), and a resource's latest grant goes only when no writer under it
 * is left and nobody can become one: its lock is ours while it goes.
 */
#include "postgres.h"

#include "access/xact.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/settings.h"
#include "base/stat.h"
#include "base/transaction.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fence/entry.h"
#include "fence/token_lock.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "worker/purge.h"

#define PURGE_EVERY			INT64CONST(600000000)	/* 10 min, in microseconds */
#define BATCH				1000
#define BATCH_TEXT			CppAsString2(BATCH)
#define LATEST_A_BATCH		100

typedef struct PurgeWork
{
	Oid			table;
	const char *statement;		/* $1: the oldest moment to keep */
	int			retention;		/* seconds */
	uint64		purged;
} PurgeWork;

/* Latest grants of their resource, one by one behind their locks. */
typedef struct LatestWork
{
	int64		after;			/* look at tokens above this one */
	int64		seen;			/* the last one looked at */
	int			found;
	int64		locked[LATEST_A_BATCH];
	int			locked_count;
	uint64		purged;
} LatestWork;

/*
 * Where the last batch of latest grants ended; 0: begin anew.  Those under which
 * somebody still writes stay, and must not hide the ones behind them.
 */
static int64 latest_after = 0;

static Datum
oldest_to_keep(int retention)
{
	return TimestampTzGetDatum(GetCurrentTimestamp() - retention * USECS_PER_SEC);
}

static void
purge_table(void *arg)
{
	PurgeWork  *work = arg;
	Oid			types[] = {TIMESTAMPTZOID};
	Datum		values[1];

	if (!ConditionalLockRelationOid(work->table, RowExclusiveLock))
		return;
	values[0] = oldest_to_keep(work->retention);
	SPI_connect();
	SPI_execute_with_args(work->statement, 1, types, values, NULL, false, 0);
	work->purged = SPI_processed;
	SPI_finish();
}

static uint64
purge(Oid table, const char *statement, int retention)
{
	PurgeWork	work = {table, statement, retention, 0};
	XLogRecPtr	end;
	char	   *problem;

	if (!lf_transaction_try("purging", purge_table, &work, &end, &problem))
		return 0;
	return work.purged;
}

static void
delete_grant(int64 token)
{
	Oid			types[] = {INT8OID};
	Datum		values[1];

	values[0] = Int64GetDatum(token);
	SPI_execute_with_args("DELETE FROM lease_fence.grants WHERE token OPERATOR(pg_catalog.=) $1",
						  1, types, values, NULL, false, 0);
}

/*
 * Over first: a guard that accepts lapsed grants must not let anybody in while
 * the row goes.
 */
static void
purge_latest_grant(LatestWork *work, int64 token, text *name)
{
	LfResource	resource;

	lf_resource_of_text(&resource, name);
	lf_entry_end(&resource, token, LF_OVER_LAPSED);
	if (!lf_token_lock_exclusive(token))
		return;
	work->locked[work->locked_count++] = token;
	delete_grant(token);
	work->purged++;
}

static void
purge_latest(void *arg)
{
	LatestWork *work = arg;
	Oid			types[] = {TIMESTAMPTZOID, INT4OID, INT8OID};
	Datum		values[3];
	SPITupleTable *found;
	uint64		count;

	if (!ConditionalLockRelationOid(lf_catalog_required()->grants, RowExclusiveLock))
		return;
	values[0] = oldest_to_keep(lf_grants_retention);
	values[1] = Int32GetDatum(LATEST_A_BATCH);
	values[2] = Int64GetDatum(work->after);
	SPI_connect();
	SPI_execute_with_args("SELECT g.token, g.resource FROM lease_fence.grants g"
						  " WHERE g.ended_at OPERATOR(pg_catalog.<) $1 AND g.external_number IS NULL"
						  " AND g.token OPERATOR(pg_catalog.<) (SELECT pg_catalog.max(token) FROM lease_fence.grants)"
						  " AND g.token OPERATOR(pg_catalog.>) $3"
						  " ORDER BY g.token LIMIT $2",
						  3, types, values, NULL, true, 0);
	found = SPI_tuptable;
	count = SPI_processed;
	work->found = (int) count;
	for (uint64 i = 0; i < count; i++)
	{
		bool		isnull;

		work->seen = DatumGetInt64(SPI_getbinval(found->vals[i], found->tupdesc, 1, &isnull));
		purge_latest_grant(work, work->seen,
						   DatumGetTextPP(SPI_getbinval(found->vals[i], found->tupdesc, 2, &isnull)));
	}
	SPI_finish();
}

/* The locks outlive the transaction, so that nobody comes in before its end. */
static uint64
purge_latest_grants(bool *more)
{
	LatestWork	work = {.after = latest_after};
	XLogRecPtr	end;
	char	   *problem;
	bool		done = lf_transaction_try("purging grants", purge_latest, &work, &end, &problem);

	for (int i = 0; i < work.locked_count; i++)
		lf_token_unlock_exclusive(work.locked[i]);
	*more = done && work.found == LATEST_A_BATCH;
	latest_after = *more ? work.seen : 0;
	return done ? work.purged : 0;
}

/* False: the extension was dropped just now. */
static bool
find_tables(LfCatalog *tables)
{
	const LfCatalog *catalog;

	lf_transaction_begin("purging");
	catalog = lf_catalog();
	if (catalog != NULL)
		*tables = *catalog;
	lf_transaction_commit();
	return catalog != NULL;
}

/* *more: a whole batch was found, there may be more. */
static uint64
purge_all(bool *more)
{
	LfCatalog	tables;
	uint64		purged = 0;

	*more = false;
	if (!find_tables(&tables))
		return 0;
	purged += purge(tables.rejected_writes,
					"DELETE FROM lease_fence.rejected_writes WHERE id OPERATOR(pg_catalog.=) ANY ("
					"SELECT id FROM lease_fence.rejected_writes WHERE at OPERATOR(pg_catalog.<) $1"
					" ORDER BY id LIMIT " BATCH_TEXT ")", lf_audit_retention);
	purged += purge(tables.operations,
					"DELETE FROM lease_fence.operations WHERE key OPERATOR(pg_catalog.=) ANY ("
					"SELECT key FROM lease_fence.operations WHERE at OPERATOR(pg_catalog.<) $1 LIMIT " BATCH_TEXT ")",
					lf_operations_retention);
	purged += purge(tables.grants,
					"DELETE FROM lease_fence.grants WHERE token OPERATOR(pg_catalog.=) ANY ("
					"SELECT g.token FROM lease_fence.grants g WHERE g.ended_at OPERATOR(pg_catalog.<) $1"
					" AND EXISTS (SELECT FROM lease_fence.grants n"
					" WHERE n.resource OPERATOR(pg_catalog.=) g.resource AND n.token OPERATOR(pg_catalog.>) g.token)"
					" ORDER BY g.token LIMIT " BATCH_TEXT ")", lf_grants_retention);
	purged += purge_latest_grants(more);
	*more |= purged >= BATCH;
	return purged;
}

LfClock
lf_purge_pass(int database, bool soon)
{
	static LfClock due = 0;
	LfClock		now = lf_clock_now();
	uint64		purged;
	bool		more;

	if (now < due && !soon)
		return due;
	purged = purge_all(&more);
	lf_stat_add(database, LF_STAT_PURGED, purged);
	due = lf_clock_after(now, more ? 0 : PURGE_EVERY);
	return due;
}
