/*
 * amount.h
 *		Amounts and limits of counters, in the type of their column.
 */
#ifndef LF_FENCE_AMOUNT_H
#define LF_FENCE_AMOUNT_H

#include "access/tupdesc.h"
#include "utils/numeric.h"

typedef struct LfAmount
{
	Datum		amount;			/* of the column's type */
	Datum		bound;			/* the old value must be at least (at most) that */
	bool		bounded;
	bool		never;			/* no value of the type can meet the limit */
} LfAmount;

/*
 * down: the column minus amount must stay at or above limit; else plus, at or
 * below.  limit may be NULL: none.  Raises 42804 for a column that is neither an
 * integer nor numeric, 22023 for an amount that is not positive and finite, has
 * digits that the column cannot keep, or is beyond its range.
 */
extern void lf_amount_for_column(Form_pg_attribute attribute, bool down,
								 Numeric amount, Numeric limit, LfAmount *result);

#endif							/* LF_FENCE_AMOUNT_H */
