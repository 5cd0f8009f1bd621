/*
 * queue.c
 *		The worker's side of the requests: who gets which lease, and when.
 *
 * Runs in the database's worker.  First come first served: pending requests are
 * kept in the order of their tickets (pending.c), and each pass gives every one
 * of them, in that order, what it can get now (turn.c), then mints for those
 * that have all, and answers (finish.c).  An epoch that is to begin comes before
 * all of them.
 *
 * What must end well: a cycle of waits (one of them fails), an epoch that
 * begins over requests that are under way (what is committed is published
 * before, the others begin anew), an extension that was dropped meanwhile, the
 * death of the worker before us.
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/database.h"
#include "base/stat.h"
#include "base/transaction.h"
#include "fence/epoch.h"
#include "lease/pending.h"
#include "lease/queue.h"
#include "lease/remote.h"

bool
lf_queue_is_asked(void)
{
	LfRequest	request;
	int			slot = -1;

	return !dlist_is_empty(lf_pending_all()) ||
		lf_request_next(MyDatabaseId, NULL, &slot, &request);
}

bool
lf_queue_is_empty(void)
{
	return dlist_is_empty(lf_pending_all());
}

/* ---- cycles ---- */

static void
break_cycles(LfClock *next)
{
	LfClock		now = lf_clock_now();
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, lf_pending_all())
	{
		LfPending  *pending = lf_pending_of(iter.cur);

		if (pending->committed || pending->request.kind != LF_REQUEST_ACQUIRE ||
			pending->reserved >= pending->request.count)
			continue;
		if (now >= pending->look_for_cycle)
		{
			pending->look_for_cycle = lf_clock_after(now, DeadlockTimeout * INT64CONST(1000));
			if (lf_cycles_find(lf_pending_all(), pending, lf_turn_holders))
			{
				lf_stat_add(lf_database_mine(), LF_STAT_DEADLOCKS, 1);
				lf_pending_refuse(pending, LF_ANSWER_CYCLE, NULL);
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

	dlist_foreach(iter, lf_pending_all())
	{
		if (lf_pending_of(iter.cur)->request.kind == LF_REQUEST_EPOCH)
			return lf_pending_of(iter.cur);
	}
	return NULL;
}

/* What is committed is published before, as it stands below the new floor. */
bool
lf_queue_quiesce(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, lf_pending_all())
	{
		if (lf_pending_of(iter.cur)->committed)
			return false;
	}
	dlist_foreach(iter, lf_pending_all())
		lf_pending_abandon(lf_pending_of(iter.cur));
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
		lf_pending_refuse(pending, LF_ANSWER_FAILED, problem);
		return;
	}
	if (pending->mints[0].grant.state.token == 0)
	{
		*next = Min(*next, lf_clock_now() + LF_RETRY_SOON);	/* a table is locked */
		return;
	}
	lf_epoch_began(database);
	lf_pending_settle(pending, LF_ANSWER_GRANTED, pending->mints[0].grant.state.token);
}

/* ---- a pass ---- */

static void
advance_all(LfClock *next)
{
	int			count = 0;
	int			room = 16;
	LfPending **batch = palloc(room * sizeof(LfPending *));
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, lf_pending_all())
	{
		LfPending  *pending = lf_pending_of(iter.cur);

		if (!pending->committed && !pending->ready)
			lf_turn_advance(pending, next);
	}
	dlist_foreach_modify(iter, lf_pending_all())
	{
		LfPending  *pending = lf_pending_of(iter.cur);

		if (!pending->ready || pending->committed)
			continue;
		if (pending->request.kind == LF_REQUEST_REVOKE)
		{
			lf_finish_revoke(pending, next);
			continue;
		}
		if (count == room)
			batch = repalloc(batch, (room *= 2) * sizeof(LfPending *));
		batch[count++] = pending;
	}
	lf_finish_batch(batch, count, next);
	pfree(batch);
}

LfClock
lf_queue_pass(int database)
{
	LfClock		next = LF_CLOCK_NEVER;
	LfPending  *epoch;

	lf_pending_begin_pass();
	lf_pending_take_in();
	lf_pending_drop_withdrawn();
	epoch = epoch_request();
	if (epoch != NULL)
		begin_requested_epoch(database, epoch, &next);
	else
		advance_all(&next);
	lf_finish_committed(&next);
	break_cycles(&next);
	return lf_pending_is_to_look_again() ? lf_clock_now() : next;
}

/* ---- beginnings and ends ---- */

void
lf_queue_start_over(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, lf_pending_all())
	{
		LfPending  *pending = lf_pending_of(iter.cur);

		if (pending->committed)
			lf_pending_refuse(pending, LF_ANSWER_FAILED, "the extension was dropped meanwhile");
		else
			lf_pending_abandon(pending);
	}
}

/* What the worker before us published, or took, for a request that now fails. */
static void
undo_request(const LfRequest *request)
{
	LfGrant		grant;
	int			cursor = 0;

	while (lf_entry_next(MyDatabaseId, &cursor, &grant))
	{
		if (grant.ticket == request->ticket)
			lf_entry_end(&grant.resource, grant.state.token, LF_OVER_RELEASED);
	}
	lf_remote_undo(request);
}

void
lf_queue_recover(void)
{
	lf_request_fail_unfinished(MyDatabaseId, undo_request);
}

void
lf_queue_refuse(void)
{
	LfRequest	request;
	int			slot = -1;

	while (!dlist_is_empty(lf_pending_all()))
		lf_pending_refuse(lf_pending_of(dlist_head_node(lf_pending_all())), LF_ANSWER_NO_EXTENSION, NULL);
	while (lf_request_next(MyDatabaseId, NULL, &slot, &request))
		lf_request_answer(slot, request.ticket, LF_ANSWER_NO_EXTENSION, 0, NULL);
}
