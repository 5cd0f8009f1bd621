/*
 * truncate.h
 *		TRUNCATE of guarded tables, which fires no row trigger.
 */
#ifndef LF_FENCE_TRUNCATE_H
#define LF_FENCE_TRUNCATE_H

/* Called once, by _PG_init. */
extern void lf_truncate_install_hook(void);

#endif							/* LF_FENCE_TRUNCATE_H */
