/*
 * tracked.c
 *		Leases whose time is up to a lock service: renewed, looked at, released.
 *
 * Runs in the database's worker.  A lock that we took for a session is renewed
 * at each third of its ttl; every other one, one that was adopted above all, is
 * looked at when a third of its remaining time has passed, and when a hint says
 * so: after its deadline would be too late for who renews it.  Watching only ever
 * ends a grant, or moves its deadline: a token is minted for who asks.
 *
 * Beside leases there are locks that are only still to be released: their lease
 * has ended, or they may have been granted to somebody who is gone.
 *
 * What must end well: the death of the worker (the next one finds the leases
 * among the entries), a server that is away (nothing is prolonged; what is to be
 * released is tried until it has run out by itself), a profile that is changed
 * or dropped (its leases live until their deadlines).
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/point.h"
#include "fence/ends.h"
#include "lease/remote.h"
#include "lease/tracked_list.h"

/* Microseconds. */
#define LOOK_SOONEST	INT64CONST(20000)
#define LISTEN_AFTER	INT64CONST(1000000)
#define RETRY_APART		INT64CONST(1000000)
#define BARRED_APART	INT64CONST(1000000)
#define UNCERTAIN_LIMIT INT64CONST(60000000)

/* So many are asked about in one pass: requests must not wait for all of them. */
#define LOOKS_PER_PASS	2000

static void answered(const LfLockQuestion *question, const LfLockAnswer *answer);

static int64 last_orphan = 0;

/* ---- asking ---- */

static void
listen_to(LfTracked *tracked)
{
	if (!tracked->listening)
		lf_coordinator_listen(tracked->lock);
	tracked->listening = true;
}

static void
ask(LfTracked *tracked, LfClock now, LfLockCall call, int64 ttl)
{
	tracked->asked = true;
	tracked->looked_at = now;
	lf_tracked_list_unqueue(tracked);
	lf_coordinator_ask(call, tracked->lock, tracked->value, NULL, ttl,
					   (uint64) tracked->token, answered);
}

/* A lock of ours is let go of; of one that others took nothing is left to do. */
static void
stop_tracking(LfTracked *tracked)
{
	if (tracked->releasing)
		return;
	if (tracked->adopted)
	{
		lf_tracked_list_forget(tracked);
		return;
	}
	tracked->releasing = true;
	if (tracked->release_until == 0)
		tracked->release_until = lf_clock_after(lf_clock_now(), tracked->left);
	LF_POINT("release-unasked");
	ask(tracked, lf_clock_now(), LF_LOCK_RELEASE, 0);
}

void
lf_tracked_release(const LfLock *lock, const LfLockValue *value, int64 ttl, bool uncertain)
{
	LfTracked  *tracked = lf_tracked_list_insert(--last_orphan, lock, value);

	tracked->left = ttl;
	tracked->uncertain = uncertain;
	tracked->retry_apart = RETRY_APART;
	stop_tracking(tracked);
}

/* ---- when to look next ---- */

/* At each third of its ttl. */
static bool
is_to_renew(const LfGrantState *state, LfClock now)
{
	return state->watchdog && state->deadline - now <= state->ttl - state->ttl / 3;
}

/* state: as the entry has it now. */
static void
schedule_by(LfTracked *tracked, const LfGrantState *state, LfClock now)
{
	LfClock		latest = LF_CLOCK_NEVER;
	LfClock		due;
	int64		early = 0;

	/* a lease of our own is as a rule over before events are worth their price */
	if (tracked->lock->watch && !tracked->listening)
		latest = now + LISTEN_AFTER;
	if (tracked->look_again)
	{
		tracked->look_again = false;
		lf_tracked_list_set_due(tracked, now);
		return;
	}
	if (state->token != tracked->token || !lf_grant_is_live(state, now))
	{
		/* barred, or over: the next look says */
		lf_tracked_list_set_due(tracked, now + Min(Max(tracked->left / 3, LOOK_SOONEST),
												   BARRED_APART));
		return;
	}
	if (state->watchdog && !is_to_renew(state, now))
	{
		due = state->deadline - (state->ttl - state->ttl / 3);
		/* once: a look that does not renew leaves it as near */
		if (due - now > state->ttl / 30)
			early = state->ttl / 30;
	}
	else
		due = now + Max((state->deadline - now) / 3, LOOK_SOONEST);
	lf_tracked_list_set_due(tracked, Min(latest, due));
	tracked->early = latest < due ? 0 : early;
}

static void
schedule(LfTracked *tracked)
{
	LfGrantState state;

	if (!lf_entry_look(tracked->resource, tracked->hash, &state))
		state.token = 0;
	schedule_by(tracked, &state, lf_clock_now());
}

