/*
 * guard_mode.h
 *		A guard's mode, as it stands in the table guard_modes.
 */
#ifndef LF_FENCE_GUARD_MODE_H
#define LF_FENCE_GUARD_MODE_H

typedef enum LfGuardMode
{
	LF_MODE_ENFORCE,
	LF_MODE_OBSERVE,
	LF_MODE_OFF
} LfGuardMode;

/*
 * The mode now, whatever snapshot the transaction has; a partition follows
 * the table that protect() was called for.  Enforce when nothing is known.
 * Opens tables, so it may process invalidations.
 */
extern LfGuardMode lf_guard_mode_read(Oid relation);

/* Sets a guard's mode; NULL removes the row. */
extern void lf_guard_mode_write(Oid relation, const char *mode);

/* Makes every backend look at the mode again, after our commit. */
extern void lf_guard_mode_announce(Oid relation);

#endif							/* LF_FENCE_GUARD_MODE_H */
