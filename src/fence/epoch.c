/*
 * epoch.c
 *		Epochs: uninterrupted histories of a database.
 *
 * Runs in backends (confirming) and in workers (beginning).
 *
 * What must end well: promotion, point-in-time restore, dump and restore,
 * template copy, pg_upgrade, DROP and CREATE EXTENSION: each changes one of the
 * four facts that a row of lease_fence.epochs remembers, and the first worker
 * that sees it begins a new epoch.  A crash restart changes none of them.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/database.h"
#include "base/shmem.h"
#include "base/transaction.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fence/entry.h"
#include "fence/epoch.h"
#include "fence/grants.h"
#include "fence/mint.h"
#include "port/atomics.h"
#include "storage/lmgr.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* Microseconds from 2000-01-01, PostgreSQL's own zero, to 2025-01-01 UTC. */
#define START_OF_2025 (INT64CONST(9132) * USECS_PER_DAY)

/* The columns of lease_fence.epochs. */
enum
{
	COLUMN_ID = 1,
	COLUMN_FLOOR,
	COLUMN_SYSTEM_IDENTIFIER,
	COLUMN_TIMELINE,
	COLUMN_DATABASE_OID,
	COLUMN_EXTENSION_OID
};

typedef struct Epoch
{
	int64		id;
	int64		floor;
	int64		system_identifier;
	int32		timeline;
	Oid			database;
	Oid			extension;
} Epoch;

/*
 * floor is 0 until the epoch is confirmed; what it means is only good together
 * with database and extension, which change under LF_LOCK_EPOCHS, floor first
 * set to 0.
 */
typedef struct LfEpochState
{
	Oid			database;
	Oid			extension;
	int64		id;
	pg_atomic_uint64 floor;
	pg_atomic_uint64 stamp;		/* highest that protect() found */
} LfEpochState;

static LfEpochState *states = NULL;

/* Worker: begun in a transaction that has not committed yet. */
static Epoch begun;

Size
lf_epoch_shmem_size(void)
{
	return mul_size(LF_MAX_DATABASES, sizeof(LfEpochState));
}

void
lf_epoch_shmem_init(void)
{
	bool		there;

	states = ShmemInitStruct("lease_fence epochs", lf_epoch_shmem_size(), &there);
	if (there)
		return;
	for (int i = 0; i < LF_MAX_DATABASES; i++)
	{
		memset(&states[i], 0, sizeof(LfEpochState));
		pg_atomic_init_u64(&states[i].floor, 0);
		pg_atomic_init_u64(&states[i].stamp, 0);
	}
}

/* What an epoch of here and now remembers. */
static void
describe_present(Epoch *epoch)
{
	epoch->system_identifier = (int64) GetSystemIdentifier();
	epoch->timeline = (int32) GetWALInsertionTimeLine();
	epoch->database = MyDatabaseId;
	epoch->extension = lf_catalog_required()->extension;
}

static bool
is_present(const Epoch *epoch)
{
	Epoch		present;

	describe_present(&present);
	return epoch->system_identifier == present.system_identifier &&
		epoch->timeline == present.timeline &&
		epoch->database == present.database &&
		epoch->extension == present.extension;
}

static int64
int64_column(HeapTuple tuple, TupleDesc desc, int number)
{
	bool		isnull;

	return DatumGetInt64(heap_getattr(tuple, number, desc, &isnull));
}

static Oid
oid_column(HeapTuple tuple, TupleDesc desc, int number)
{
	bool		isnull;

	return DatumGetObjectId(heap_getattr(tuple, number, desc, &isnull));
}

