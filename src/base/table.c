/*
 * table.c
 *		Writing rows to our own tables, below the level of privileges.
 *
 * Runs in backends: what belongs to the writer's own transaction (operations,
 * bypassed writes), and must not depend on what the writer may do.  Runs in
 * workers: grants and the audit.
 *
 * The executor's own steps, without a plan to start and to end for each row.
 * Whatever indexes and constraints the DBA has added hold.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "base/table.h"
#include "commands/trigger.h"
#include "executor/executor.h"

struct LfTableWriter
{
	Relation	table;
	EState	   *estate;
	ResultRelInfo *result;
	TupleTableSlot *slot;
};

LfTableWriter *
lf_table_open(Oid relation, bool triggers)
{
	LfTableWriter *writer = palloc(sizeof(LfTableWriter));

	writer->table = table_open(relation, RowExclusiveLock);
	writer->estate = CreateExecutorState();
	writer->estate->es_output_cid = GetCurrentCommandId(true);
	writer->result = makeNode(ResultRelInfo);
	InitResultRelInfo(writer->result, writer->table, 0, NULL, 0);
	if (!triggers)
		writer->result->ri_TrigDesc = NULL;
	ExecOpenIndices(writer->result, false);
	writer->slot = ExecInitExtraTupleSlot(writer->estate, RelationGetDescr(writer->table),
										  &TTSOpsVirtual);
	AfterTriggerBeginQuery();
	return writer;
}

bool
lf_table_add(LfTableWriter *writer, Datum *values, bool *nulls)
{
	TupleTableSlot *slot = writer->slot;
	int			natts = slot->tts_tupleDescriptor->natts;

	ExecClearTuple(slot);
	memcpy(slot->tts_values, values, natts * sizeof(Datum));
	memcpy(slot->tts_isnull, nulls, natts * sizeof(bool));
	ExecStoreVirtualTuple(slot);
	ExecSimpleRelationInsert(writer->result, writer->estate, slot);
	ResetPerTupleExprContext(writer->estate);
	return ItemPointerIsValid(&slot->tts_tid);
}

void
lf_table_close(LfTableWriter *writer)
{
	AfterTriggerEndQuery(writer->estate);
	ExecCloseIndices(writer->result);
	ExecResetTupleTable(writer->estate->es_tupleTable, false);
	FreeExecutorState(writer->estate);
	table_close(writer->table, NoLock);
	pfree(writer);
}

void
lf_table_insert(Oid relation, Datum *values, bool *nulls)
{
	LfTableWriter *writer = lf_table_open(relation, false);

	lf_table_add(writer, values, nulls);
	lf_table_close(writer);
}
