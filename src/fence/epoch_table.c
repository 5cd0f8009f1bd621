/*
 * epoch_table.c
 *		The table lease_fence.epochs: which history each epoch belongs to.
 *
 * Runs in backends (reading) and in workers (reading and adding).
 *
 * What must end well: whoever reads it sees the newest committed epoch, whatever
 * the snapshot of his own transaction.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fence/epoch_table.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

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

/* What an epoch of here and now remembers. */
void
lf_epoch_describe_present(LfEpoch *epoch)
{
	epoch->system_identifier = (int64) GetSystemIdentifier();
	epoch->timeline = (int32) GetWALInsertionTimeLine();
	epoch->database = MyDatabaseId;
	epoch->extension = lf_catalog_required()->extension;
}

bool
lf_epoch_is_present(const LfEpoch *epoch)
{
	LfEpoch		present;

	lf_epoch_describe_present(&present);
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

bool
lf_epoch_read_last(LfEpoch *epoch)
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

void
lf_epoch_insert(const LfEpoch *epoch, const char *reason)
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