static void
look(LfTracked *tracked, LfOwnerCheck alive)
{
	LfClock		now = lf_clock_now();
	LfGrantState state;
	int			owner_pid;
	bool		there = lf_entry_look_at_owner(tracked->resource, tracked->hash, &state, &owner_pid) &&
		state.token == tracked->token;

	if (there && lf_grant_is_live(&state, now))
	{
		listen_to(tracked);
		if (is_to_renew(&state, now + tracked->early) &&
			alive(state.owner, owner_pid, state.scope))
			ask(tracked, now, LF_LOCK_RENEW, state.ttl);
		else
			ask(tracked, now, LF_LOCK_CHECK, 0);
	}
	else if (there && state.barred)
		ask(tracked, now, LF_LOCK_CHECK, 0);
	else
		stop_tracking(tracked);
}

/* ---- answers ---- */

/* The lock is not this grant's any more. */
static void
end_lease(LfTracked *tracked, LfOver how)
{
	lf_entry_end(tracked->resource, tracked->token, how);
	LF_POINT("loss-noted");
	lf_entry_lift_bar(tracked->resource, tracked->token);
}

/*
 * It is held until then.  A lock of our own runs no longer than we asked for,
 * whatever Redis says (its clock may have been put back): it is released then.
 */
static bool
prolong(LfTracked *tracked, const LfLockQuestion *question, const LfLockAnswer *answer,
		LfGrantState *state)
{
	tracked->left = answer->left;
	return lf_entry_set_deadline(tracked->resource, tracked->hash, tracked->token,
								 lf_clock_after(answer->asked, answer->left),
								 tracked->adopted ? LF_CLOCK_NEVER :
								 lf_clock_after(answer->asked, question->ttl), state);
}

/* True: it is prolonged; *state is the grant's then. */
static bool
take_answer(LfTracked *tracked, const LfLockQuestion *question, const LfLockAnswer *answer,
			LfGrantState *state)
{
	LF_POINT("look-answered");
	switch (answer->state)
	{
		case LF_LOCK_HELD:
			return prolong(tracked, question, answer, state);
		case LF_LOCK_OTHER:
		case LF_LOCK_WRONG_TYPE:
			end_lease(tracked, LF_OVER_TAKEN);
			break;
		case LF_LOCK_ABSENT:
		case LF_LOCK_NO_GRANT:
			end_lease(tracked, LF_OVER_RELEASED);
			break;
		case LF_LOCK_NO_EXPIRY: /* still its holder's: until the deadline we know */
		case LF_LOCK_UNKNOWN:
			break;
	}
	return false;
}

bool
lf_tracked_take_answer(int64 token, const LfLockQuestion *question,
					   const LfLockAnswer *answer)
{
	LfTracked  *tracked = lf_tracked_list_find(token);
	LfGrantState state;

	return tracked != NULL && !tracked->releasing &&
		take_answer(tracked, question, answer, &state);
}

/*
 * Asked again when there was no answer, and ever more seldom when the lock may
 * come only after the answer: a call that took it can be stuck in the network.
 */
static void
take_answer_to_release(LfTracked *tracked, const LfLockAnswer *answer)
{
	bool		again = answer->state == LF_LOCK_UNKNOWN ||
		(tracked->uncertain && answer->state != LF_LOCK_HELD &&
		 tracked->retry_apart < UNCERTAIN_LIMIT);

	LF_POINT("release-answered");
	lf_remote_hint(tracked->lock->server, tracked->lock->key, tracked->lock->key_length);
	if (!again || lf_clock_now() >= tracked->release_until)
	{
		lf_tracked_list_forget(tracked);
		return;
	}
	tracked->asked = tracked->releasing = false;
	lf_tracked_list_set_due(tracked, lf_clock_after(lf_clock_now(), tracked->retry_apart));
	if (tracked->uncertain)
		tracked->retry_apart *= 2;
}

static void
answered(const LfLockQuestion *question, const LfLockAnswer *answer)
{
	LfTracked  *tracked = lf_tracked_list_find((int64) question->id);
	LfGrantState state;

	lf_remote_see(question, answer);
	if (tracked == NULL)
		return;
	if (question->call == LF_LOCK_RELEASE)
	{
		take_answer_to_release(tracked, answer);
		return;
	}
	if (tracked->releasing)
		return;
	tracked->asked = false;
	if (take_answer(tracked, question, answer, &state))
		schedule_by(tracked, &state, lf_clock_now());
	else if (answer->state == LF_LOCK_UNKNOWN)
		lf_tracked_list_set_due(tracked, lf_clock_after(lf_clock_now(), RETRY_APART));
	else
		schedule(tracked);
}

