/*
 * manage.h
 *		What the calls about one token have in common.
 */
#ifndef LF_LEASE_MANAGE_H
#define LF_LEASE_MANAGE_H

#include "fence/entry.h"

/*
 * What is true of the token's grant now; call is named in errors.  Raises LF004
 * for one that was never minted here and LF006 for another role's.  False: the
 * grant is not the resource's latest in memory (superseded, or long over).
 */
extern bool lf_manage_find_grant(const char *call, int64 token, LfResource *resource,
								 LfGrantState *state);

#endif							/* LF_LEASE_MANAGE_H */
