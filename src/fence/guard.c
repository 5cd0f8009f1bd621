/*
 * guard.c
 *		The guard's trigger: BEFORE INSERT OR UPDATE OR DELETE, each row.
 *
 * Runs in backends.  It names the row's resource, has check.c decide, and
 * stamps the row with the token under which it is written.
 *
 * In every mode the client's own value of the token column counts for nothing,
 * and a stamp never decreases.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "base/compat.h"
#include "base/settings.h"
#include "fence/bypass.h"
#include "fence/check.h"
#include "fence/guard.h"
#include "fence/guard_info.h"
#include "fence/reject.h"
#include "fence/token_lock.h"
#include "replication/logicalworker.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

PG_FUNCTION_INFO_V1(lf_guard);
PG_FUNCTION_INFO_V1(lf_drop_replicated);

/* One call of the trigger. */
typedef struct GuardCall
{
	LfGuardInfo *info;
	LfWrite		write;
	TupleDesc	desc;
	int64		locked;			/* a token that this very call has locked; 0 */
} GuardCall;

/*
 * An UPDATE that moves a row to another partition fires DELETE there and INSERT
 * here after it, in one command.  In the modes that check nothing the stamp
 * would be lost on the way: it is kept for the INSERT that names the same
 * resource.
 */
typedef struct KeptStamp
{
	LocalTransactionId lxid;
	CommandId	command;
	bool		deleted;		/* the DELETE has come by */
	int64		stamp;
	LfResource	resource;
} KeptStamp;

static KeptStamp kept;