static bool
read_last(Epoch *epoch)
{
	const LfCatalog *catalog = lf_catalog_required();
	Relation	table = table_open(catalog->epochs, AccessShareLock);
	Relation	index = index_open(catalog->epochs_index, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan_ordered(table, index, snapshot, 0, NULL);
	HeapTuple	tuple = systable_getnext_ordered(scan, BackwardScanDirection);
	bool		found = HeapTupleIsValid(tuple);

	memset(epoch, 0, sizeof(*epoch));
	if (found)
	{
		TupleDesc	desc = RelationGetDescr(table);

		epoch->id = int64_column(tuple, desc, COLUMN_ID);
		epoch->floor = int64_column(tuple, desc, COLUMN_FLOOR);
		epoch->system_identifier = int64_column(tuple, desc, COLUMN_SYSTEM_IDENTIFIER);
		epoch->timeline = (int32) oid_column(tuple, desc, COLUMN_TIMELINE);
		epoch->database = oid_column(tuple, desc, COLUMN_DATABASE_OID);
		epoch->extension = oid_column(tuple, desc, COLUMN_EXTENSION_OID);
	}
	systable_endscan_ordered(scan);
	UnregisterSnapshot(snapshot);
	index_close(index, AccessShareLock);
	table_close(table, AccessShareLock);
	return found;
}

/*
 * Only ever called with the epoch that the table names last: by the worker, or
 * by a backend that found it unchanged.  A backend that is late must not put an
 * older one back, hence the comparison of ids.
 */
static void
publish(int database, const Epoch *epoch)
{
	LfEpochState *state = &states[database];

	LWLockAcquire(lf_lwlock(LF_LOCK_EPOCHS), LW_EXCLUSIVE);
	if (state->database != epoch->database || state->extension != epoch->extension ||
		state->id <= epoch->id)
	{
		pg_atomic_write_u64(&state->floor, 0);
		state->database = epoch->database;
		state->extension = epoch->extension;
		state->id = epoch->id;
		pg_write_barrier();
		pg_atomic_write_u64(&state->floor, (uint64) epoch->floor);
	}
	LWLockRelease(lf_lwlock(LF_LOCK_EPOCHS));
}

bool
lf_epoch_confirmed(int64 *floor)
{
	int			database = lf_database_mine();
	const LfCatalog *catalog = lf_catalog();
	LfEpochState *state;
	Epoch		last;

	if (database < 0 || catalog == NULL)
		return false;
	state = &states[database];
	*floor = (int64) pg_atomic_read_u64(&state->floor);
	pg_read_barrier();
	if (*floor != 0 && state->database == MyDatabaseId &&
		state->extension == catalog->extension)
		return true;

	if (read_last(&last) && is_present(&last))
	{
		publish(database, &last);
		*floor = last.floor;
		return true;
	}
	lf_database_want(database);
	lf_database_wake(database);
	return false;
}

void
lf_epoch_raise_floor(int64 stamp)
{
	int			database = lf_database_mine();
	uint64		known;

	if (database < 0 || stamp <= 0)
		return;
	known = pg_atomic_read_u64(&states[database].stamp);
	while (known < (uint64) stamp &&
		   !pg_atomic_compare_exchange_u64(&states[database].stamp, &known,
										   (uint64) stamp))
		;
	lf_database_want(database);
	lf_database_wake(database);
}

bool
lf_epoch_look(int database, LfEpochView *view)
{
	LfEpochState *state = &states[database];

	LWLockAcquire(lf_lwlock(LF_LOCK_EPOCHS), LW_SHARED);
	view->id = state->id;
	view->floor = (int64) pg_atomic_read_u64(&state->floor);
	view->confirmed = view->floor != 0;
	LWLockRelease(lf_lwlock(LF_LOCK_EPOCHS));
	return view->id != 0;
}

/* Caller holds the lock exclusively. */
static void
forget_state(LfEpochState *state)
{
	pg_atomic_write_u64(&state->floor, 0);
	state->id = 0;
	state->database = InvalidOid;
	state->extension = InvalidOid;
	pg_atomic_write_u64(&state->stamp, 0);
}

void
lf_epoch_forget(int database)
{
	LWLockAcquire(lf_lwlock(LF_LOCK_EPOCHS), LW_EXCLUSIVE);
	forget_state(&states[database]);
	LWLockRelease(lf_lwlock(LF_LOCK_EPOCHS));
}

/*
 * Compared and forgotten under one lock: what a backend has just confirmed for
 * the present extension, and the entries that it loaded since, must stay.
 */
bool
lf_epoch_forget_other(int database, Oid extension)
{
	LfEpochState *state = &states[database];
	bool		other;

	LWLockAcquire(lf_lwlock(LF_LOCK_EPOCHS), LW_EXCLUSIVE);
	other = state->id != 0 &&
		(state->database != MyDatabaseId || state->extension != extension);
	if (other)
		forget_state(state);
	LWLockRelease(lf_lwlock(LF_LOCK_EPOCHS));
	return other;
}

/* Does a stamp in a guarded table stand above all that was minted? */
static bool
stamp_is_ahead(int database)
{
	int64		stamp = (int64) pg_atomic_read_u64(&states[database].stamp);
	LfEpochView view;

	if (stamp == 0)
		return false;
	return lf_epoch_look(database, &view) && stamp > view.floor &&
		stamp > lf_grants_last_token();
}

bool
lf_epoch_is_due(int database)
{
	LfEpochView view;
	Epoch		last;
	bool		due = false;

	lf_epoch_look(database, &view);
	if (view.confirmed && pg_atomic_read_u64(&states[database].stamp) == 0)
		return false;

	lf_transaction_begin("confirming the epoch");
	if (!view.confirmed && read_last(&last) && is_present(&last))
		publish(database, &last);
	else if (!view.confirmed)
		due = true;
	else
		due = stamp_is_ahead(database);
	if (!due)
		pg_atomic_write_u64(&states[database].stamp, 0);
	lf_transaction_commit();
	return due;
}

/* Locks a guarded table and all its partitions, or none of it counts. */
static bool
lock_all(Oid relation)
{
	ListCell   *cell;

	foreach(cell, find_all_inheritors(relation, NoLock, NULL))
	{
		if (!ConditionalLockRelationOid(lfirst_oid(cell), AccessShareLock))
			return false;
	}
	return true;
}

static int64
stamp_of_table(Oid relation, const char *column)
{
	AttrNumber	number = get_attnum(relation, column);
	char	   *schema = get_namespace_name(get_rel_namespace(relation));
	char	   *name = get_rel_name(relation);
	char	   *query;
	bool		isnull;

	/* Renamed, dropped or locked meanwhile: check() tells of what is left out. */
	if (!lock_all(relation) || schema == NULL || name == NULL ||
		number == InvalidAttrNumber || get_atttype(relation, number) != INT8OID)
		return 0;
	query = psprintf("SELECT pg_catalog.max(%s) FROM %s", quote_identifier(column),
					 quote_qualified_identifier(schema, name));
	if (SPI_execute(query, true, 1) != SPI_OK_SELECT || SPI_processed != 1)
		return 0;
	return DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
									   1, &isnull));
}

