/*
 * queue.c
 *		The worker's side of the requests: who gets which lease, and when.
 *
 * Runs in the database's worker.  First come first served: pending requests are
 * kept in the order of their tickets, and each pass gives every one of them, in
 * that order, what it can get now.  A request for several resources reserves
 * them one after the other, in byte order, and mints when it has all.
 *
 * What must end well: a session that withdraws at any moment (what was
 * committed for it is published as over, what was not is abandoned), a mint
 * that fails (its neighbours in the batch are tried alone), a standby that does
 * not answer (the others' leases go on), a cycle of waits (one of them fails).
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/catalog.h"
#include "base/database.h"
#include "base/point.h"
#include "base/shmem.h"
#include "base/stat.h"
#include "base/transaction.h"
#include "fence/epoch.h"
#include "lease/pending.h"
#include "lease/queue.h"
#include "access/xlog.h"
#include "executor/spi.h"
#include "catalog/pg_type.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

/* How soon to look again at what nobody wakes us for, in microseconds. */
#define RETRY_SOON		INT64CONST(10000)
#define RETRY_STANDBY	INT64CONST(2000)

/* How long entries may take to make room that are over by then. */
#define ROOM_LIMIT		INT64CONST(200000)

static bool room_is_wanted = false;
static dlist_head pending_list = DLIST_STATIC_INIT(pending_list);
static uint64 *known_tickets = NULL;	/* last one taken in, by backend slot */

/* This pass has let go of a resource that an earlier request may wait for. */
static bool look_again = false;

static LfPending *
pending_of(dlist_node *node)
{
	return dlist_container(LfPending, node, node);
}

bool
lf_queue_is_asked(void)
{
	LfRequest	request;
	int			slot = -1;

	return !dlist_is_empty(&pending_list) ||
		lf_request_next(MyDatabaseId, &slot, &request);
}

bool
lf_queue_is_empty(void)
{
	return dlist_is_empty(&pending_list);
}

/* ---- taking in and dropping ---- */

static LfRequestName *
names_of(LfPending *pending)
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

static void
describe_grant(LfPending *pending, LfMint *mint, const LfResource *resource)
{
	const LfRequest *request = &pending->request;
	LfGrant    *grant = &mint->grant;

	grant->resource = *resource;
	grant->holder = request->holder;
	grant->ticket = request->ticket;
	grant->number = request->kind == LF_REQUEST_IMPORT ? request->number : -1;
	grant->state.role = request->role;
	grant->state.scope = request->scope;
	grant->state.ttl = request->ttl;
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
		if (pending_of(iter.cur)->request.ticket > pending->request.ticket)
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
	for (int i = 0; i < request->count; i++)
		describe_grant(pending, &pending->mints[i],
					   pending->segment == NULL ? &request->resource :
					   &names_of(pending)[i].resource);
	insert_by_ticket(pending);
}

static void
take_in_new(void)
{
	LfRequest	request;
	int			slot = -1;

	if (known_tickets == NULL)
		known_tickets = MemoryContextAllocZero(TopMemoryContext,
											   MaxBackends * sizeof(uint64));
	while (lf_request_next(MyDatabaseId, &slot, &request))
	{
		if (request.ticket == known_tickets[slot])
			continue;
		known_tickets[slot] = request.ticket;
		take_in(slot, &request);
	}
}

static void
forget(LfPending *pending)
{
	dlist_delete(&pending->node);
	if (pending->segment != NULL)
		dsm_detach(pending->segment);
	MemoryContextDelete(pending->context);
}

static void
abandon_mints(LfPending *pending)
{
	for (int i = 0; i < pending->request.count; i++)
		lf_mint_abandon(&pending->mints[i]);
	pending->reserved = 0;
	pending->ready = false;
}

static void
refuse(LfPending *pending, LfAnswer answer, const char *message)
{
	if (pending->reserved > 0)
		look_again = true;
	abandon_mints(pending);
	lf_request_answer(pending->slot, pending->request.ticket, answer, 0, message);
	forget(pending);
}