static int64
stamp_of(const GuardCall *call, HeapTuple row)
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
static HeapTuple
stamp_row(const GuardCall *call, HeapTuple row, int64 stamp)
{
	AttrNumber	column = call->info->token_column;
	int			offset = lf_attribute_offset(call->desc, column);
	Datum		value = Int64GetDatum(stamp);
	int			number = column;
	bool		isnull = false;
	HeapTuple	copy;

	heap_getattr(row, column, call->desc, &isnull);
	if (!isnull && stamp_of(call, row) == stamp)
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

static void
refuse_unnamed(const GuardCall *call, AttrNumber null_column)
{
	LfVerdict	verdict;

	memset(&verdict, 0, sizeof(verdict));
	verdict.kind = LF_VERDICT_REJECTED;
	verdict.reason = LF_REASON_NO_RESOURCE;
	lf_reject_write(&call->write, NULL,
					null_column == 0 ? NULL :
					NameStr(TupleDescAttr(call->desc, null_column - 1)->attname),
					&verdict);
}

/* Who is refused holds up nobody while the audit is written. */
static void
let_go(const GuardCall *call)
{
	if (call->locked != 0)
		lf_token_unlock_share(call->locked);
}

/*
 * Under which token may this row be written?  0 only where a guard is free and
 * nothing covers the row.  The stamp that counts is a stored one: what a new row
 * brings is the client's.
 */
static int64
check_row(const GuardCall *call, HeapTuple row, bool needed)
{
	LfResource	resource;
	AttrNumber	null_column;
	LfVerdict	verdict;

	if (!lf_template_render(call->info->tmpl, row, call->desc, &resource, &null_column))
	{
		if (!needed)
			return 0;
		let_go(call);
		refuse_unnamed(call, null_column);
	}
	lf_check_resource(&resource, call->info->accept_lapsed, false, &verdict);
	if (verdict.kind == LF_VERDICT_ACCEPTED)
	{
		int64		stamp = stamp_of(call, row);

		if (row == call->write.new_row || stamp <= verdict.token)
			return verdict.token;
		lf_check_undo(&verdict);
		verdict.kind = LF_VERDICT_REJECTED;
		verdict.reason = LF_REASON_SUPERSEDED;
		verdict.current.token = stamp;
	}
	if (!needed && verdict.reason == LF_REASON_MISSING)
		return 0;
	let_go(call);
	lf_reject_write(&call->write, &resource, NULL, &verdict);
}

/* Do both versions of the row belong to one resource? */
static bool
same_resource(const GuardCall *call, HeapTuple old_row, HeapTuple new_row)
{
	LfResource	old_resource;
	LfResource	new_resource;
	AttrNumber	column;

	return lf_template_render(call->info->tmpl, old_row, call->desc, &old_resource, &column) &&
		lf_template_render(call->info->tmpl, new_row, call->desc, &new_resource, &column) &&
		lf_resource_equal(&old_resource, &new_resource);
}

/*
 * A row that moves to another resource needs both leases, and takes the stamp
 * of the one that it goes to; a stamp above that one's token would go down.
 */
static int64
check_move(GuardCall *call, HeapTuple old_row, HeapTuple new_row)
{
	int64		token;
	int64		old_stamp = stamp_of(call, old_row);

	call->locked = check_row(call, old_row, true);
	token = check_row(call, new_row, true);
	if (old_stamp > token)
	{
		LfVerdict	verdict;

		lf_token_unlock_share(token);
		let_go(call);
		memset(&verdict, 0, sizeof(verdict));
		verdict.kind = LF_VERDICT_REJECTED;
		verdict.reason = LF_REASON_SUPERSEDED;
		verdict.token = token;
		lf_reject_write(&call->write, NULL, NULL, &verdict);
	}
	return token;
}

static HeapTuple
enforce(GuardCall *call, TriggerEvent event, HeapTuple old_row, HeapTuple new_row)
{
	if (TRIGGER_FIRED_BY_DELETE(event))
	{
		check_row(call, old_row, true);
		return old_row;
	}
	if (TRIGGER_FIRED_BY_INSERT(event))
		return stamp_row(call, new_row, check_row(call, new_row, !call->info->free_inserts));
	if (same_resource(call, old_row, new_row))
		return stamp_row(call, new_row, check_row(call, old_row, true));
	return stamp_row(call, new_row, check_move(call, old_row, new_row));
}

static void
keep_for_move(const GuardCall *call, HeapTuple new_row, int64 stamp)
{
	AttrNumber	column;

	kept.stamp = 0;
	if (!lf_template_render(call->info->tmpl, new_row, call->desc, &kept.resource, &column))
		return;
	kept.lxid = LF_MY_LXID;
	kept.command = GetCurrentCommandId(false);
	kept.deleted = false;
	kept.stamp = stamp;
}

/* The stamp that a row brings along from another partition, or 0. */
static int64
stamp_of_moved(const GuardCall *call, HeapTuple new_row)
{
	LfResource	resource;
	AttrNumber	column;

	if (kept.stamp == 0 || !kept.deleted || kept.lxid != LF_MY_LXID ||
		kept.command != GetCurrentCommandId(false) ||
		!lf_template_render(call->info->tmpl, new_row, call->desc, &resource, &column) ||
		!lf_resource_equal(&resource, &kept.resource))
		return 0;
	return kept.stamp;
}

/* What enforcing would say: the token, or 0 and one more observed write. */
static int64
observe_row(const GuardCall *call, HeapTuple row, bool needed)
{
	LfResource	resource;
	AttrNumber	column;
	LfVerdict	verdict;

	memset(&verdict, 0, sizeof(verdict));
	if (!lf_template_render(call->info->tmpl, row, call->desc, &resource, &column))
	{
		verdict.reason = LF_REASON_NO_RESOURCE;
		if (needed)
			lf_reject_observe(&call->write, NULL, &verdict);
		return 0;
	}
	lf_check_resource(&resource, call->info->accept_lapsed, true, &verdict);
	if (verdict.kind == LF_VERDICT_ACCEPTED)
		return verdict.token;
	if (verdict.kind == LF_VERDICT_REJECTED &&
		(needed || verdict.reason != LF_REASON_MISSING))
		lf_reject_observe(&call->write, &resource, &verdict);
	return 0;
}

static HeapTuple
observe(GuardCall *call, TriggerEvent event, HeapTuple old_row, HeapTuple new_row)
{
	int64		token;

	if (TRIGGER_FIRED_BY_DELETE(event))
	{
		observe_row(call, old_row, true);
		kept.deleted = true;
		return old_row;
	}
	if (TRIGGER_FIRED_BY_INSERT(event))
	{
		token = observe_row(call, new_row, !call->info->free_inserts);
		return stamp_row(call, new_row, Max(token, stamp_of_moved(call, new_row)));
	}
	token = observe_row(call, old_row, true);
	if (!same_resource(call, old_row, new_row))
		token = observe_row(call, new_row, true);
	token = Max(token, stamp_of(call, old_row));
	keep_for_move(call, new_row, token);
	return stamp_row(call, new_row, token);
}

/* Mode off: the stamp stays what it was, whatever the client wrote. */
static HeapTuple
keep_stamp(const GuardCall *call, TriggerEvent event, HeapTuple old_row, HeapTuple new_row)
{
	int64		stamp;

	if (TRIGGER_FIRED_BY_DELETE(event))
	{
		kept.deleted = true;
		return old_row;
	}
	if (TRIGGER_FIRED_BY_INSERT(event))
		return stamp_row(call, new_row, stamp_of_moved(call, new_row));
	stamp = stamp_of(call, old_row);
	keep_for_move(call, new_row, stamp);
	return stamp_row(call, new_row, stamp);
}

/* Rows of a subscription were checked where they were written. */
static HeapTuple
apply_replicated(const GuardCall *call, TriggerEvent event, HeapTuple old_row, HeapTuple new_row)
{
	if (TRIGGER_FIRED_BY_DELETE(event))
		return old_row;
	if (TRIGGER_FIRED_BY_INSERT(event))
		return new_row;
	return stamp_row(call, new_row, Max(stamp_of(call, old_row), stamp_of(call, new_row)));
}

/* The guard's own mode, under the emergency switch for all of them. */
static LfGuardMode
mode_of(const LfGuardInfo *info)
{
	if (info->mode == LF_MODE_ENFORCE && lf_enforce == LF_ENFORCE_OBSERVE)
		return LF_MODE_OBSERVE;
	return info->mode;
}

static const char *
operation_of(TriggerEvent event)
{
	if (TRIGGER_FIRED_BY_INSERT(event))
		return "INSERT";
	return TRIGGER_FIRED_BY_DELETE(event) ? "DELETE" : "UPDATE";
}

/* A trigger that runs after ours could write what we did not see. */
static void
refuse_late_trigger(const GuardCall *call, TriggerEvent event)
{
	const LfGuardInfo *info = call->info;
	const char *late = TRIGGER_FIRED_BY_INSERT(event) ? info->late_insert :
		TRIGGER_FIRED_BY_DELETE(event) ? info->late_delete : info->late_update;

	if (late == NULL)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("guard of table \"%s.%s\" is in danger: trigger \"%s\" fires after it",
					get_namespace_name(RelationGetNamespace(call->write.relation)),
					RelationGetRelationName(call->write.relation), late),
			 errdetail("It could change the row after it was checked, so nothing is written."),
			 errhint("Rename that trigger so that its name sorts before \"%s\".", LF_GUARD_TRIGGER)));
}

