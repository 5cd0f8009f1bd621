/*
 * operation.h
 *		Operation keys: an operation is applied at most once, and who asks again
 *		gets the same answer.
 */
#ifndef LF_FENCE_OPERATION_H
#define LF_FENCE_OPERATION_H

#include "utils/jsonb.h"

#define LF_OPERATION_KEY_MAX 255

typedef struct LfOperation
{
	const char *key;			/* NULL: none was given */
	Oid			relation;
	uint8		digest[32];		/* of the request, without the token */
} LfOperation;

/*
 * Begins an operation: shuts out everybody else who has the same key until the
 * transaction ends, and looks whether it was applied before.  request is the
 * whole request as text, without the token.  The earlier answer, or NULL.
 * Raises LF010 when the key belongs to another request or another role, 22023
 * for a bad key.
 */
extern Jsonb *lf_operation_begin(LfOperation *operation, const char *key,
								 Oid relation, const char *request);

/* What was begun was applied, under that token (0: none): to be remembered. */
extern void lf_operation_applied(const LfOperation *operation, int64 token, Jsonb *answer);

#endif							/* LF_FENCE_OPERATION_H */
