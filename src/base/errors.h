/*
 * errors.h
 *		SQLSTATE class LF, and the reasons of a rejection.
 */
#ifndef LF_BASE_ERRORS_H
#define LF_BASE_ERRORS_H

#include "utils/elog.h"

#define LF_ERRCODE_SUPERSEDED			MAKE_SQLSTATE('L','F','0','0','1')
#define LF_ERRCODE_OVER					MAKE_SQLSTATE('L','F','0','0','2')
#define LF_ERRCODE_MISSING				MAKE_SQLSTATE('L','F','0','0','3')
#define LF_ERRCODE_UNKNOWN				MAKE_SQLSTATE('L','F','0','0','4')
#define LF_ERRCODE_NOT_HOLDER			MAKE_SQLSTATE('L','F','0','0','5')
#define LF_ERRCODE_WRONG_ROLE			MAKE_SQLSTATE('L','F','0','0','6')
#define LF_ERRCODE_OWN_WAY				MAKE_SQLSTATE('L','F','0','0','7')
#define LF_ERRCODE_OPERATION_REUSED		MAKE_SQLSTATE('L','F','0','1','0')
#define LF_ERRCODE_COORDINATOR			MAKE_SQLSTATE('L','F','0','2','0')
#define LF_ERRCODE_WORKER				MAKE_SQLSTATE('L','F','0','2','1')

/* Why a write was rejected; the audit's column "reason". */
typedef enum LfReason
{
	LF_REASON_SUPERSEDED,
	LF_REASON_LAPSED,
	LF_REASON_RELEASED,
	LF_REASON_REVOKED,
	LF_REASON_MISSING,
	LF_REASON_UNKNOWN,
	LF_REASON_WRONG_ROLE,
	LF_REASON_SNAPSHOT,			/* older than the grant */
	LF_REASON_NO_RESOURCE,		/* NULL in a template's column */
	LF_REASON_TRUNCATE,			/* TRUNCATE of a guarded table */
	LF_REASON_BYPASS
} LfReason;

extern const char *lf_reason_name(LfReason reason);

#endif							/* LF_BASE_ERRORS_H */