static void
begin_call(GuardCall *call, FunctionCallInfo fcinfo, TriggerData *trigger)
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

Datum
lf_guard(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	GuardCall	call;
	HeapTuple	old_row;
	HeapTuple	new_row;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("lease_fence.guard() can only be called as a BEFORE trigger for each row"),
				 errhint("Guards are made by lease_fence.protect().")));

	begin_call(&call, fcinfo, trigger);
	old_row = TRIGGER_FIRED_BY_INSERT(trigger->tg_event) ? NULL : trigger->tg_trigtuple;
	new_row = call.write.new_row;

	if (IsLogicalWorker())
		return PointerGetDatum(apply_replicated(&call, trigger->tg_event, old_row, new_row));
	if (lf_bypass_active() && call.info->mode != LF_MODE_OFF)
	{
		lf_bypass_note(RelationGetRelid(trigger->tg_relation), call.write.operation);
		return PointerGetDatum(keep_stamp(&call, trigger->tg_event, old_row, new_row));
	}
	switch (mode_of(call.info))
	{
		case LF_MODE_ENFORCE:
			refuse_late_trigger(&call, trigger->tg_event);
			return PointerGetDatum(enforce(&call, trigger->tg_event, old_row, new_row));
		case LF_MODE_OBSERVE:
			return PointerGetDatum(observe(&call, trigger->tg_event, old_row, new_row));
		case LF_MODE_OFF:
			break;
	}
	return PointerGetDatum(keep_stamp(&call, trigger->tg_event, old_row, new_row));
}

