/*
 * table.c
 *		Writing to our own tables from a backend.
 *
 * Runs in backends: what belongs to the writer's own transaction (operations,
 * bypassed writes), and must not depend on what the writer may do.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "base/table.h"
#include "catalog/indexing.h"
#include "utils/rel.h"

void
lf_table_insert(Oid relation, Datum *values, bool *nulls)
{
	Relation	table = table_open(relation, RowExclusiveLock);
	HeapTuple	row = heap_form_tuple(RelationGetDescr(table), values, nulls);

	CatalogTupleInsert(table, row);
	heap_freetuple(row);
	table_close(table, RowExclusiveLock);
}
