/*
 * guard_mode.c
 *		The table guard_modes: the mode of each guard, beside its trigger.
 *
 * Written in the backend of the table's owner, by protect(), set_mode() and
 * unprotect(); read in every backend that writes a guarded table.
 *
 * The table is not the owner's to write: it is reached below the level of
 * privileges and triggers.  Writers read and replace the newest row, whatever
 * snapshot their transaction has.
 *
 * What must end well: a mode that nobody wrote, or that cannot be read as one
 * (the guard enforces), two sessions that write one guard's mode at a time.
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/catalog.h"
#include "fence/guard_mode.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/partition.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* Columns of guard_modes. */
#define GUARD_MODES_RELATION	1
#define GUARD_MODES_MODE		2
#define GUARD_MODES_CHANGED_AT	3
#define GUARD_MODES_COLUMNS		3

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

/* The object lock keeps two of us from one row; no writer ever takes it. */
void
lf_guard_mode_write(Oid relation, const char *mode)
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
 * For a partitioned table a list of its partitions would not do: one that is
 * attached between here and our commit would keep the old mode.
 */
void
lf_guard_mode_announce(Oid relation)
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
