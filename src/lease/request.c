/*
 * request.c
 *		What sessions ask of their database's worker: one shared place a backend.
 *
 * Runs in backends and workers.  What must end well: a session that is
 * cancelled or dies at any moment (its late answer must not meet its next
 * request: tickets are never used twice), a worker that dies over a request.
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/shmem.h"
#include "lease/request.h"
#include "storage/shmem.h"

typedef struct LfRequests
{
	uint64		last_ticket;
	LfRequest	places[FLEXIBLE_ARRAY_MEMBER];
} LfRequests;

static LfRequests *requests = NULL;

Size
lf_request_shmem_size(void)
{
	return add_size(offsetof(LfRequests, places),
					mul_size(MaxBackends, sizeof(LfRequest)));
}

void
lf_request_shmem_init(void)
{
	bool		there;

	requests = ShmemInitStruct("lease_fence requests", lf_request_shmem_size(), &there);
	if (!there)
		memset(requests, 0, lf_request_shmem_size());
}

static void
lock(LWLockMode mode)
{
	LWLockAcquire(lf_lwlock(LF_LOCK_REQUESTS), mode);
}

static void
unlock(void)
{
	LWLockRelease(lf_lwlock(LF_LOCK_REQUESTS));
}

void
lf_request_submit(LfRequest *request)
{
	LfRequest  *place = &requests->places[lf_backend_slot()];

	request->state = LF_REQUEST_QUEUED;
	request->database = MyDatabaseId;
	request->pid = MyProcPid;
	request->asked_at = lf_clock_now();
	lock(LW_EXCLUSIVE);
	request->ticket = ++requests->last_ticket;
	*place = *request;
	unlock();
}

void
lf_request_look(LfRequest *copy)
{
	lock(LW_SHARED);
	*copy = requests->places[lf_backend_slot()];
	unlock();
}

void
lf_request_retry(void)
{
	LfRequest  *place = &requests->places[lf_backend_slot()];

	lock(LW_EXCLUSIVE);
	if (place->state == LF_REQUEST_BLOCKED)
		place->state = LF_REQUEST_WORKING;
	unlock();
}

bool
lf_request_withdraw(LfRequest *last)
{
	LfRequest  *place = &requests->places[lf_backend_slot()];

	lock(LW_EXCLUSIVE);
	*last = *place;
	place->state = LF_REQUEST_FREE;
	unlock();
	return last->state == LF_REQUEST_ANSWERED;
}

int
lf_request_add_idle(int *pids, int count, int64 longer)
{
	LfClock		now = lf_clock_now();

	lock(LW_SHARED);
	for (int i = 0; i < MaxBackends && count < MaxBackends; i++)
	{
		const LfRequest *place = &requests->places[i];

		if (place->state != LF_REQUEST_FREE && now - place->asked_at > longer)
			pids[count++] = place->pid;
	}
	unlock();
	return count;
}

int
lf_request_count(const LfResource *resource)
{
	int			count = 0;

	lock(LW_SHARED);
	for (int i = 0; i < MaxBackends; i++)
	{
		const LfRequest *place = &requests->places[i];

		if (place->state != LF_REQUEST_FREE && place->state != LF_REQUEST_ANSWERED &&
			place->kind == LF_REQUEST_ACQUIRE &&
			lf_resource_equal(&place->resource, resource))
			count++;
	}
	unlock();
	return count;
}

bool
lf_request_next(Oid database, const uint64 *known, int *slot, LfRequest *copy)
{
	bool		found = false;

	lock(LW_SHARED);
	while (!found && ++(*slot) < MaxBackends)
	{
		const LfRequest *place = &requests->places[*slot];

		if (place->database == database && place->state != LF_REQUEST_FREE &&
			place->state != LF_REQUEST_ANSWERED &&
			(known == NULL || known[*slot] != place->ticket))
		{
			*copy = *place;
			found = true;
		}
	}
	unlock();
	return found;
}

/* Caller holds the lock.  NULL if somebody withdrew it. */
static LfRequest *
open_place(int slot, uint64 ticket)
{
	LfRequest  *place = &requests->places[slot];

	if (place->ticket != ticket || place->state == LF_REQUEST_FREE ||
		place->state == LF_REQUEST_ANSWERED)
		return NULL;
	return place;
}

LfRequestState
lf_request_state(int slot, uint64 ticket)
{
	LfRequestState state;

	lock(LW_SHARED);
	state = open_place(slot, ticket) != NULL ? requests->places[slot].state : LF_REQUEST_FREE;
	unlock();
	return state;
}

bool
lf_request_is_open(int slot, uint64 ticket)
{
	return lf_request_state(slot, ticket) != LF_REQUEST_FREE;
}

bool
lf_request_set_working(int slot, uint64 ticket)
{
	LfRequest  *place;

	lock(LW_EXCLUSIVE);
	place = open_place(slot, ticket);
	if (place != NULL)
		place->state = LF_REQUEST_WORKING;
	unlock();
	return place != NULL;
}

bool
lf_request_set_blocked(int slot, uint64 ticket, int64 token, LfBlocker blocker)
{
	LfRequest  *place;
	bool		told_already = false;

	lock(LW_EXCLUSIVE);
	place = open_place(slot, ticket);
	if (place != NULL)
	{
		told_already = place->state == LF_REQUEST_BLOCKED &&
			place->blocked_token == token;
		place->state = LF_REQUEST_BLOCKED;
		place->blocked_token = token;
		place->blocker = blocker;
	}
	unlock();
	if (place != NULL && !told_already)
		lf_backend_wake(slot);
	return place != NULL;
}

void
lf_request_set_nonce(int slot, uint64 ticket, uint64 nonce)
{
	LfRequest  *place;

	lock(LW_EXCLUSIVE);
	place = open_place(slot, ticket);
	if (place != NULL)
		place->nonce = nonce;
	unlock();
}

void
lf_request_set_elsewhere(int slot, uint64 ticket, int64 left)
{
	LfRequest  *place;

	lock(LW_EXCLUSIVE);
	place = open_place(slot, ticket);
	if (place != NULL)
	{
		place->elsewhere = true;
		place->left = left;
	}
	unlock();
}

bool
lf_request_answer(int slot, uint64 ticket, LfAnswer answer, int64 token,
				  const char *message)
{
	LfRequest  *place;

	lock(LW_EXCLUSIVE);
	place = open_place(slot, ticket);
	if (place != NULL)
	{
		place->state = LF_REQUEST_ANSWERED;
		place->answer = answer;
		place->token = token;
		strlcpy(place->message, message == NULL ? "" : message, sizeof(place->message));
	}
	unlock();
	if (place != NULL)
		lf_backend_wake(slot);
	return place != NULL;
}

void
lf_request_fail_unfinished(Oid database, void (*failed) (const LfRequest *request))
{
	LfRequest	copy;
	int			slot = -1;

	while (lf_request_next(database, NULL, &slot, &copy))
	{
		if (copy.state == LF_REQUEST_QUEUED && copy.nonce == 0)
			continue;
		failed(&copy);
		lf_request_answer(slot, copy.ticket, LF_ANSWER_FAILED, 0,
						  "the worker was restarted meanwhile");
	}
}
