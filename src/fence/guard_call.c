/*
 * guard_call.c
 *		One call of the guard's trigger: what it was called with, and the
 *		row's stamp.
 *
 * Runs in backends, and in whatever applies a subscription.
 *
 * What must end well: a wide row is not taken apart to be stamped; the row that
 * is given is never changed in its place.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "base/compat.h"
#include "fence/guard_call.h"
#include "utils/datum.h"

static const char *
operation_of(TriggerEvent event)
{
	if (TRIGGER_FIRED_BY_INSERT(event))
		return "INSERT";
	return TRIGGER_FIRED_BY_DELETE(event) ? "DELETE" : "UPDATE";
}

void
lf_guard_begin_call(LfGuardCall *call, FunctionCallInfo fcinfo, TriggerData *trigger)
{
	memset(call, 0, sizeof(*call));
	call->info = lf_guard_info(trigger->tg_relation, trigger->tg_trigger,
							   fcinfo->flinfo->fn_extra);
	fcinfo->flinfo->fn_extra = call->info;
	call->desc = RelationGetDescr(trigger->tg_relation);
	call->write.relation = trigger->tg_relation;
	call->write.operation = operation_of(trigger->tg_event);
	call->write.key_row = trigger->tg_trigtuple;
	if (TRIGGER_FIRED_BY_UPDATE(trigger->tg_event))
		call->write.new_row = trigger->tg_newtuple;
	else if (TRIGGER_FIRED_BY_INSERT(trigger->tg_event))
		call->write.new_row = trigger->tg_trigtuple;
}

int64
lf_guard_stamp_of(const LfGuardCall *call, HeapTuple row)
{
	bool		isnull;
	Datum		value = heap_getattr(row, call->info->token_column, call->desc, &isnull);

	return isnull ? 0 : DatumGetInt64(value);
}

/*
 * A copy of the row with that stamp; the row itself if it has it already.  A
 * fixed-width column at a fixed place is overwritten in the copy, which spares
 * taking a wide row apart.
 */
HeapTuple
lf_guard_stamp_row(const LfGuardCall *call, HeapTuple row, int64 stamp)
{
	AttrNumber	column = call->info->token_column;
	int			offset = lf_attribute_offset(call->desc, column);
	Datum		value = Int64GetDatum(stamp);
	int			number = column;
	bool		isnull = false;
	Datum		present;
	HeapTuple	copy;

	present = heap_getattr(row, column, call->desc, &isnull);
	if (!isnull && DatumGetInt64(present) == stamp)
		return row;
	if (offset < 0 || HeapTupleHasNulls(row) ||
		HeapTupleHeaderGetNatts(row->t_data) < column)
	{
		isnull = false;
		return heap_modify_tuple_by_cols(row, call->desc, 1, &number, &value, &isnull);
	}
	copy = heap_copytuple(row);
	memcpy((char *) copy->t_data + copy->t_data->t_hoff + offset, &stamp, sizeof(stamp));
	return copy;
}

/* Are all columns that name the resource the same, byte for byte? */
static bool
same_columns(const LfGuardCall *call, HeapTuple old_row, HeapTuple new_row)
{
	for (int i = 0; i < call->info->ncolumns; i++)
	{
		AttrNumber	number = call->info->columns[i];
		Form_pg_attribute attribute = TupleDescAttr(call->desc, number - 1);
		bool		old_null;
		bool		new_null;
		Datum		old_value = heap_getattr(old_row, number, call->desc, &old_null);
		Datum		new_value = heap_getattr(new_row, number, call->desc, &new_null);

		if (old_null || new_null ||
			!datumIsEqual(old_value, new_value, attribute->attbyval, attribute->attlen))
			return false;
	}
	return true;
}

/* Do both versions of the row belong to one resource? */
bool
lf_guard_same_resource(const LfGuardCall *call, HeapTuple old_row, HeapTuple new_row)
{
	LfResource	old_resource;
	LfResource	new_resource;
	AttrNumber	column;

	return same_columns(call, old_row, new_row) ||
		(lf_template_render(call->info->tmpl, old_row, call->desc, &old_resource, &column) &&
		 lf_template_render(call->info->tmpl, new_row, call->desc, &new_resource, &column) &&
		 lf_resource_equal(&old_resource, &new_resource));
}
