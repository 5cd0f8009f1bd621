/*
 * table.c
 *		Writing rows to our own tables, below the level of privileges.
 *
 * Runs in backends: what belongs to the writer's own transaction (operations,
 * bypassed writes), and must not depend on what the writer may do.  Runs in
 * workers: grants and the audit.
 *
 * The executor's own steps, without a plan to start and to end for each row.
 * Whatever columns, indexes and checks the DBA has added count.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "base/table.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "optimizer/optimizer.h"
#include "rewrite/rewriteHandler.h"
#include "utils/rel.h"

struct LfTableWriter
{
	Relation	table;
	EState	   *estate;
	ResultRelInfo *result;
	TupleTableSlot *slot;
	int			count;			/* columns that are given with each row */
	ExprState **defaults;		/* of the others; NULL: none */
};

static void
prepare_defaults(LfTableWriter *writer)
{
	TupleDesc	desc = RelationGetDescr(writer->table);

	if (desc->natts < writer->count)
		elog(ERROR, "table \"%s\" has %d columns instead of %d",
			 RelationGetRelationName(writer->table), desc->natts, writer->count);
	writer->defaults = palloc0(desc->natts * sizeof(ExprState *));
	for (int i = writer->count; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);
		Expr	   *expression;

		if (attribute->attisdropped || attribute->attgenerated != '\0')
			continue;
		expression = (Expr *) build_column_default(writer->table, i + 1);
		if (expression != NULL)
			writer->defaults[i] = ExecInitExpr(expression_planner(expression), NULL);
	}
}

LfTableWriter *
lf_table_open(Oid relation, int count, bool triggers)
{
	LfTableWriter *writer = palloc(sizeof(LfTableWriter));

	writer->table = table_open(relation, RowExclusiveLock);
	writer->count = count;
	prepare_defaults(writer);
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
	ExecBSInsertTriggers(writer->estate, writer->result);
	return writer;
}

static void
fill_slot(LfTableWriter *writer, const Datum *values, const bool *nulls)
{
	TupleTableSlot *slot = writer->slot;
	TupleDesc	desc = slot->tts_tupleDescriptor;
	ExprContext *context = GetPerTupleExprContext(writer->estate);

	ExecClearTuple(slot);
	for (int i = 0; i < desc->natts; i++)
	{
		slot->tts_values[i] = 0;
		slot->tts_isnull[i] = true;
		if (TupleDescAttr(desc, i)->attisdropped)
			continue;
		if (i < writer->count)
		{
			slot->tts_values[i] = values[i];
			slot->tts_isnull[i] = nulls[i];
		}
		else if (writer->defaults[i] != NULL)
			slot->tts_values[i] = ExecEvalExprSwitchContext(writer->defaults[i], context,
															&slot->tts_isnull[i]);
	}
	ExecStoreVirtualTuple(slot);
}

bool
lf_table_add(LfTableWriter *writer, Datum *values, bool *nulls)
{
	fill_slot(writer, values, nulls);
	ExecSimpleRelationInsert(writer->result, writer->estate, writer->slot);
	ResetPerTupleExprContext(writer->estate);
	return ItemPointerIsValid(&writer->slot->tts_tid);
}

void
lf_table_close(LfTableWriter *writer)
{
	ExecASInsertTriggers(writer->estate, writer->result, NULL);
	AfterTriggerEndQuery(writer->estate);
	ExecCloseIndices(writer->result);
	ExecCloseResultRelations(writer->estate);	/* those that triggers opened */
	ExecResetTupleTable(writer->estate->es_tupleTable, false);
	FreeExecutorState(writer->estate);
	table_close(writer->table, NoLock);
	pfree(writer);
}

void
lf_table_insert(Oid relation, int count, Datum *values, bool *nulls)
{
	LfTableWriter *writer = lf_table_open(relation, count, false);

	lf_table_add(writer, values, nulls);
	lf_table_close(writer);
}
