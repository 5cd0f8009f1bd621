/*
 * prolong.h
 *		Prolonging a grant, whoever its time is up to.
 */
#ifndef LF_LEASE_PROLONG_H
#define LF_LEASE_PROLONG_H

#include "fence/entry.h"

/*
 * In a backend: by ttl from now on (0: by its own).  *state is the grant's
 * afterwards.  False: it was not live any more.  Raises LF020 when its lock
 * service is not available, and what lf_ask_worker raises.
 */
extern bool lf_prolong(const LfResource *resource, int64 token, int64 ttl,
					   LfGrantState *state);

#endif							/* LF_LEASE_PROLONG_H */