/*
 * With a constant template the table as a whole is the resource.  Any other
 * guard would need the leases of all its rows.
 */
void
lf_guard_truncate(Relation relation, Trigger *trigger)
{
	LfGuardInfo *info = lf_guard_info(relation, trigger, NULL);
	LfWrite		write = {relation, "TRUNCATE", NULL, NULL};
	AttrNumber	column;
	LfResource	resource;
	LfVerdict	verdict;

	if (info->mode == LF_MODE_OFF)
		return;
	if (lf_bypass_active())
	{
		lf_bypass_note(RelationGetRelid(relation), write.operation);
		return;
	}
	memset(&verdict, 0, sizeof(verdict));
	verdict.kind = LF_VERDICT_REJECTED;
	verdict.reason = LF_REASON_TRUNCATE;
	if (lf_template_columns(info->tmpl, &column, 1) == 0 &&
		lf_template_render(info->tmpl, NULL, RelationGetDescr(relation), &resource, &column))
		lf_check_resource(&resource, info->accept_lapsed,
						  mode_of(info) == LF_MODE_OBSERVE, &verdict);
	else
		resource.length = 0;
	if (verdict.kind == LF_VERDICT_ACCEPTED)
		return;
	if (mode_of(info) == LF_MODE_OBSERVE)
		lf_reject_observe(&write, resource.length > 0 ? &resource : NULL, &verdict);
	else
		lf_reject_write(&write, resource.length > 0 ? &resource : NULL, NULL, &verdict);
}

bool
lf_guard_enforces(Relation relation, Trigger *trigger)
{
	return mode_of(lf_guard_info(relation, trigger, NULL)) == LF_MODE_ENFORCE &&
		!lf_bypass_active();
}

static bool
template_is_known(const LfTemplate *tmpl, TupleDesc desc, const Bitmapset *known)
{
	AttrNumber *columns = palloc(desc->natts * sizeof(AttrNumber));
	int			count = lf_template_columns(tmpl, columns, desc->natts);

	for (int i = 0; i < count; i++)
	{
		if (!bms_is_member(columns[i], known))
			return false;
	}
	return true;
}

bool
lf_guard_check_unwritten(Relation relation, Trigger *trigger, HeapTuple row,
						 const Bitmapset *known)
{
	GuardCall	call;

	if (!lf_guard_enforces(relation, trigger))
		return true;
	memset(&call, 0, sizeof(call));
	call.info = lf_guard_info(relation, trigger, NULL);
	call.desc = RelationGetDescr(relation);
	call.write.relation = relation;
	call.write.operation = "UPDATE";
	call.write.key_row = row;
	if (known != NULL && !template_is_known(call.info->tmpl, call.desc, known))
		return false;
	check_row(&call, row, true);
	return true;
}

/*
 * Our own tables are in every FOR ALL TABLES publication; what a subscription
 * brings of another database's grants and epochs is dropped.  The trigger fires
 * only in the replica role, where superusers may come by as well.
 */
Datum
lf_drop_replicated(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("lease_fence.drop_replicated() can only be called as a trigger")));
	if (IsLogicalWorker())
		return PointerGetDatum(NULL);
	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ?
						   trigger->tg_newtuple : trigger->tg_trigtuple);
}
