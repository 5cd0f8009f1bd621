/*
 * errors.c
 *		Names of the reasons of a rejection, as the audit shows them.
 */
#include "postgres.h"

#include "base/errors.h"

const char *
lf_reason_name(LfReason reason)
{
	switch (reason)
	{
		case LF_REASON_SUPERSEDED:
			return "superseded";
		case LF_REASON_LAPSED:
			return "lapsed";
		case LF_REASON_RELEASED:
			return "released";
		case LF_REASON_REVOKED:
			return "revoked";
		case LF_REASON_MISSING:
			return "missing";
		case LF_REASON_UNKNOWN:
			return "unknown";
		case LF_REASON_WRONG_ROLE:
			return "wrong role";
		case LF_REASON_SNAPSHOT:
			return "snapshot older than the grant";
		case LF_REASON_NO_RESOURCE:
			return "no resource";
		case LF_REASON_TRUNCATE:
			return "truncate";
		case LF_REASON_BYPASS:
			return "bypass";
	}
	return "?";					/* keep the compiler quiet */
}
