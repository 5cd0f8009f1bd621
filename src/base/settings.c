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

#define NINETY_DAYS (90 * 86400)

bool		lf_coordinators = true;
int			lf_enforce = LF_ENFORCE_ON;
int			lf_audit_retention = NINETY_DAYS;
int			lf_grants_retention = NINETY_DAYS;
int			lf_operations_retention = NINETY_DAYS;
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

static const struct config_enum_entry enforce_options[] = {
	{"on", LF_ENFORCE_ON, false},
	{"observe", LF_ENFORCE_OBSERVE, false},
	{NULL, 0, false}
};

static void
define_retention(const char *name, const char *description, int *variable)
{
	DefineCustomIntVariable(name, description,
							"The worker purges what is older.",
							variable,
							NINETY_DAYS, 1, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_S,
							NULL, NULL, NULL);
}

void
lf_settings_define(void)
{
	DefineCustomEnumVariable("lease_fence.enforce",
							 "Whether guards refuse stale writes: the emergency switch for all of them.",
							 "\"observe\" lets every write through and records what would have been refused.",
							 &lf_enforce,
							 LF_ENFORCE_ON,
							 enforce_options,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("lease_fence.coordinators",
							 "Whether workers contact lock services.",
							 "Off, leases under a profile of theirs cannot be had: for copies of a database that must not touch production's locks.",
							 &lf_coordinators,
							 true,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	define_retention("lease_fence.audit_retention",
					 "How long rows of rejected_writes are kept.", &lf_audit_retention);
	define_retention("lease_fence.grants_retention",
					 "How long ended grants are kept.", &lf_grants_retention);
	define_retention("lease_fence.operations_retention",
					 "How long operation keys are remembered.", &lf_operations_retention);

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
