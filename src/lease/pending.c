/*
 * pending.c
 *		The requests that the worker has taken in, and what is common to all.
 *
 * Runs in the database's worker.  Owns the list of them, in the order of their
 * tickets: the other files of the queue walk it, and add and remove nothing but
 * by the functions here.
 *
 * What must end well: a session that withdraws at any moment (what was
 * committed for it stays until it is published, what was not is abandoned).
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/point.h"
#include "lease/pending.h"
#include "lease/remote.h"
#include "utils/memutils.h"

static dlist_head pending_list = DLIST_STATIC_INIT(pending_list);
static uint64 *known_tickets = NULL;	/* last one taken in, by backend slot */

/* This pass has let go of a resource that an earlier request may wait for. */
static bool look_again = false;

dlist_head *
lf_pending_all(void)
{
	return &pending_list;
}

void
lf_pending_begin_pass(void)
{
	look_again = false;
}

void
lf_pending_look_again(void)
{
	look_again = true;
}

bool
lf_pending_is_to_look_again(void)
{
	return look_again;
}

/* ---- taking in ---- */

LfRequestName *
lf_pending_names(LfPending *pending)
{
	return (LfRequestName *) dsm_segment_address(pending->segment);
}

static bool
attach_names(LfPending *pending)
{
	if (pending->request.count == 1)
		return true;
	pending->segment = dsm_attach(pending->request.names);
	if (pending->segment != NULL)
		dsm_pin_mapping(pending->segment);
	return pending->segment != NULL;
}

static LfCoordinator
coordinator_of(const LfRequest *request, const LfLock *lock)
{
	if (OidIsValid(lock->server))
		return LF_COORDINATOR_REDIS;
	return request->kind == LF_REQUEST_IMPORT ? LF_COORDINATOR_EXTERNAL :
		LF_COORDINATOR_EMBEDDED;
}

static void
describe_grant(LfPending *pending, LfMint *mint, const LfResource *resource,
			   const LfLock *lock, int64 ttl)
{
	const LfRequest *request = &pending->request;
	LfGrant    *grant = &mint->grant;

	grant->resource = *resource;
	grant->holder = request->holder;
	grant->ticket = request->ticket;
	grant->state.role = request->role;
	grant->state.scope = request->scope;
	grant->state.ttl = ttl;
	grant->state.coordinator = coordinator_of(request, lock);
	if (grant->state.coordinator == LF_COORDINATOR_EXTERNAL)
		grant->of.number = request->number;
	grant->state.adopted = request->kind == LF_REQUEST_ADOPT;
	grant->state.watchdog = request->watchdog;
	grant->state.owner = request->scope == LF_SCOPE_DETACHED ? -1 : pending->slot;
	grant->owner_pid = request->scope == LF_SCOPE_DETACHED ? 0 : request->pid;
}

/* Keeps the list in the order of tickets: collected in that of backends. */
static void
insert_by_ticket(LfPending *pending)
{
	dlist_iter	iter;

	dlist_foreach(iter, &pending_list)
	{
		if (lf_pending_of(iter.cur)->request.ticket > pending->request.ticket)
		{
			dlist_insert_before(iter.cur, &pending->node);
			return;
		}
	}
	dlist_push_tail(&pending_list, &pending->node);
}

static void
take_in(int slot, const LfRequest *request)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "lease_fence request",
												  ALLOCSET_SMALL_SIZES);
	LfPending  *pending = MemoryContextAllocZero(context, sizeof(LfPending));

	pending->context = context;
	pending->slot = slot;
	pending->request = *request;
	pending->look_for_cycle = lf_clock_after(request->asked_at,
											 DeadlockTimeout * INT64CONST(1000));
	pending->mints = MemoryContextAllocZero(context, request->count * sizeof(LfMint));
	if (!attach_names(pending))
	{
		MemoryContextDelete(context);	/* it was withdrawn */
		return;
	}
	pending->remotes = MemoryContextAllocZero(context, request->count * sizeof(LfRemote));
	for (int i = 0; i < request->count; i++)
	{
		const LfRequestName *name = pending->segment == NULL ? NULL :
			&lf_pending_names(pending)[i];
		const LfLock *lock = name == NULL ? &request->lock : &name->lock;

		describe_grant(pending, &pending->mints[i],
					   name == NULL ? &request->resource : &name->resource,
					   lock, name == NULL ? request->ttl : name->ttl);
		lf_remote_describe(pending, i, lock);
	}
	insert_by_ticket(pending);
	LF_POINT("request-taken");
}

void
lf_pending_take_in(void)
{
	LfRequest	request;
	int			slot = -1;

	if (known_tickets == NULL)
		known_tickets = MemoryContextAllocZero(TopMemoryContext,
											   MaxBackends * sizeof(uint64));
	while (lf_request_next(MyDatabaseId, known_tickets, &slot, &request))
	{
		known_tickets[slot] = request.ticket;
		take_in(slot, &request);
	}
}

/* ---- dropping ---- */

void
lf_pending_forget(LfPending *pending)
{
	dlist_delete(&pending->node);
	if (pending->segment != NULL)
		dsm_detach(pending->segment);
	MemoryContextDelete(pending->context);
}

void
lf_pending_abandon(LfPending *pending)
{
	/* an earlier request may wait for what it lets go */
	if (pending->reserved > 0)
		look_again = true;
	for (int i = 0; i < pending->request.count; i++)
	{
		lf_mint_abandon(&pending->mints[i]);
		lf_remote_give_back(&pending->remotes[i]);
	}
	pending->reserved = 0;
	pending->ready = false;
	pending->drain_waited = false;
}

void
lf_pending_refuse(LfPending *pending, LfAnswer answer, const char *message)
{
	lf_pending_abandon(pending);
	lf_request_answer(pending->slot, pending->request.ticket, answer, 0, message);
	lf_pending_forget(pending);
}

void
lf_pending_settle(LfPending *pending, LfAnswer answer, int64 token)
{
	lf_pending_abandon(pending);
	lf_request_answer(pending->slot, pending->request.ticket, answer, token, NULL);
	lf_pending_forget(pending);
}

bool
lf_pending_is_open(LfPending *pending)
{
	return lf_request_is_open(pending->slot, pending->request.ticket);
}

void
lf_pending_drop_withdrawn(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &pending_list)
	{
		LfPending  *pending = lf_pending_of(iter.cur);

		/* What is committed must be published all the same. */
		if (!pending->committed && !lf_pending_is_open(pending))
		{
			lf_pending_abandon(pending);
			lf_pending_forget(pending);
		}
	}
}
