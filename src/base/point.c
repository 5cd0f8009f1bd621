/*
 * point.c
 *		Named points in the code where a test can stop or kill a process.
 *
 * Empty but in a build for tests.  Runs in every process.
 */
#include "postgres.h"

#include "base/point.h"

#ifdef LF_TEST_HOOKS

#include <signal.h>

#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/wait_event.h"

static char *test_point = NULL;

void
lf_point_define_setting(void)
{
	DefineCustomStringVariable("lease_fence.test_point",
							   "Points in the code and what happens there: 'point=action,...'.",
							   "Only in a build for tests; see base/point.h.",
							   &test_point,
							   "",
							   PGC_SIGHUP,
							   0,
							   NULL, NULL, NULL);
}

/* Is this entry about that point, in this process?  Then its action, up to the comma. */
static const char *
action_of(const char *entry, const char *name)
{
	Size		length = strlen(name);
	char	   *end;
	unsigned long number;

	if (strncmp(entry, name, length) != 0)
		return NULL;
	entry += length;
	if (*entry == '/')
	{
		number = strtoul(entry + 1, &end, 10);
		if (number != (unsigned long) MyProcPid && number != MyDatabaseId)
			return NULL;
		entry = end;
	}
	return *entry == '=' ? entry + 1 : NULL;
}

/* Does the setting say that this is to be done at this point? */
static bool
is_to(const char *what, const char *name)
{
	Size		length = strlen(what);

	for (const char *entry = test_point; entry != NULL && *entry != '\0';)
	{
		const char *action = action_of(entry, name);

		if (action != NULL && strncmp(action, what, length) == 0 &&
			(action[length] == '\0' || action[length] == ','))
			return true;
		entry = strchr(entry, ',');
		if (entry != NULL)
			entry++;
	}
	return false;
}

static void
reload(void)
{
	if (!ConfigReloadPending)
		return;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
}

static void
wait_here(const char *name)
{
	elog(LOG, "lease_fence: process %d waits at point %s", MyProcPid, name);
	while (is_to("wait", name))
	{
		CHECK_FOR_INTERRUPTS();
		reload();
		WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10, PG_WAIT_EXTENSION);
	}
}

void
lf_point_reached(const char *name)
{
	/* a worker may be in the middle of a pass since before the setting changed */
	if (MyBackendType == B_BG_WORKER)
		reload();
	if (test_point == NULL || test_point[0] == '\0')
		return;
	if (is_to("wait", name))
		wait_here(name);
	else if (is_to("error", name))
		elog(ERROR, "lease_fence: error at point %s", name);
	else if (is_to("exit", name))
		proc_exit(1);
	else if (is_to("kill", name))
		kill(MyProcPid, SIGKILL);
}

#endif							/* LF_TEST_HOOKS */