/* ---- what servers say ---- */

static void
look_now(LfTracked *tracked)
{
	if (!tracked->asked)
		lf_tracked_list_set_due(tracked, lf_clock_now());
}

static void
look_again(LfTracked *tracked)
{
	if (tracked->asked && !tracked->releasing)
		tracked->look_again = true;
	look_now(tracked);
}

static void
hint(Oid server, const char *key, int length)
{
	lf_remote_hint(server, key, length);
	lf_tracked_list_visit_key(server, key, length, look_again);
}

static void
ready(Oid server)
{
	lf_tracked_list_visit_server(server, look_now);
}

/* Who is barred stays so until a look shows another holder, or none. */
static void
lose(LfTracked *tracked)
{
	if (tracked->resource != NULL)
		lf_entry_end(tracked->resource, tracked->token, LF_OVER_LAPSED);
	look_now(tracked);
}

static void
lost(Oid server)
{
	lf_tracked_list_visit_server(server, lose);
	lf_tracked_lose_unknown();
	lf_remote_lost(server);
}

/* Who was revoked is still looked at, if the lock is not ours to release. */
static void
ended(const LfEnd *end)
{
	LfTracked  *tracked = lf_tracked_list_find(end->token);

	if (tracked != NULL && !(tracked->adopted && end->how == LF_OVER_REVOKED))
		stop_tracking(tracked);
}

void
lf_tracked_install(void)
{
	static const LfCoordinatorEvents events = {ready, lost, hint};

	lf_coordinator_install(&events);
	lf_ends_install(ended);
}

/* ---- for the queue ---- */

void
lf_tracked_add(const LfGrant *grant, const LfLock *lock)
{
	LfLockValue value;
	LfTracked  *tracked;

	if (lf_tracked_list_find(grant->state.token) != NULL)
		return;
	lf_lock_value(&value, &grant->holder, lf_grant_nonce(grant));
	tracked = lf_tracked_list_insert(grant->state.token, lock, &value);
	tracked->adopted = grant->state.adopted;
	tracked->retry_apart = RETRY_APART;
	lf_tracked_list_set_resource(tracked, &grant->resource);
	tracked->left = Max(grant->state.deadline - lf_clock_now(), 0);
	if (tracked->adopted)
		listen_to(tracked);
	schedule(tracked);
}

void
lf_tracked_look_soon(int64 token)
{
	LfTracked  *tracked = lf_tracked_list_find(token);

	if (tracked != NULL)
		look_now(tracked);
}

void
lf_tracked_doubt(const LfLock *lock)
{
	lf_tracked_list_visit_key(lock->server, lock->key, lock->key_length, look_again);
}

void
lf_tracked_remove(int64 token)
{
	LfTracked  *tracked = lf_tracked_list_find(token);

	if (tracked != NULL)
		stop_tracking(tracked);
}

void
lf_tracked_hurry(int64 token, int64 apart)
{
	LfTracked  *tracked = lf_tracked_list_find(token);

	if (tracked != NULL && tracked->adopted && tracked->queued &&
		tracked->due > tracked->looked_at + apart)
		lf_tracked_list_set_due(tracked, tracked->looked_at + apart);
}

const LfLock *
lf_tracked_lock(int64 token, LfLockValue *value, bool *adopted)
{
	LfTracked  *tracked = lf_tracked_list_find(token);

	if (tracked == NULL || tracked->releasing)
		return NULL;
	lf_lock_value_copy(value, tracked->value);
	*adopted = tracked->adopted;
	return tracked->lock;
}

void
lf_tracked_begin_pass(void)
{
	LfEnd		ends[256];
	int			count;

	lf_tracked_follow_profiles();
	if (lf_tracked_is_empty())
		return;
	count = lf_entry_take_ends(MyDatabaseId, ends, lengthof(ends));
	for (int i = 0; i < count; i++)
		ended(&ends[i]);
}

/* ---- a pass ---- */

void
lf_tracked_pass(LfOwnerCheck alive, LfClock *next)
{
	LfTracked  *tracked;
	int			looks = 0;

	while ((tracked = lf_tracked_list_first_due()) != NULL &&
		   tracked->due - (looks > 0 ? tracked->early : 0) <= lf_clock_now() &&
		   looks++ < LOOKS_PER_PASS)
	{
		if (tracked->resource == NULL)
			stop_tracking(tracked);
		else
			look(tracked, alive);
	}
	if (tracked != NULL)
		*next = Min(*next, tracked->due);
}
