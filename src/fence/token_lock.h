/*
 * token_lock.h
 *		The heavyweight lock of a token: writers share it until they commit,
 *		the minter of the next token takes it exclusively.
 *
 * Advisory lock tags with a field4 of our own: no function of SQL can make
 * them.  The key is the token, never a hash of a name, since names that collide
 * can be made to order.
 */
#ifndef LF_FENCE_TOKEN_LOCK_H
#define LF_FENCE_TOKEN_LOCK_H

#include "storage/lock.h"

extern void lf_token_lock_tag(LOCKTAG *tag, int64 token);

/*
 * Backend: takes the share lock at once or not at all (false: a mint is at
 * work, or the lock table is full), for the current (sub)transaction.  Raises
 * 54000 beyond lease_fence.max_resources_per_transaction.
 */
extern bool lf_token_lock_share(int64 token);

/* Backend: does this transaction have the share lock already? */
extern bool lf_token_lock_is_shared(int64 token);

/* Backend: gives back what the last lf_token_lock_share of this token took. */
extern void lf_token_unlock_share(int64 token);

/* Worker: session locks, which outlive its transactions. */
extern bool lf_token_lock_exclusive(int64 token);
extern void lf_token_unlock_exclusive(int64 token);

/* Worker: the right to mint in this database; kept until the process ends. */
extern bool lf_token_lock_minter(void);

extern void lf_token_lock_install(void);

#endif							/* LF_FENCE_TOKEN_LOCK_H */
