/*
 * drain.h
 *		Writers that are in the way of a new grant.
 */
#ifndef LF_FENCE_DRAIN_H
#define LF_FENCE_DRAIN_H

#include "fence/mint.h"

/*
 * Worker: looks at who shares the old token's lock.  Names one of them in
 * mint->blocker, terminates those it may when mint->terminate_at has come, and
 * says whether the asker itself is among them.
 */
extern LfDrainState lf_drain_look(LfMint *mint, int asker);

#endif							/* LF_FENCE_DRAIN_H */
