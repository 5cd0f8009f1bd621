/*
 * reject.h
 *		Refusing a write: the audit first, then the error.
 */
#ifndef LF_FENCE_REJECT_H
#define LF_FENCE_REJECT_H

#include "audit/audit.h"
#include "base/compat.h"
#include "fence/check.h"
#include "utils/rel.h"

/* What was to be written. */
typedef struct LfWrite
{
	Relation	relation;		/* NULL: none, see lf_reject_raise */
	const char *operation;		/* INSERT, UPDATE, DELETE, TRUNCATE; without a
								 * relation the call: "present()" */
	HeapTuple	key_row;		/* whose primary key names the row; may be NULL */
	HeapTuple	new_row;		/* what the writer wanted; may be NULL */
} LfWrite;

/*
 * Records the rejection durably, then raises the error that belongs to it.
 * resource is NULL when the row has none: column says which column is NULL
 * (NULL: the name is too long or empty).  The caller holds no lock of its look.
 */
pg_noreturn extern void lf_reject_write(const LfWrite *write,
										const LfResource *resource,
										const char *column,
										const LfVerdict *verdict);

/* Mode observe: notes what would have been refused; never waits or raises. */
extern void lf_reject_observe(const LfWrite *write, const LfResource *resource,
							  const LfVerdict *verdict);

/* The error alone, for calls that write nothing (renew, present). */
pg_noreturn extern void lf_reject_raise(const LfWrite *write,
										const LfResource *resource,
										const char *column,
										const LfVerdict *verdict);

#endif							/* LF_FENCE_REJECT_H */
