/*
 * guard.h
 *		The guard: rows are only written under the current token of their
 *		resource.
 */
#ifndef LF_FENCE_GUARD_H
#define LF_FENCE_GUARD_H

#include "commands/trigger.h"
#include "utils/rel.h"

/*
 * TRUNCATE of a guarded table or partition: needs the lease of a constant
 * template; any other guard refuses it.  May be called more than once.
 */
extern void lf_guard_truncate(Relation relation, Trigger *trigger);

/*
 * A guarded statement found this row and did not write it.  Raises what its
 * writing would have raised: stale is never an outcome.
 */
extern void lf_guard_check_unwritten(Relation relation, Trigger *trigger, HeapTuple row);

#endif							/* LF_FENCE_GUARD_H */
