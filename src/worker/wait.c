/*
 * wait.c
 *		How a worker sleeps.
 *
 * Runs in workers.  The set of what is waited for is made anew when there are
 * other sockets than before; while they are the same only what they are waited
 * for may change.  Sockets are known by serial numbers: the number of a file is
 * used again at once.
 */
#include "postgres.h"

#include "base/compat.h"
#include "coordinator/coordinator.h"
#include "storage/latch.h"
#include "worker/wait.h"

/*
 * A server that is near has answered a beat on both of its connections by then, in
 * milliseconds: one wake-up does for both answers.  An event waits no longer either.
 */
#define BEATS_TAKE 2

static WaitEventSet *set = NULL;
static LfSocket known[LF_MAX_SOCKETS];
static int	known_positions[LF_MAX_SOCKETS];
static int	known_count = 0;
static uint32 wait_event = 0;

static uint32
events_of(const LfSocket *socket)
{
	return socket->to_write ? WL_SOCKET_READABLE | WL_SOCKET_WRITEABLE : WL_SOCKET_READABLE;
}

static bool
are_known(const LfSocket *sockets, int count)
{
	if (set == NULL || count != known_count)
		return false;
	for (int i = 0; i < count; i++)
	{
		if (sockets[i].serial != known[i].serial)
			return false;
	}
	return true;
}

static void
make_set(const LfSocket *sockets, int count)
{
	if (set != NULL)
		FreeWaitEventSet(set);
	set = lf_create_wait_set(count + 2);
	AddWaitEventToSet(set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	for (int i = 0; i < count; i++)
	{
		known_positions[i] = AddWaitEventToSet(set, events_of(&sockets[i]),
											   sockets[i].fd, NULL, NULL);
		known[i] = sockets[i];
	}
	known_count = count;
}

void
lf_wait(long milliseconds)
{
	LfSocket	sockets[LF_MAX_SOCKETS];
	int			count = lf_coordinator_sockets(sockets);
	WaitEvent	event;
	bool		writing = false;

	if (!are_known(sockets, count))
		make_set(sockets, count);
	for (int i = 0; i < count; i++)
	{
		if (sockets[i].to_write != known[i].to_write)
			ModifyWaitEvent(set, known_positions[i], events_of(&sockets[i]), NULL);
		known[i] = sockets[i];
		writing = writing || sockets[i].to_write;
	}
	if (!writing && lf_coordinator_only_beats())
		WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
				  Min(milliseconds, BEATS_TAKE), lf_wait_event(&wait_event, "LeaseFenceWorker"));
	else
		WaitEventSetWait(set, milliseconds, &event, 1, lf_wait_event(&wait_event, "LeaseFenceWorker"));
	ResetLatch(MyLatch);
}
