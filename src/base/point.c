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
							   "A point in the code and what happens there: 'point=action'.",
							   "The action is wait, error, exit or kill. Only in a build for tests.",
							   &test_point,
							   "",
							   PGC_SIGHUP,
							   0,
							   NULL, NULL, NULL);
}

/* What the setting says of this point; NULL: nothing. */
static const char *
action_at(const char *name)
{
	Size		length = strlen(name);

	if (test_point == NULL || strncmp(test_point, name, length) != 0 ||
		test_point[length] != '=')
		return NULL;
	return test_point + length + 1;
}

static void
wait_here(const char *name)
{
	elog(LOG, "lease_fence: process %d waits at point %s", MyProcPid, name);
	while (action_at(name) != NULL && strcmp(action_at(name), "wait") == 0)
	{
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10, PG_WAIT_EXTENSION);
	}
}

void
lf_point_reached(const char *name)
{
	const char *action = action_at(name);

	if (action == NULL)
		return;
	if (strcmp(action, "wait") == 0)
		wait_here(name);
	else if (strcmp(action, "error") == 0)
		elog(ERROR, "lease_fence: error at point %s", name);
	else if (strcmp(action, "exit") == 0)
		proc_exit(1);
	else if (strcmp(action, "kill") == 0)
		kill(MyProcPid, SIGKILL);
}

#endif							/* LF_TEST_HOOKS */
