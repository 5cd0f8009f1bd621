/*
 * utility.h
 *		Utility commands that workers and leases must know of.
 */
#ifndef LF_WORKER_UTILITY_H
#define LF_WORKER_UTILITY_H

/* From _PG_init, once. */
extern void lf_utility_install_hook(void);

#endif							/* LF_WORKER_UTILITY_H */
