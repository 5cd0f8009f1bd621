/*
 * settings.c
 *		Defines the settings lease_fence.*.
 *
 * Runs once in the postmaster, from _PG_init.  A setting's context is decided
 * by who reads it: what the worker alone reads is sighup, sizes of shared
 * memory are postmaster.
 */
#include "postgres.h"

#include <limits.h>

#include "base/settings.h"
#include "utils/guc.h"

char	   *lf_databases = NULL;
int			lf_drain_timeout = 2000;
int			lf_audit_timeout = 2000;
int			lf_audit_row = LF_AUDIT_ROW_KEY;
int			lf_idle_limit = 300000;
int			lf_max_leases = 10000;
int			lf_max_resources_per_transaction = 1000;

static const struct config_enum_entry audit_row_options[] = {
	{"key", LF_AUDIT_ROW_KEY, false},
	{"full", LF_AUDIT_ROW_FULL, false},
	{NULL, 0, false}
};

void
lf_settings_define(void)
{
	DefineCustomStringVariable("lease_fence.databases",
							   "Databases whose worker starts with the server.",
							   "Names separated by commas. In every other database the first session that needs the worker starts it.",
							   &lf_databases,
							   "",
							   PGC_SIGHUP,
							   GUC_LIST_INPUT,
							   NULL, NULL, NULL);

	DefineCustomIntVariable("lease_fence.drain_timeout",
							"How long a new grant waits for writers under a grant that lapsed or was revoked, before their sessions are terminated.",
							NULL,
							&lf_drain_timeout,
							2000, 0, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("lease_fence.audit_timeout",
							"How long a rejected write waits for its audit row to be durable, before it goes to the server log instead.",
							NULL,
							&lf_audit_timeout,
							2000, 0, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomEnumVariable("lease_fence.audit_row",
							 "What the audit keeps of a row whose write was rejected.",
							 "\"key\" keeps its primary key, \"full\" also what the stale writer wanted to write.",
							 &lf_audit_row,
							 LF_AUDIT_ROW_KEY,
							 audit_row_options,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("lease_fence.idle_limit",
							"How long an idle session's leases of scope \"session\" are renewed.",
							NULL,
							&lf_idle_limit,
							300000, 1, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("lease_fence.max_leases",
							"How many leases can be live at once, in all databases together.",
							NULL,
							&lf_max_leases,
							10000, 16, 10000000,
							PGC_POSTMASTER,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("lease_fence.max_resources_per_transaction",
							"Under how many grants one transaction can write.",
							"Each takes one place in the lock table, which all sessions share (max_locks_per_transaction).",
							&lf_max_resources_per_transaction,
							1000, 1, INT_MAX,
							PGC_SUSET,
							0,
							NULL, NULL, NULL);
}
