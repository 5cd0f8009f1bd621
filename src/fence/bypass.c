/*
 * bypass.c
 *		A transaction that writes past the guards, and says so in the audit.
 *
 * Runs in backends.  For superusers, and roles that were granted SET on the
 * parameter.  Counts only in the transaction that set it, like lease_fence.token.
 *
 * What was bypassed is part of the transaction: one row a statement, inserted
 * before the commit, gone with a rollback (to a savepoint too).
 */
#include "postgres.h"

#include "access/xact.h"
#include "audit/audit.h"
#include "base/compat.h"
#include "fence/bypass.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

typedef struct BypassSetting
{
	LocalTransactionId lxid;
	char		reason[FLEXIBLE_ARRAY_MEMBER];
} BypassSetting;

/*
 * Rows of one statement, table and operation.  A statement is what the client
 * sent: what triggers and functions run on the way advances the command counter,
 * and would make a row of the audit of each row.
 */
typedef struct Bypassed
{
	struct Bypassed *next;
	SubTransactionId subid;
	TimestampTz started;
	Oid			relation;
	const char *operation;		/* a constant */
	char	   *reason;
	char	   *statement;
	int64		rows;
} Bypassed;

static char *bypass_text = NULL;
static BypassSetting *bypass_setting = NULL;
static Bypassed *bypassed = NULL;	/* in TopTransactionContext */

static bool
check_bypass(char **newval, void **extra, GucSource source)
{
	BypassSetting *setting = lf_guc_malloc(offsetof(BypassSetting, reason) +
										   strlen(*newval) + 1);

	if (setting == NULL)
		return false;
	setting->lxid = MyProc != NULL ? LF_MY_LXID : InvalidLocalTransactionId;
	strcpy(setting->reason, *newval);
	*extra = setting;
	return true;
}

static void
assign_bypass(const char *newval, void *extra)
{
	bypass_setting = extra;
}

bool
lf_bypass_active(void)
{
	return bypass_setting != NULL && bypass_setting->reason[0] != '\0' &&
		bypass_setting->lxid == LF_MY_LXID &&
		bypass_setting->lxid != InvalidLocalTransactionId;
}

/* The newest come first: behind those of a statement there are only older ones. */
static Bypassed *
find_bypassed(Bypassed *list, TimestampTz started, SubTransactionId subid,
			  Oid relation, const char *operation, const char *reason)
{
	for (Bypassed *one = list; one != NULL && one->started == started; one = one->next)
	{
		if (one->relation == relation && one->operation == operation &&
			one->subid == subid && strcmp(one->reason, reason) == 0)
			return one;
	}
	return NULL;
}

void
lf_bypass_note(Oid relation, const char *operation)
{
	Bypassed   *one = find_bypassed(bypassed, GetCurrentStatementStartTimestamp(),
									GetCurrentSubTransactionId(), relation, operation,
									bypass_setting->reason);
	MemoryContext saved;

	if (one != NULL)
	{
		one->rows++;
		return;
	}
	saved = MemoryContextSwitchTo(TopTransactionContext);
	one = palloc0(sizeof(Bypassed));
	one->subid = GetCurrentSubTransactionId();
	one->started = GetCurrentStatementStartTimestamp();
	one->relation = relation;
	one->operation = operation;
	one->reason = pstrdup(bypass_setting->reason);
	one->statement = debug_query_string == NULL ? NULL : pstrdup(debug_query_string);
	one->rows = 1;
	one->next = bypassed;
	bypassed = one;
	MemoryContextSwitchTo(saved);
}

static Bypassed *
reversed(Bypassed *list)
{
	Bypassed   *result = NULL;

	while (list != NULL)
	{
		Bypassed   *next = list->next;

		list->next = result;
		result = list;
		list = next;
	}
	return result;
}

/* In the order in which they were written.  Their snapshots are gone by now. */
static void
write_bypassed(void)
{
	if (bypassed == NULL)
		return;
	bypassed = reversed(bypassed);
	PushActiveSnapshot(GetLatestSnapshot());
	for (Bypassed *one = bypassed; one != NULL; one = one->next)
	{
		LfRejection rejection;

		memset(&rejection, 0, sizeof(rejection));
		rejection.action = LF_ACTION_BYPASSED;
		rejection.reason = LF_REASON_BYPASS;
		rejection.relation = one->relation;
		rejection.operation = one->operation;
		rejection.over_for = -1;
		lf_audit_bypassed(&rejection, one->reason, one->statement, one->rows);
	}
	PopActiveSnapshot();
	bypassed = NULL;
}

static void
end_of_transaction(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			write_bypassed();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			bypassed = NULL;
			break;
		default:
			break;
	}
}

/* Rows that a subtransaction of the same statement leaves to its parent. */
static bool
merge(Bypassed *one)
{
	Bypassed   *older = find_bypassed(one->next, one->started, one->subid,
									  one->relation, one->operation, one->reason);

	if (older != NULL)
		older->rows += one->rows;
	return older != NULL;
}

static void
follow_savepoint(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	Bypassed  **link = &bypassed;

	if (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB)
		return;
	while (*link != NULL)
	{
		if ((*link)->subid == mySubid && event == SUBXACT_EVENT_ABORT_SUB)
		{
			*link = (*link)->next;
			continue;
		}
		if ((*link)->subid == mySubid)
		{
			(*link)->subid = parentSubid;
			if (merge(*link))
			{
				*link = (*link)->next;
				continue;
			}
		}
		link = &(*link)->next;
	}
}

void
lf_bypass_install(void)
{
	DefineCustomStringVariable("lease_fence.bypass",
							   "Reason for which this transaction writes past the guards.",
							   "Counts only in the transaction that sets it: use SET LOCAL. Each statement is in the audit, with a count of rows.",
							   &bypass_text,
							   "",
							   PGC_SUSET,
							   0,
							   check_bypass, assign_bypass, NULL);
	RegisterXactCallback(end_of_transaction, NULL);
	RegisterSubXactCallback(follow_savepoint, NULL);
}
