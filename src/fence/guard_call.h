/*
 * guard_call.h
 *		One call of the guard's trigger; for guard.c, guard_call.c and
 *		guard_unchecked.c only.
 */
#ifndef LF_FENCE_GUARD_CALL_H
#define LF_FENCE_GUARD_CALL_H

#include "commands/trigger.h"
#include "fence/guard_info.h"
#include "fence/reject.h"
#include "fmgr.h"

typedef struct LfGuardCall
{
	LfGuardInfo *info;
	LfWrite		write;
	TupleDesc	desc;
	int64		locked;			/* the token that the last check of this call
								 * has locked; 0: it was locked already */
	int64		locked_before;	/* the same of the check before that one */
} LfGuardCall;

extern void lf_guard_begin_call(LfGuardCall *call, FunctionCallInfo fcinfo,
								TriggerData *trigger);

/* The row's stamp, 0: none; the row, or a copy of it, with that stamp. */
extern int64 lf_guard_stamp_of(const LfGuardCall *call, HeapTuple row);
extern HeapTuple lf_guard_stamp_row(const LfGuardCall *call, HeapTuple row, int64 stamp);

/* Do both versions of the row belong to one resource? */
extern bool lf_guard_same_resource(const LfGuardCall *call, HeapTuple old_row,
								   HeapTuple new_row);

/*
 * Where nothing is refused: mode observe, mode off or a bypass, and rows of a
 * subscription.  Each returns the row that the trigger returns.
 */
extern HeapTuple lf_guard_observe(LfGuardCall *call, TriggerEvent event,
								  HeapTuple old_row, HeapTuple new_row);
extern HeapTuple lf_guard_keep_stamp(const LfGuardCall *call, TriggerEvent event,
									 HeapTuple old_row, HeapTuple new_row);
extern HeapTuple lf_guard_apply_replicated(const LfGuardCall *call, TriggerEvent event,
										   HeapTuple old_row, HeapTuple new_row);

#endif							/* LF_FENCE_GUARD_CALL_H */