/* With the token under which the asker has written itself. */
static void
refuse_own_way(LfPending *pending, int64 token)
{
	abandon_mints(pending);
	lf_request_answer(pending->slot, pending->request.ticket, LF_ANSWER_OWN_WAY, token, NULL);
	forget(pending);
}

static bool
is_open(LfPending *pending)
{
	return lf_request_is_open(pending->slot, pending->request.ticket);
}

static void
drop_withdrawn(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &pending_list)
	{
		LfPending  *pending = pending_of(iter.cur);

		/* What is committed must be published all the same. */
		if (!pending->committed && !is_open(pending))
		{
			abandon_mints(pending);
			forget(pending);
		}
	}
}

/* ---- whose turn is it? ---- */

static LfPending *
reserved_by(const LfResource *resource, const LfPending *except)
{
	dlist_iter	iter;

	dlist_foreach(iter, &pending_list)
	{
		LfPending  *pending = pending_of(iter.cur);

		if (pending == except)
			continue;
		for (int i = 0; i < pending->reserved; i++)
		{
			if (lf_resource_equal(&pending->mints[i].grant.resource, resource))
				return pending;
		}
	}
	return NULL;
}

/*
 * Does a request that came before wait for this resource?  It may have become
 * free in the middle of a pass, after that request was looked at.
 */
static bool
waited_for_before(const LfResource *resource, const LfPending *pending)
{
	dlist_iter	iter;

	dlist_foreach(iter, &pending_list)
	{
		LfPending  *other = pending_of(iter.cur);

		if (other == pending)
			return false;
		if (other->request.kind == LF_REQUEST_ACQUIRE &&
			other->reserved < other->request.count &&
			lf_resource_equal(&other->mints[other->reserved].grant.resource, resource))
			return true;
	}
	return false;
}

/*
 * A detached request that names the present holder takes its own lease back: a
 * worker that was restarted, whose frozen former self must be fenced.
 */
static bool
takes_over(const LfPending *pending, const LfResource *resource)
{
	LfGrant		present;

	return pending->request.scope == LF_SCOPE_DETACHED &&
		lf_entry_read(resource, &present) &&
		present.state.role == pending->request.role &&
		lf_holder_equal(&present.holder, &pending->request.holder);
}

typedef enum Reservation
{
	RESERVED,
	MUST_WAIT,
	NO_ROOM,
	SETTLED						/* it has its answer */
} Reservation;

static void
settle(LfPending *pending, LfAnswer answer, int64 token)
{
	abandon_mints(pending);
	lf_request_answer(pending->slot, pending->request.ticket, answer, token, NULL);
	forget(pending);
}

/*
 * A higher number is a new grant; the same one is the same grant while it
 * lives, and in a new epoch a new one; a lower one is superseded.
 */
static Reservation
compare_numbers(LfPending *pending, const LfResource *resource)
{
	int64		number = pending->request.number;
	LfGrant		present;

	if (!lf_entry_read(resource, &present) || present.state.token == 0 ||
		number > present.number)
		return RESERVED;
	if (number == present.number &&
		present.state.token <= lf_epoch_floor(lf_database_mine()))
		return RESERVED;
	if (number < present.number)
		settle(pending, LF_ANSWER_OLDER, present.state.token);
	else if (present.state.role == pending->request.role &&
			 lf_entry_extend(resource, present.state.token, pending->request.ttl,
							 &present.state))
		settle(pending, LF_ANSWER_GRANTED, present.state.token);
	else
		settle(pending, LF_ANSWER_OVER, present.state.token);
	return SETTLED;
}

