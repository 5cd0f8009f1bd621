/*
 * protect.h
 *		Guards as they stand in the catalogs: a trigger and its arguments.
 *
 * protect() makes them, everybody else reads them.  Their mode is kept in a
 * table of ours: see guard_mode.h.
 */
#ifndef LF_FENCE_PROTECT_H
#define LF_FENCE_PROTECT_H

#include "utils/rel.h"
#include "utils/reltrigger.h"

/* Triggers fire in the order of their names: ours sees what is written. */
#define LF_GUARD_TRIGGER "zzz_lease_fence"

/* Places of the trigger's arguments. */
#define LF_GUARD_ARG_RESOURCE		0
#define LF_GUARD_ARG_TOKEN_COLUMN	1
#define LF_GUARD_ARG_LAPSED			2
#define LF_GUARD_ARG_INSERTS		3
#define LF_GUARD_ARGS				4

/*
 * The guard's trigger on a table or partition, by its function; NULL when
 * there is none.  A copy: rel's own is gone as soon as anything about the table is
 * announced, by its analysis, say, whatever lock we have on it.
 */
extern Trigger *lf_guard_find_trigger(Relation rel);

#endif							/* LF_FENCE_PROTECT_H */
