/*
 * result.h
 *		The row that a function of ours returns.
 */
#ifndef LF_BASE_RESULT_H
#define LF_BASE_RESULT_H

#include "fmgr.h"

/* A value of the row type that the function's OUT arguments make. */
extern Datum lf_result_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls);

#endif							/* LF_BASE_RESULT_H */
