/*
 * purge.h
 *		What is older than its retention.
 */
#ifndef LF_WORKER_PURGE_H
#define LF_WORKER_PURGE_H

#include "base/clock.h"

/*
 * Worker, outside a transaction: one bounded batch, if it is time for one.
 * soon: at once, the settings have changed.  Returns when to look again.
 */
extern LfClock lf_purge_pass(int database, bool soon);

#endif							/* LF_WORKER_PURGE_H */