/* The largest stamp in any guarded table. */
static int64
largest_stamp(void)
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
			largest = Max(largest, stamp_of_table(relation, column));
	}
	return largest;
}

static void
insert_epoch(const Epoch *epoch, const char *reason)
{
	Oid			types[] = {INT8OID, INT8OID, INT8OID, INT4OID, OIDOID, OIDOID, BYTEAOID, TEXTOID};
	Datum		values[8];
	bytea	   *nonce = palloc(VARHDRSZ + 16);

	SET_VARSIZE(nonce, VARHDRSZ + 16);
	if (!pg_strong_random(VARDATA(nonce), 16))
		elog(ERROR, "could not generate random bytes for an epoch");
	values[0] = Int64GetDatum(epoch->id);
	values[1] = Int64GetDatum(epoch->floor);
	values[2] = Int64GetDatum(epoch->system_identifier);
	values[3] = Int32GetDatum(epoch->timeline);
	values[4] = ObjectIdGetDatum(epoch->database);
	values[5] = ObjectIdGetDatum(epoch->extension);
	values[6] = PointerGetDatum(nonce);
	values[7] = CStringGetTextDatum(reason);
	SPI_execute_with_args("INSERT INTO lease_fence.epochs (id, floor, system_identifier, timeline,"
						  " database_oid, extension_oid, nonce, begun_at, reason)"
						  " VALUES ($1, $2, $3, $4, $5, $6, $7, pg_catalog.clock_timestamp(), $8)",
						  8, types, values, NULL, false, 0);
}

int64
lf_epoch_begin(int database, const char *reason)
{
	Epoch		last;

	read_last(&last);
	describe_present(&begun);
	begun.id = last.id + 1;

	SPI_connect();
	begun.floor = Max(last.floor, lf_grants_last_token());
	begun.floor = Max(begun.floor, GetCurrentTimestamp() - START_OF_2025);
	begun.floor = Max(begun.floor, (int64) pg_atomic_read_u64(&states[database].stamp));
	begun.floor = Max(begun.floor, largest_stamp());
	lf_mint_check_range(begun.floor);
	insert_epoch(&begun, reason);
	SPI_execute("UPDATE lease_fence.grants SET ended_at = pg_catalog.clock_timestamp(), how_ended = 'epoch'"
				" WHERE ended_at IS NULL", false, 0);
	SPI_finish();
	return begun.floor;
}

/*
 * No entry of before may speak any more: its token is below the floor, which
 * is published first.
 */
void
lf_epoch_began(int database)
{
	publish(database, &begun);
	pg_atomic_write_u64(&states[database].stamp, 0);
	lf_entry_forget_database(MyDatabaseId);
	ereport(LOG,
			(errmsg("lease_fence: epoch %lld begins, every token up to %lld is refused",
					(long long) begun.id, (long long) begun.floor)));
}
