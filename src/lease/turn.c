/*
 * turn.c
 *		Whose turn is it: what one request can get now.
 *
 * Runs in the database's worker.  A request for several resources reserves them
 * one after the other, in byte order; what it has reserved nobody else gets.
 * When it has all of them it takes steps 1 and 2 of their mints, and is ready.
 *
 * What must end well: a resource that becomes free in the middle of a pass (it
 * goes to who came first), a table of entries that is full (some are about to
 * make room), a drain that its own asker stands in the way of.
 */
#include "postgres.h"

#include "base/database.h"
#include "base/point.h"
#include "fence/epoch.h"
#include "lease/pending.h"
#include "lease/queue.h"
#include "lease/remote.h"
#include "lease/tracked.h"

/*
 * How long entries may take to make room that are over by then, since one was
 * got last; and those whose end is on its way into the table, for who waits at
 * all.  Who gets one now and then may not hold up the others for ever.
 */
#define ROOM_LIMIT			INT64CONST(200000)
#define ROOM_BY_ENDS_LIMIT	INT64CONST(5000000)
#define ROOM_LIMIT_IN_ALL	INT64CONST(10000000)

typedef enum Reservation
{
	RESERVED,
	MUST_WAIT,
	ASKING,						/* its lock service has not answered yet */
	NO_ROOM,
	SETTLED						/* it has its answer */
} Reservation;

/* A request has found every entry in use, since it was asked last. */
static bool room_is_wanted = false;

/* ---- reserving ---- */