/* *next: when the wait may be over. */
static Reservation
reserve(LfPending *pending, LfMint *mint, LfClock *next)
{
	const LfResource *resource = &mint->grant.resource;
	LfClock		now = lf_clock_now();
	LfGrantState state;

	if (reserved_by(resource, pending) != NULL)
		return MUST_WAIT;
	switch (lf_mint_load(resource, &state))
	{
		case LF_LOAD_DONE:
			break;
		case LF_LOAD_LATER:
			*next = Min(*next, now + RETRY_SOON);
			return MUST_WAIT;
		case LF_LOAD_NO_ROOM:
			return NO_ROOM;
	}
	if (pending->request.kind == LF_REQUEST_IMPORT)
		return compare_numbers(pending, resource);
	if (pending->request.kind != LF_REQUEST_ACQUIRE)
		return RESERVED;
	if (lf_grant_is_live(&state, now))
	{
		if (takes_over(pending, resource))
			return RESERVED;
		*next = Min(*next, state.deadline);
		return MUST_WAIT;
	}
	if (waited_for_before(resource, pending))
	{
		look_again = true;
		return MUST_WAIT;
	}
	return RESERVED;
}

static LfOver
ends_old_by(const LfPending *pending)
{
	return pending->request.kind == LF_REQUEST_REVOKE ? LF_OVER_REVOKED : LF_OVER_TAKEN;
}

/*
 * Step 1 for all its resources.  An entry that was reserved may have made room
 * for another one of the same request: there may be none for both.
 */
static LfLoad
begin_mints(LfPending *pending)
{
	if (!pending->mints[0].begun &&
		!lf_request_set_working(pending->slot, pending->request.ticket))
		return LF_LOAD_LATER;
	for (int i = 0; i < pending->request.count; i++)
	{
		LfMint	   *mint = &pending->mints[i];
		LfGrantState state;
		LfLoad		load;

		if (mint->begun)
			continue;
		load = lf_mint_load(&mint->grant.resource, &state);
		if (load != LF_LOAD_DONE)
			return load;
		pending->was_live = lf_grant_is_live(&state, lf_clock_now());
		if (!lf_mint_begin(mint, ends_old_by(pending)))
			return LF_LOAD_LATER;
	}
	return LF_LOAD_DONE;
}

/* Step 2 for all its resources: what stands in the way of the last one. */
static LfDrainState
drain_mints(LfPending *pending, LfMint **blocked, LfClock *next)
{
	MemoryContext saved = MemoryContextSwitchTo(pending->context);
	LfDrainState worst = LF_DRAIN_DONE;

	for (int i = 0; i < pending->request.count; i++)
	{
		LfMint	   *mint = &pending->mints[i];
		LfDrainState state = lf_mint_drain(mint, pending->slot);

		if (state == LF_DRAIN_DONE)
			continue;
		*blocked = mint;
		*next = Min(*next, mint->terminate_at);
		worst = Max(worst, state);
	}
	MemoryContextSwitchTo(saved);
	return worst;
}

/*
 * Every entry is in use; but those that lapsed since the last sweep, and those
 * whose end is about to be written, will make room.
 */
static void
await_room(LfPending *pending, LfClock *next)
{
	LfClock		now = lf_clock_now();

	if (pending->no_room_since == 0)
		pending->no_room_since = now;
	if (now - pending->no_room_since >= ROOM_LIMIT)
	{
		refuse(pending, LF_ANSWER_NO_ROOM, NULL);
		return;
	}
	room_is_wanted = true;
	*next = Min(*next, now + RETRY_SOON);
}

bool
lf_queue_wants_room(void)
{
	bool		wanted = room_is_wanted;

	room_is_wanted = false;
	return wanted;
}

