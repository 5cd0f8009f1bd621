/*
 * ask.h
 *		Asking the worker and waiting for its answer, in a backend.
 */
#ifndef LF_LEASE_ASK_H
#define LF_LEASE_ASK_H

#include "lease/request.h"

/*
 * Submits the request and waits until it is answered, at most until the moment
 * `until` (LF_CLOCK_NEVER: as long as it takes).  While writers are in the way
 * it waits for their transactions.  False: time is over, *request says who was
 * in the way last.  Cancellable at every point, an interrupted wait is never a
 * grant.  Raises what a caller cannot go on after: 40P01, LF007, LF021, 53400.
 */
extern bool lf_ask_worker(LfRequest *request, LfClock until);

/* adopt, import_grant, revoke and begin_epoch wait no longer, microseconds. */
#define LF_ASK_DRAIN_LIMIT (INT64CONST(10) * USECS_PER_SEC)

/*
 * For a grant that somebody else has made: as lf_ask_worker, but raises 55P03 when
 * the writers under the older one have not ended in time.
 */
extern void lf_ask_worker_to_follow(LfRequest *request);

/* Raises 55000 on a standby: nothing can be granted there. */
extern void lf_ask_require_primary(void);

/*
 * HINT of 55P03: who is in the way.  Names others only to who may read the
 * audit.
 */
extern const char *lf_ask_who_is_in_the_way(const LfRequest *request);

#endif							/* LF_LEASE_ASK_H */