static LfPending *
reserved_by(const LfResource *resource, const LfPending *except)
{
	dlist_iter	iter;

	dlist_foreach(iter, lf_pending_all())
	{
		LfPending  *pending = lf_pending_of(iter.cur);

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
 * The request that came before and waits for this resource; NULL: there is none.
 * It may have become free in the middle of a pass, after that request was looked
 * at.
 */
static const LfRemote *
waited_for_before(const LfResource *resource, const LfPending *pending)
{
	dlist_iter	iter;

	dlist_foreach(iter, lf_pending_all())
	{
		LfPending  *other = lf_pending_of(iter.cur);

		if (other == pending)
			return NULL;
		if (other->request.kind == LF_REQUEST_ACQUIRE &&
			other->reserved < other->request.count &&
			lf_resource_equal(&other->mints[other->reserved].grant.resource, resource))
			return &other->remotes[other->reserved];
	}
	return NULL;
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
		number > lf_grant_number(&present))
		return RESERVED;
	if (number == lf_grant_number(&present) &&
		present.state.token <= lf_epoch_floor(lf_database_mine()))
		return RESERVED;
	if (number < lf_grant_number(&present))
		lf_pending_settle(pending, LF_ANSWER_OLDER, present.state.token);
	else if (present.state.role != pending->request.role)
		lf_pending_settle(pending, LF_ANSWER_OTHER_ROLE, present.state.token);
	else if (lf_entry_extend(resource, present.state.token, pending->request.ttl,
							 &present.state))
		lf_pending_settle(pending, LF_ANSWER_GRANTED, present.state.token);
	else
		lf_pending_settle(pending, LF_ANSWER_OVER, present.state.token);
	return SETTLED;
}

/*
 * It is free here: is it at its lock service, if it has one?  A lock that is
 * there, but for ever or for something else, is no lock to wait for.
 */
static Reservation
reserve_remotely(LfPending *pending, int number, LfClock *next)
{
	const LfRemote *remote = &pending->remotes[number];

	switch (lf_remote_take(pending, number, next))
	{
		case LF_REMOTE_IDLE:
		case LF_REMOTE_ASKED:
			return ASKING;
		case LF_REMOTE_BUSY:
			return MUST_WAIT;
		case LF_REMOTE_GRANTED:
			return RESERVED;
		case LF_REMOTE_LOST:
		case LF_REMOTE_REFUSED:
			break;
	}
	lf_pending_refuse(pending, remote->adopts && remote->found != LF_LOCK_UNKNOWN ?
					  LF_ANSWER_NOT_HOLDER : LF_ANSWER_COORDINATOR,
					  lf_remote_finding(remote));
	return SETTLED;
}

/* Who finds no room leaves none to those who came later: they need not look. */
static LfLoad
load_in_turn(const LfResource *resource, LfGrantState *state)
{
	if (room_is_wanted && !lf_entry_look(resource, lf_resource_hash(resource), state))
		return LF_LOAD_NO_ROOM;
	return lf_mint_load(resource, state);
}

/* *next: when the wait may be over. */
static Reservation
reserve(LfPending *pending, int number, LfClock *next)
{
	const LfResource *resource = &pending->mints[number].grant.resource;
	LfClock		now = lf_clock_now();
	LfGrantState state;
	const LfRemote *before;

	if (reserved_by(resource, pending) != NULL)
		return MUST_WAIT;
	switch (load_in_turn(resource, &state))
	{
		case LF_LOAD_DONE:
			break;
		case LF_LOAD_LATER:
			*next = Min(*next, now + LF_RETRY_SOON);
			return MUST_WAIT;
		case LF_LOAD_NO_ROOM:
			return NO_ROOM;
	}
	if (pending->request.kind == LF_REQUEST_IMPORT)
		return compare_numbers(pending, resource);
	if (pending->request.kind == LF_REQUEST_ADOPT)
		return reserve_remotely(pending, number, next);
	if (pending->request.kind != LF_REQUEST_ACQUIRE)
		return RESERVED;
	if (lf_grant_is_live(&state, now))
	{
		if (takes_over(pending, resource))
			return reserve_remotely(pending, number, next);
		lf_tracked_hurry(state.token, LF_LOOK_APART);
		*next = Min(*next, state.deadline);
		return MUST_WAIT;
	}
	before = waited_for_before(resource, pending);
	if (before != NULL)
	{
		/* one that has asked its lock service is woken by it */
		if (before->state == LF_REMOTE_IDLE)
			lf_pending_look_again();
		if (before->state == LF_REMOTE_BUSY)
			lf_request_set_elsewhere(pending->slot, pending->request.ticket, before->left);
		return MUST_WAIT;
	}
	return reserve_remotely(pending, number, next);
}

/* ---- steps 1 and 2 ---- */

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
		load = load_in_turn(&mint->grant.resource, &state);
		if (load != LF_LOAD_DONE)
			return load;
		pending->was_live = lf_grant_is_live(&state, lf_clock_now());
		if (!lf_mint_begin(mint, ends_old_by(pending)))
			return LF_LOAD_LATER;
		pending->no_room_since = 0;
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

/* ---- no room ---- */

/*
 * Every entry is in use; but those that lapsed since the last sweep, and those
 * whose end is about to be written, will make room: first of all for this one.
 */
static void
await_room(LfPending *pending, LfClock *next)
{
	LfClock		now = lf_clock_now();
	bool		by_ends = !pending->request.no_wait && lf_entry_ends_are_pending();

	if (pending->no_room_since == 0)
		pending->no_room_since = now;
	if (pending->no_room_first == 0)
		pending->no_room_first = now;
	if (now - pending->no_room_since >= (by_ends ? ROOM_BY_ENDS_LIMIT : ROOM_LIMIT) ||
		now - pending->no_room_first >= ROOM_LIMIT_IN_ALL)
	{
		lf_pending_refuse(pending, LF_ANSWER_NO_ROOM, NULL);
		return;
	}
	room_is_wanted = true;
	*next = Min(*next, now + LF_RETRY_SOON);
}

bool
lf_queue_wants_room(void)
{
	bool		wanted = room_is_wanted;

	room_is_wanted = false;
	return wanted;
}

/* ---- what it can get now ---- */

/* Have all its resources been reserved for it? */
static bool
reserve_all(LfPending *pending, LfClock *next)
{
	while (pending->reserved < pending->request.count)
	{
		switch (reserve(pending, pending->reserved, next))
		{
			case RESERVED:
				pending->reserved++;
				pending->no_room_since = 0;
				break;
			case MUST_WAIT:
				LF_POINT("request-waits");
				if (pending->request.no_wait)
					lf_pending_refuse(pending, LF_ANSWER_BUSY, NULL);
				return false;
			case ASKING:
				return false;
			case NO_ROOM:
				await_room(pending, next);
				return false;
			case SETTLED:
				return false;
		}
	}
	return true;
}

/* Is step 1 done for all its resources? */
static bool
begin_all(LfPending *pending, LfClock *next)
{
	switch (begin_mints(pending))
	{
		case LF_LOAD_DONE:
			return true;
		case LF_LOAD_LATER:
			*next = Min(*next, lf_clock_now() + LF_RETRY_SOON);
			break;
		case LF_LOAD_NO_ROOM:
			await_room(pending, next);
			break;
	}
	return false;
}

/* It becomes ready, waits for the writers in the way, or has its answer. */
static void
drain_all(LfPending *pending, LfClock *next)
{
	LfMint	   *blocked = NULL;

	switch (drain_mints(pending, &blocked, next))
	{
		case LF_DRAIN_DONE:
			pending->ready = lf_remote_confirm(pending, next);
			break;
		case LF_DRAIN_OWN_WAY:
			/* with the token under which the asker has written itself */
			lf_pending_settle(pending, LF_ANSWER_OWN_WAY, blocked->old.token);
			break;
		case LF_DRAIN_BLOCKED:
			pending->drain_waited = true;
			if (pending->request.no_wait)
				lf_pending_refuse(pending, LF_ANSWER_BUSY, NULL);
			else if (blocked->blocker.pid == 0 && !TransactionIdIsValid(blocked->blocker.prepared))
				*next = Min(*next, lf_clock_now() + LF_RETRY_SOON);	/* the lock table is full */
			else
				lf_request_set_blocked(pending->slot, pending->request.ticket,
									   blocked->old.token, blocked->blocker);
			break;
	}
}

void
lf_turn_advance(LfPending *pending, LfClock *next)
{
	if (pending->request.kind == LF_REQUEST_RENEW)
		lf_remote_renew(pending, next);
	else if (lf_remote_keep(pending, next) && reserve_all(pending, next) &&
			 begin_all(pending, next))
		drain_all(pending, next);
}

int
lf_turn_holders(const LfPending *pending, int *pids, int max)
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
