/*
 * acquire.h
 *		What the calls that take a lease have in common.
 */
#ifndef LF_LEASE_ACQUIRE_H
#define LF_LEASE_ACQUIRE_H

#include "lease/request.h"
#include "fmgr.h"

/* A holder like no other. */
extern void lf_acquire_random_holder(LfHolder *holder);

/* Raises 25001 when the transaction's snapshot would be older than the grant. */
extern void lf_acquire_check_isolation(void);

/* The answer (token, expires_in [, retry_after]); token 0: not to be had. */
extern Datum lf_acquire_row(FunctionCallInfo fcinfo, const LfResource *resource,
							int64 token, const LfRequest *refused);

#endif							/* LF_LEASE_ACQUIRE_H */