/* Gives a request what it can get now. */
static void
advance(LfPending *pending, LfClock *next)
{
	LfMint	   *blocked = NULL;

	while (pending->reserved < pending->request.count)
	{
		switch (reserve(pending, &pending->mints[pending->reserved], next))
		{
			case RESERVED:
				pending->reserved++;
				break;
			case MUST_WAIT:
				LF_POINT("request-waits");
				if (pending->request.no_wait)
					refuse(pending, LF_ANSWER_BUSY, NULL);
				return;
			case NO_ROOM:
				await_room(pending, next);
				return;
			case SETTLED:
				return;
		}
	}
	switch (begin_mints(pending))
	{
		case LF_LOAD_DONE:
			break;
		case LF_LOAD_LATER:
			*next = Min(*next, lf_clock_now() + RETRY_SOON);
			return;
		case LF_LOAD_NO_ROOM:
			await_room(pending, next);
			return;
	}
	pending->no_room_since = 0;
	switch (drain_mints(pending, &blocked, next))
	{
		case LF_DRAIN_DONE:
			pending->ready = true;
			break;
		case LF_DRAIN_OWN_WAY:
			refuse_own_way(pending, blocked->old.token);
			break;
		case LF_DRAIN_BLOCKED:
			if (pending->request.no_wait)
				refuse(pending, LF_ANSWER_BUSY, NULL);
			else if (blocked->blocker.pid == 0 && !TransactionIdIsValid(blocked->blocker.prepared))
				*next = Min(*next, lf_clock_now() + RETRY_SOON);	/* the lock table is full */
			else
				lf_request_set_blocked(pending->slot, pending->request.ticket,
									   blocked->old.token, blocked->blocker);
			break;
	}
}

/* ---- minting and publishing ---- */

/*
 * One commit for these requests.  False: they were not minted; *problem is
 * NULL if that is only for now.
 */
static bool
commit_batch(LfPending **batch, int count, char **problem)
{
	LfMint	  **mints;
	int			mint_count = 0;
	XLogRecPtr	end;
	bool		done;

	for (int i = 0; i < count; i++)
		mint_count += batch[i]->request.count;
	mints = palloc(mint_count * sizeof(LfMint *));
	mint_count = 0;
	for (int i = 0; i < count; i++)
	{
		for (int j = 0; j < batch[i]->request.count; j++)
			mints[mint_count++] = &batch[i]->mints[j];
	}
	done = lf_mint_commit(mints, mint_count, &end, problem);
	for (int i = 0; done && i < count; i++)
	{
		batch[i]->committed = true;
		batch[i]->end = end;
	}
	pfree(mints);
	return done;
}

/* One that cannot be minted must not stop the others. */
static void
mint_ready(LfPending **batch, int count, LfClock *next)
{
	char	   *problem;

	if (count == 0 || commit_batch(batch, count, &problem))
		return;
	if (problem == NULL)
	{
		*next = Min(*next, lf_clock_now() + RETRY_SOON);
		return;
	}
	for (int i = 0; i < count; i++)
	{
		if (count > 1 && commit_batch(&batch[i], 1, &problem))
			continue;
		if (problem != NULL)
			refuse(batch[i], LF_ANSWER_FAILED, problem);
		else
			*next = Min(*next, lf_clock_now() + RETRY_SOON);
	}
}

/* A revocation is minted like a grant, but for the grant. */
typedef struct RevokeWork
{
	int64		token;
	const char *reason;
} RevokeWork;

static void
note_reason(void *arg)
{
	RevokeWork *work = arg;
	Oid			types[] = {INT8OID, TEXTOID};
	Datum		values[2];

	if (!ConditionalLockRelationOid(lf_catalog_required()->grants, RowExclusiveLock))
		return;
	values[0] = Int64GetDatum(work->token);
	values[1] = CStringGetTextDatum(work->reason);
	SPI_connect();
	SPI_execute_with_args("UPDATE lease_fence.grants SET end_reason = $2"
						  " WHERE token OPERATOR(pg_catalog.=) $1",
						  2, types, values, NULL, false, 0);
	SPI_finish();
}

