/*
 * check.h
 *		The writer's steps: may this transaction write to that resource now?
 */
#ifndef LF_FENCE_CHECK_H
#define LF_FENCE_CHECK_H

#include "base/errors.h"
#include "fence/entry.h"

typedef enum LfVerdictKind
{
	LF_VERDICT_ACCEPTED,
	LF_VERDICT_REJECTED,
	LF_VERDICT_UNCONFIRMED		/* no epoch yet: nothing can be said */
} LfVerdictKind;

typedef struct LfVerdict
{
	LfVerdictKind kind;
	LfReason	reason;			/* of a rejection */
	int64		token;			/* accepted: under which; rejected: what was
								 * presented for this resource, 0: nothing */
	bool		locked;			/* accepted: this check took the share lock,
								 * which the transaction did not have yet */
	LfGrantState current;		/* the latest grant; token 0: none known */
	LfHolder	presented;		/* of a rejection: to whom token was granted,
								 * where the check came by it; else empty */
} LfVerdict;

/*
 * Checks under what the transaction has presented, and on acceptance has the
 * share lock of the token until the transaction ends.  observing: takes no lock,
 * so that nobody ever waits for the caller.
 *
 * Never waits for a lock of the fence, for the worker or for a network.  May
 * raise: too many resources (54000), the lock table is full (53200).
 */
extern void lf_check_resource(const LfResource *resource, bool accept_lapsed,
							  bool observing, LfVerdict *verdict);

/*
 * The same for one token that is not in need of being presented: present().
 * The resource's name goes to *resource when the token is known.
 */
extern void lf_check_token(int64 token, LfVerdict *verdict, LfResource *resource);

/*
 * Brings the entry of a resource back into memory, if the token is its latest
 * in the table.  False: it is not, or a mint is at work, or there is no room.
 */
extern bool lf_check_load(const LfResource *resource, int64 token);

#endif							/* LF_FENCE_CHECK_H */
