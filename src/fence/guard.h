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

/* Would it refuse a stale write of this transaction at all? */
extern bool lf_guard_enforces(Relation relation, Trigger *trigger);

/*
 * A guarded statement found this row and did not write it.  Raises what its
 * writing would have raised: stale is never an outcome.  known: the columns that
 * the caller may see, all others are NULL in row; NULL: all of them.  False: the
 * row's resource cannot be named from what is known.
 */
extern bool lf_guard_check_unwritten(Relation relation, Trigger *trigger,
									 HeapTuple row, const Bitmapset *known);

#endif							/* LF_FENCE_GUARD_H */