static void
finish_revoke(LfPending *pending, LfClock *next)
{
	RevokeWork	work = {pending->mints[0].old.token, pending->request.reason};
	XLogRecPtr	end;
	char	   *problem;

	while (lf_mint_write_ends() > 0)
		;
	if (lf_entry_end_is_pending(&pending->mints[0].grant.resource))
	{
		*next = Min(*next, lf_clock_now() + RETRY_SOON);
		return;
	}
	if (pending->was_live && work.reason[0] != '\0')
		lf_transaction_try("noting a revocation", note_reason, &work, &end, &problem);
	pending->end = GetFlushRecPtr(NULL);
	pending->committed = true;
}

static void
answer_granted(LfPending *pending)
{
	for (int i = 0; pending->segment != NULL && i < pending->request.count; i++)
		names_of(pending)[i].token = pending->mints[i].grant.state.token;
	if (lf_request_answer(pending->slot, pending->request.ticket, LF_ANSWER_GRANTED,
						  pending->mints[0].grant.state.token, NULL))
		return;
	/* withdrawn between publishing and now */
	look_again = true;
	for (int i = 0; i < pending->request.count; i++)
		lf_entry_end(&pending->mints[i].grant.resource,
					 pending->mints[i].grant.state.token, LF_OVER_RELEASED);
}

/* Step 4.  What was committed is published, if need be as over. */
static void
publish(LfPending *pending)
{
	if (pending->request.kind == LF_REQUEST_REVOKE)
	{
		look_again = true;
		lf_mint_abandon(&pending->mints[0]);
		lf_request_answer(pending->slot, pending->request.ticket,
						  pending->was_live ? LF_ANSWER_GRANTED : LF_ANSWER_NOTHING, 0, NULL);
		return;
	}
	for (int i = 0; i < pending->request.count; i++)
	{
		LfMint	   *mint = &pending->mints[i];

		if (!is_open(pending))
		{
			mint->grant.state.over = LF_OVER_RELEASED;
			look_again = true;
		}
		lf_mint_publish(mint);
	}
	LF_POINT("mint-unanswered");
	answer_granted(pending);
	LF_POINT("mint-answered");
}

static void
publish_committed(LfClock *next)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &pending_list)
	{
		LfPending  *pending = pending_of(iter.cur);

		if (!pending->committed)
			continue;
		if (!lf_standbys_passed(pending->end))
		{
			*next = Min(*next, lf_clock_now() + RETRY_STANDBY);
			continue;
		}
		publish(pending);
		forget(pending);
	}
}

/* ---- cycles ---- */

static int
holders_of(const LfPending *pending, int *pids, int max)
{
	const LfPending *other;
	LfGrant		grant;
	const LfResource *resource;

	if (pending->reserved >= pending->request.count || max < 2)
		return 0;
	resource = &pending->mints[pending->reserved].grant.resource;
	other = reserved_by(resource, pending);
	if (other != NULL)
	{
		pids[0] = other->request.pid;
		return 1;
	}
	if (lf_entry_read(resource, &grant) && grant.owner_pid != 0 &&
		lf_grant_is_live(&grant.state, lf_clock_now()))
	{
		pids[0] = grant.owner_pid;
		return 1;
	}
	return 0;
}

static void
break_cycles(LfClock *next)
{
	LfClock		now = lf_clock_now();
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &pending_list)
	{
		LfPending  *pending = pending_of(iter.cur);

		if (pending->committed || pending->request.kind != LF_REQUEST_ACQUIRE ||
			pending->reserved >= pending->request.count)
			continue;
		if (now >= pending->look_for_cycle)
		{
			pending->look_for_cycle = lf_clock_after(now, DeadlockTimeout * INT64CONST(1000));
			if (lf_cycles_find(&pending_list, pending, holders_of))
			{
				lf_stat_add(lf_database_mine(), LF_STAT_DEADLOCKS, 1);
				refuse(pending, LF_ANSWER_CYCLE, NULL);
				continue;
			}
		}
		*next = Min(*next, pending->look_for_cycle);
	}
}

/* ---- epochs ---- */

static void
begin_epoch_work(void *arg)
{
	LfPending  *pending = arg;

	pending->mints[0].grant.state.token =
		lf_epoch_begin(lf_database_mine(), pending->request.reason);
}

