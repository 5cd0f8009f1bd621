/*
 * guard_unchecked.c
 *		The guard where it refuses nothing: mode observe, mode off, a bypass,
 *		and rows of a subscription.
 *
 * Runs in backends, and in whatever applies a subscription.
 *
 * What must end well: here too the client's own value of the token column counts
 * for nothing, and a stamp never decreases, nor is it lost on the way to another
 * partition.
 */
#include "postgres.h"

#include "access/xact.h"
#include "base/compat.h"
#include "fence/check.h"
#include "fence/guard_call.h"

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

static void
keep_for_move(const LfGuardCall *call, HeapTuple new_row, int64 stamp)
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
stamp_of_moved(const LfGuardCall *call, HeapTuple new_row)
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
observe_row(const LfGuardCall *call, HeapTuple row, bool needed)
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

HeapTuple
lf_guard_observe(LfGuardCall *call, TriggerEvent event,
				 HeapTuple old_row, HeapTuple new_row)
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
		return lf_guard_stamp_row(call, new_row, Max(token, stamp_of_moved(call, new_row)));
	}
	token = observe_row(call, old_row, true);
	if (!lf_guard_same_resource(call, old_row, new_row))
		token = observe_row(call, new_row, true);
	token = Max(token, lf_guard_stamp_of(call, old_row));
	keep_for_move(call, new_row, token);
	return lf_guard_stamp_row(call, new_row, token);
}

/* Mode off: the stamp stays what it was, whatever the client wrote. */
HeapTuple
lf_guard_keep_stamp(const LfGuardCall *call, TriggerEvent event,
					HeapTuple old_row, HeapTuple new_row)
{
	int64		stamp;

	if (TRIGGER_FIRED_BY_DELETE(event))
	{
		kept.deleted = true;
		return old_row;
	}
	if (TRIGGER_FIRED_BY_INSERT(event))
		return lf_guard_stamp_row(call, new_row, stamp_of_moved(call, new_row));
	stamp = lf_guard_stamp_of(call, old_row);
	keep_for_move(call, new_row, stamp);
	return lf_guard_stamp_row(call, new_row, stamp);
}

/* Rows of a subscription were checked where they were written. */
HeapTuple
lf_guard_apply_replicated(const LfGuardCall *call, TriggerEvent event,
						  HeapTuple old_row, HeapTuple new_row)
{
	if (TRIGGER_FIRED_BY_DELETE(event))
		return old_row;
	if (TRIGGER_FIRED_BY_INSERT(event))
		return new_row;
	return lf_guard_stamp_row(call, new_row, Max(lf_guard_stamp_of(call, old_row),
												 lf_guard_stamp_of(call, new_row)));
}
