/*
 * protect.h
 *		Guards as they stand in the catalogs: their trigger and their mode.
 *
 * protect() makes them; guard and truncate read them.
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

typedef enum LfGuardMode
{
	LF_MODE_ENFORCE,
	LF_MODE_OBSERVE,
	LF_MODE_OFF
} LfGuardMode;

/*
 * The guard's trigger on a table or partition, by its function; NULL when
 * there is none.  Good for as long as rel's relcache entry is not rebuilt.
 */
extern Trigger *lf_guard_find_trigger(Relation rel);

/*
 * The mode now, whatever snapshot the transaction has; a partition follows
 * the table that protect() was called for.  Enforce when nothing is known.
 * Opens tables, so it may process invalidations.
 */
extern LfGuardMode lf_guard_mode_read(Oid relation);

#endif							/* LF_FENCE_PROTECT_H */