static LfPending *
epoch_request(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &pending_list)
	{
		if (pending_of(iter.cur)->request.kind == LF_REQUEST_EPOCH)
			return pending_of(iter.cur);
	}
	return NULL;
}

/* What is committed is published before, as it stands below the new floor. */
bool
lf_queue_quiesce(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &pending_list)
	{
		if (pending_of(iter.cur)->committed)
			return false;
	}
	dlist_foreach(iter, &pending_list)
		abandon_mints(pending_of(iter.cur));
	return true;
}

static void
begin_requested_epoch(int database, LfPending *pending, LfClock *next)
{
	char	   *problem = NULL;

	if (!lf_queue_quiesce())
		return;
	if (!lf_transaction_try("beginning an epoch", begin_epoch_work, pending,
							&pending->end, &problem))
	{
		refuse(pending, LF_ANSWER_FAILED, problem);
		return;
	}
	if (pending->mints[0].grant.state.token == 0)
	{
		*next = Min(*next, lf_clock_now() + RETRY_SOON);	/* a table is locked */
		return;
	}
	lf_epoch_began(database);
	lf_request_answer(pending->slot, pending->request.ticket, LF_ANSWER_GRANTED,
					  pending->mints[0].grant.state.token, NULL);
	pending->mints[0].grant.state.token = 0;
	forget(pending);
}

/* ---- a pass ---- */

static void
advance_all(LfClock *next)
{
	int			count = 0;
	int			room = 16;
	LfPending **batch = palloc(room * sizeof(LfPending *));
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &pending_list)
	{
		LfPending  *pending = pending_of(iter.cur);

		if (!pending->committed && !pending->ready)
			advance(pending, next);
	}
	dlist_foreach_modify(iter, &pending_list)
	{
		LfPending  *pending = pending_of(iter.cur);

		if (!pending->ready || pending->committed)
			continue;
		if (pending->request.kind == LF_REQUEST_REVOKE)
		{
			finish_revoke(pending, next);
			continue;
		}
		if (count == room)
			batch = repalloc(batch, (room *= 2) * sizeof(LfPending *));
		batch[count++] = pending;
	}
	mint_ready(batch, count, next);
	pfree(batch);
}

LfClock
lf_queue_pass(int database)
{
	LfClock		next = LF_CLOCK_NEVER;
	LfPending  *epoch;

	look_again = false;
	take_in_new();
	drop_withdrawn();
	epoch = epoch_request();
	if (epoch != NULL)
		begin_requested_epoch(database, epoch, &next);
	else
		advance_all(&next);
	publish_committed(&next);
	break_cycles(&next);
	return look_again ? lf_clock_now() : next;
}

void
lf_queue_start_over(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &pending_list)
	{
		LfPending  *pending = pending_of(iter.cur);

		if (pending->committed)
			refuse(pending, LF_ANSWER_FAILED, "the extension was dropped meanwhile");
		else
			abandon_mints(pending);
	}
}

/* What the worker before us published for a request that now fails. */
static void
end_grants_of(uint64 ticket)
{
	LfGrant		grant;
	int			cursor = 0;

	while (lf_entry_next(MyDatabaseId, &cursor, &grant))
	{
		if (grant.ticket == ticket)
			lf_entry_end(&grant.resource, grant.state.token, LF_OVER_RELEASED);
	}
}

void
lf_queue_recover(void)
{
	lf_request_fail_unfinished(MyDatabaseId, end_grants_of);
}

void
lf_queue_refuse(void)
{
	LfRequest	request;
	int			slot = -1;

	while (!dlist_is_empty(&pending_list))
		refuse(pending_of(dlist_head_node(&pending_list)), LF_ANSWER_NO_EXTENSION, NULL);
	while (lf_request_next(MyDatabaseId, &slot, &request))
		lf_request_answer(slot, request.ticket, LF_ANSWER_NO_EXTENSION, 0, NULL);
}
