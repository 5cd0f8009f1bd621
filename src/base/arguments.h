/*
 * arguments.h
 *		Checking what SQL callers pass: each error names argument and value.
 */
#ifndef LF_BASE_ARGUMENTS_H
#define LF_BASE_ARGUMENTS_H

#include "base/clock.h"
#include "base/resource.h"
#include "fmgr.h"

/* All raise 22023.  argument: its name in SQL. */
extern void lf_argument_resource(FunctionCallInfo fcinfo, int number,
								 const char *argument, LfResource *resource);
extern void lf_argument_resource_text(text *value, const char *argument,
									  LfResource *resource);
extern int64 lf_argument_token(FunctionCallInfo fcinfo, int number, const char *argument);

/* Microseconds; 0 when it is NULL. */
extern int64 lf_argument_ttl(FunctionCallInfo fcinfo, int number);

/*
 * A moment; NULL: LF_CLOCK_NEVER.  *no_wait: it is 0; the moment is then when
 * there must be an answer.
 */
extern LfClock lf_argument_wait(FunctionCallInfo fcinfo, int number, bool *no_wait);

/* False when it is NULL. */
extern bool lf_argument_holder(FunctionCallInfo fcinfo, int number, LfHolder *holder);

/* NULL when it is NULL. */
extern char *lf_argument_text(FunctionCallInfo fcinfo, int number);

extern Datum lf_interval_datum(int64 microseconds);

#endif							/* LF_BASE_ARGUMENTS_H */
