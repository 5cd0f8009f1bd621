/*
 * guard.c
 *		The guard's trigger: BEFORE INSERT OR UPDATE OR DELETE, each row.
 *
 * Runs in backends.  It names the row's resource, has check.c decide, and
 * stamps the row with the token under which it is written; where nothing is
 * refused, guard_unchecked.c stamps it.
 *
 * In every mode the client's own value of the token column counts for nothing,
 * and a stamp never decreases.
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/point.h"
#include "base/settings.h"
#include "fence/bypass.h"
#include "fence/check.h"
#include "fence/guard.h"
#include "fence/guard_call.h"
#include "fence/token_lock.h"
#include "replication/logicalworker.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

PG_FUNCTION_INFO_V1(lf_guard);

static void
refuse_unnamed(const LfGuardCall *call, AttrNumber null_column)
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
let_go(const LfGuardCall *call)
{
	if (call->locked != 0)
		lf_token_unlock_share(call->locked);
	if (call->locked_before != 0)
		lf_token_unlock_share(call->locked_before);
}

/* The row's resource; NULL: it has none.  room is for its name. */
static const LfResource *
resource_of(const LfGuardCall *call, HeapTuple row, LfResource *room, AttrNumber *null_column)
{
	if (call->info->constant != NULL)
		return call->info->constant;
	return lf_template_render(call->info->tmpl, row, call->desc, room, null_column) ?
		room : NULL;
}

/*
 * Under which token may this row be written?  0 only where a guard is free and
 * nothing covers the row.  The stamp that counts is a stored one: what a new row
 * brings is the client's.
 */
static int64
check_row(LfGuardCall *call, HeapTuple row, bool needed)
{
	const LfResource *resource;
	LfResource	room;
	AttrNumber	null_column;
	LfVerdict	verdict;

	call->locked_before = call->locked;
	call->locked = 0;
	resource = resource_of(call, row, &room, &null_column);
	if (resource == NULL)
	{
		if (!needed)
			return 0;
		let_go(call);
		refuse_unnamed(call, null_column);
	}
	lf_check_resource(resource, call->info->accept_lapsed, false, &verdict);
	if (verdict.kind == LF_VERDICT_ACCEPTED)
	{
		int64		stamp = row == call->write.new_row ? 0 : lf_guard_stamp_of(call, row);

		if (verdict.locked)
			call->locked = verdict.token;
		if (stamp <= verdict.token)
			return verdict.token;
		verdict.kind = LF_VERDICT_REJECTED;
		verdict.reason = LF_REASON_SUPERSEDED;
		verdict.current.token = stamp;
	}
	if (!needed && verdict.reason == LF_REASON_MISSING)
		return 0;
	let_go(call);
	/* what is said of the row can run a user's code, and the guard be read anew */
	room = *resource;
	lf_reject_write(&call->write, &room, NULL, &verdict);
}

/*
 * A row that moves to another resource needs both leases, and takes the stamp
 * of the one that it goes to; a stamp above that one's token would go down.
 */
static int64
check_move(LfGuardCall *call, HeapTuple old_row, HeapTuple new_row)
{
	int64		token;
	int64		old_stamp = lf_guard_stamp_of(call, old_row);

	check_row(call, old_row, true);
	token = check_row(call, new_row, true);
	if (old_stamp > token)
	{
		LfVerdict	verdict;

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
enforce(LfGuardCall *call, TriggerEvent event, HeapTuple old_row, HeapTuple new_row)
{
	if (TRIGGER_FIRED_BY_DELETE(event))
	{
		check_row(call, old_row, true);
		return old_row;
	}
	if (TRIGGER_FIRED_BY_INSERT(event))
		return lf_guard_stamp_row(call, new_row,
								  check_row(call, new_row, !call->info->free_inserts));
	if (lf_guard_same_resource(call, old_row, new_row))
		return lf_guard_stamp_row(call, new_row, check_row(call, old_row, true));
	return lf_guard_stamp_row(call, new_row, check_move(call, old_row, new_row));
}

/* The guard's own mode, under the emergency switch for all of them. */
static LfGuardMode
mode_of(const LfGuardInfo *info)
{
	if (info->mode == LF_MODE_ENFORCE && lf_enforce == LF_ENFORCE_OBSERVE)
		return LF_MODE_OBSERVE;
	return info->mode;
}

/* A trigger that runs after ours could write what we did not see. */
static void
refuse_late_trigger(const LfGuardCall *call, TriggerEvent event)
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

Datum
lf_guard(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	LfGuardCall	call;
	HeapTuple	old_row;
	HeapTuple	new_row;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("lease_fence.guard() can only be called as a BEFORE trigger for each row"),
				 errhint("Guards are made by lease_fence.protect().")));

	lf_guard_begin_call(&call, fcinfo, trigger);
	old_row = TRIGGER_FIRED_BY_INSERT(trigger->tg_event) ? NULL : trigger->tg_trigtuple;
	new_row = call.write.new_row;

	if (IsLogicalWorker())
		return PointerGetDatum(lf_guard_apply_replicated(&call, trigger->tg_event, old_row, new_row));
	if (lf_bypass_active() && call.info->mode != LF_MODE_OFF)
	{
		lf_bypass_note(RelationGetRelid(trigger->tg_relation), call.write.operation);
		return PointerGetDatum(lf_guard_keep_stamp(&call, trigger->tg_event, old_row, new_row));
	}
	switch (mode_of(call.info))
	{
		case LF_MODE_ENFORCE:
			refuse_late_trigger(&call, trigger->tg_event);
			new_row = enforce(&call, trigger->tg_event, old_row, new_row);
			LF_POINT("row-stamped");
			return PointerGetDatum(new_row);
		case LF_MODE_OBSERVE:
			return PointerGetDatum(lf_guard_observe(&call, trigger->tg_event, old_row, new_row));
		case LF_MODE_OFF:
			break;
	}
	return PointerGetDatum(lf_guard_keep_stamp(&call, trigger->tg_event, old_row, new_row));
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
	LfGuardCall	call;

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
