/*
 * remote.c
 *		What lock services say of the resources that a request is about.
 *
 * Runs in the database's worker.  A question is asked, its answer comes in a
 * later pass, by a number that is never used twice: an answer to a request that
 * is gone, or asks something else by now, meets nobody, and what it granted is
 * given back.
 *
 * What must end well: an answer that never comes (the connection is closed, and
 * that is the answer), one that comes too late (what counts is when it was
 * asked), a lock that is lost while writers under the older grant are waited for.
 */
#include "postgres.h"

#include "base/point.h"
#include "coordinator/coordinator.h"
#include "lease/remote.h"
#include "lease/tracked.h"
#include "utils/memutils.h"

/* No answer: until the next look. */
#define RETRY_APART		INT64CONST(500000)

/* A lock with less than that left is not adopted. */
#define ADOPT_LEAST		INT64CONST(100000)

static uint64 last_question = 0;

static void answered(const LfLockQuestion *question, const LfLockAnswer *answer);

static void
ask(LfRemote *remote, LfLockCall call, const LfLockValue *instead)
{
	remote->question = ++last_question;
	lf_coordinator_ask(call, remote->lock, &remote->value, instead, remote->ttl,
					   remote->question, answered);
}

void
lf_remote_describe(LfPending *pending, int number, const LfLock *lock)
{
	LfRemote   *remote = &pending->remotes[number];

	remote->adopts = pending->request.kind == LF_REQUEST_ADOPT;
	remote->ttl = pending->mints[number].grant.state.ttl;
	if (!OidIsValid(lock->server))
		return;
	remote->lock = lf_lock_copy(pending->context, lock);
}

/* ---- taking ---- */

static uint64
make_nonce(void)
{
	uint64		nonce = 0;

	while (nonce == 0)
	{
		if (!pg_strong_random(&nonce, sizeof(nonce)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate a random number")));
	}
	return nonce;
}

/*
 * A detached request takes back the lease of its own former self, which holds
 * the lock still: that value may be replaced.
 */
static bool
takes_back(const LfPending *pending, const LfResource *resource, LfLockValue *former)
{
	LfGrant		present;

	if (pending->request.scope != LF_SCOPE_DETACHED ||
		!lf_entry_read(resource, &present) || lf_grant_nonce(&present) == 0 ||
		!lf_holder_equal(&present.holder, &pending->request.holder))
		return false;
	lf_lock_value(former, &present.holder, lf_grant_nonce(&present));
	return true;
}

/* Where the next worker finds it, if this one dies over it. */
static void
note_nonce(LfPending *pending, int number, uint64 nonce)
{
	if (pending->segment != NULL)
		lf_pending_names(pending)[number].nonce = nonce;
	if (nonce != 0)
		lf_request_set_nonce(pending->slot, pending->request.ticket, nonce);
}

static void
undo_one(const LfLock *lock, const LfHolder *holder, uint64 nonce, int64 ttl)
{
	LfLockValue value;

	if (!OidIsValid(lock->server) || nonce == 0)
		return;
	lf_lock_value(&value, holder, nonce);
	lf_tracked_release(lock, &value, ttl, true);
}

void
lf_remote_undo(const LfRequest *request)
{
	dsm_segment *segment;
	LfRequestName *names;

	if (request->nonce == 0)
		return;
	if (request->count == 1)
	{
		undo_one(&request->lock, &request->holder, request->nonce, request->ttl);
		return;
	}
	segment = dsm_attach(request->names);
	if (segment == NULL)
		return;
	names = dsm_segment_address(segment);
	for (int i = 0; i < request->count; i++)
		undo_one(&names[i].lock, &request->holder, names[i].nonce, names[i].ttl);
	dsm_detach(segment);
}

static void
ask_to_take(LfPending *pending, int number)
{
	LfRemote   *remote = &pending->remotes[number];
	LfGrant    *grant = &pending->mints[number].grant;
	LfLockValue former;

	if (remote->state == LF_REMOTE_IDLE)
	{
		grant->of.nonce = remote->adopts ? 0 : make_nonce();
		note_nonce(pending, number, grant->of.nonce);
		lf_lock_value(&remote->value, &grant->holder, grant->of.nonce);
	}
	remote->state = LF_REMOTE_ASKED;
	if (remote->adopts)
	{
		LfGrant		present;

		remote->barred = lf_entry_read(&grant->resource, &present) &&
			present.state.barred && lf_holder_equal(&present.holder, &grant->holder);
		ask(remote, LF_LOCK_VERIFY, NULL);
		return;
	}
	remote->ours = true;
	LF_POINT("take-unasked");
	ask(remote, LF_LOCK_TAKE,
		takes_back(pending, &grant->resource, &former) ? &former : NULL);
}

/*
 * Granted, but its turn here did not come as long as that was true: another request,
 * a revocation say, had the resource reserved.
 */
static bool
is_stale(const LfRemote *remote)
{
	if (remote->state == LF_REMOTE_LOST)
		return !remote->adopts;
	return remote->state == LF_REMOTE_GRANTED && lf_clock_now() >= remote->deadline;
}

LfRemoteState
lf_remote_take(LfPending *pending, int number, LfClock *next)
{
	LfRemote   *remote = &pending->remotes[number];

	if (remote->lock == NULL)
		return LF_REMOTE_GRANTED;
	if (is_stale(remote))
		lf_remote_give_back(remote);
	if (remote->state == LF_REMOTE_IDLE ||
		(remote->state == LF_REMOTE_BUSY && lf_clock_now() >= remote->look_at))
		ask_to_take(pending, number);
	if (remote->state == LF_REMOTE_BUSY)
		*next = Min(*next, remote->look_at);
	return remote->state;
}

static void
set_deadline(LfRemote *remote, const LfLockAnswer *answer)
{
	LfClock		now = lf_clock_now();
	int64		left = answer->left;

	/* a lock of our own runs no longer than we asked for */
	if (!remote->adopts)
		left = Min(left, remote->ttl);
	remote->deadline = lf_clock_after(answer->asked, left);
	remote->look_at = now + Max(remote->deadline - now, 0) / 3;
}

static void
refuse(LfRemote *remote, const LfLockAnswer *answer)
{
	remote->state = LF_REMOTE_REFUSED;
	remote->found = answer->state;
	strlcpy(remote->problem, answer->problem, sizeof(remote->problem));
}

/* Somebody has it: until they are done, or it runs out. */
static void
note_busy(LfPending *pending, LfRemote *remote, const LfLockAnswer *answer)
{
	LfClock		now = lf_clock_now();

	remote->state = LF_REMOTE_BUSY;
	remote->ours = false;
	remote->left = answer->left;
	remote->look_at = now + LF_LOOK_APART;
	if (answer->left >= 0)
		remote->look_at = Min(remote->look_at, now + answer->left + 1000);
	if (!remote->listening)
		lf_coordinator_listen(remote->lock);
	remote->listening = true;
	lf_request_set_elsewhere(pending->slot, pending->request.ticket, answer->left);
}

static void
take_answer_to_take(LfPending *pending, LfRemote *remote, const LfLockAnswer *answer)
{
	LF_POINT("take-answered");
	if (answer->state == LF_LOCK_HELD)
	{
		remote->state = LF_REMOTE_GRANTED;
		set_deadline(remote, answer);
	}
	else if (answer->state == LF_LOCK_OTHER || answer->state == LF_LOCK_NO_EXPIRY ||
			 answer->state == LF_LOCK_NO_GRANT)
		note_busy(pending, remote, answer);
	else
	{
		refuse(remote, answer);
		remote->ours = answer->sent;	/* perhaps */
	}
}

static void
take_answer_to_verify(LfPending *pending, int number, const LfLockAnswer *answer)
{
	LfRemote   *remote = &pending->remotes[number];
	const LfResource *resource = &pending->mints[number].grant.resource;
	LfGrant		present;

	if (answer->state == LF_LOCK_HELD && !remote->barred &&
		lf_clock_after(answer->asked, answer->left) - lf_clock_now() >= ADOPT_LEAST)
	{
		remote->state = LF_REMOTE_GRANTED;
		set_deadline(remote, answer);
		pending->mints[number].grant.state.ttl = answer->left;
		return;
	}
	if (remote->barred && lf_entry_read(resource, &present))
	{
		if (answer->state == LF_LOCK_OTHER || answer->state == LF_LOCK_ABSENT)
			lf_entry_lift_bar(resource, present.state.token);
		else
			lf_tracked_add(&present, remote->lock);	/* until it shows that */
	}
	refuse(remote, answer);
}

/* ---- keeping ---- */

static void
take_answer_to_keep(LfRemote *remote, const LfLockAnswer *answer)
{
	bool		confirming = remote->confirming;

	remote->confirming = false;
	if (answer->state == LF_LOCK_HELD)
	{
		set_deadline(remote, answer);
		remote->confirmed = remote->confirmed || confirming;
	}
	else if (answer->state != LF_LOCK_UNKNOWN)
	{
		refuse(remote, answer);
		remote->state = LF_REMOTE_LOST;
	}
	else if (confirming)
		refuse(remote, answer);
	else
		remote->look_at = lf_clock_now() + RETRY_APART;
}

/* What was granted is gone: who adopts is told, who acquires begins anew. */
static void
give_up(LfPending *pending, const LfRemote *remote)
{
	if (remote->state == LF_REMOTE_REFUSED)
		lf_pending_refuse(pending, LF_ANSWER_COORDINATOR, remote->problem);
	else if (remote->adopts)
		lf_pending_refuse(pending, LF_ANSWER_NOT_HOLDER, lf_remote_finding(remote));
	else
	{
		lf_pending_abandon(pending);
		lf_pending_look_again();
	}
}

bool
lf_remote_keep(LfPending *pending, LfClock *next)
{
	LfClock		now = lf_clock_now();

	for (int i = 0; i < pending->reserved; i++)
	{
		LfRemote   *remote = &pending->remotes[i];

		if (remote->lock == NULL)
			continue;
		if (remote->state == LF_REMOTE_GRANTED && now >= remote->deadline)
		{
			remote->state = LF_REMOTE_LOST;
			remote->found = LF_LOCK_ABSENT;
		}
		if (remote->state != LF_REMOTE_GRANTED)
		{
			give_up(pending, remote);
			return false;
		}
		if (remote->question == 0 && now >= remote->look_at)
			ask(remote, remote->adopts ? LF_LOCK_CHECK : LF_LOCK_RENEW, NULL);
		*next = Min(*next, remote->question == 0 ? Min(remote->look_at, remote->deadline) :
					remote->deadline);
	}
	return true;
}

bool
lf_remote_confirm(LfPending *pending, LfClock *next)
{
	bool		confirmed = true;

	if (!pending->drain_waited)
		return true;
	for (int i = 0; i < pending->request.count; i++)
	{
		LfRemote   *remote = &pending->remotes[i];

		if (remote->lock == NULL || remote->confirmed)
			continue;
		confirmed = false;
		if (remote->confirming)
			continue;
		remote->confirming = true;
		ask(remote, remote->adopts ? LF_LOCK_VERIFY : LF_LOCK_RENEW, NULL);
	}
	return confirmed;
}

/* ---- renewing, for who asks ---- */

/* A new worker must have found its leases before one of them can be missing. */
static void
begin_to_renew(LfPending *pending)
{
	LfRemote   *remote = &pending->remotes[0];
	int64		token = pending->request.renewed;
	const LfLock *lock = lf_tracked_lock(token, &remote->value, &remote->adopts);
	LfGrantState state;

	if (lock != NULL)
	{
		remote->lock = lf_lock_copy(pending->context, lock);
		remote->state = LF_REMOTE_ASKED;
		LF_POINT("renew-unasked");
		ask(remote, remote->adopts ? LF_LOCK_VERIFY : LF_LOCK_RENEW, NULL);
	}
	else if (lf_entry_look(&pending->request.resource,
						   lf_resource_hash(&pending->request.resource), &state) &&
			 state.token == token && lf_grant_is_live(&state, lf_clock_now()))
		lf_pending_refuse(pending, LF_ANSWER_COORDINATOR, "its profile has changed since it was granted");
	else
		lf_pending_settle(pending, LF_ANSWER_OVER, token);
}

static void
take_answer_to_renew(LfPending *pending, const LfLockQuestion *question,
					 const LfLockAnswer *answer)
{
	LfRemote   *remote = &pending->remotes[0];

	LF_POINT("renew-answered");
	if (answer->state == LF_LOCK_UNKNOWN)
		refuse(remote, answer);
	else if (lf_tracked_take_answer(pending->request.renewed, question, answer))
		remote->state = LF_REMOTE_GRANTED;
	else if (answer->state == LF_LOCK_NO_EXPIRY)
	{
		refuse(remote, answer);
		strlcpy(remote->problem, lf_remote_finding(remote), sizeof(remote->problem));
	}
	else
		remote->state = LF_REMOTE_LOST;
}

void
lf_remote_renew(LfPending *pending, LfClock *next)
{
	const LfRemote *remote = &pending->remotes[0];

	switch (remote->state)
	{
		case LF_REMOTE_IDLE:
			if (lf_tracked_is_recovered())
				begin_to_renew(pending);
			else
				*next = Min(*next, lf_clock_now() + LF_RETRY_SOON);
			break;
		case LF_REMOTE_GRANTED:
			lf_pending_settle(pending, LF_ANSWER_GRANTED, pending->request.renewed);
			break;
		case LF_REMOTE_LOST:
			lf_pending_settle(pending, LF_ANSWER_OVER, pending->request.renewed);
			break;
		case LF_REMOTE_REFUSED:
			lf_pending_refuse(pending, LF_ANSWER_COORDINATOR, remote->problem);
			break;
		case LF_REMOTE_ASKED:
		case LF_REMOTE_BUSY:
			break;
	}
}

/* ---- answers ---- */

static LfRemote *
asker_of(uint64 question, LfPending **pending, int *number)
{
	dlist_iter	iter;

	dlist_foreach(iter, lf_pending_all())
	{
		*pending = lf_pending_of(iter.cur);
		for (*number = 0; *number < (*pending)->request.count; (*number)++)
		{
			if ((*pending)->remotes[*number].question == question)
				return &(*pending)->remotes[*number];
		}
	}
	return NULL;
}

/* Granted, or perhaps so, to who is not there any more. */
static void
answer_nobody(const LfLockQuestion *question, const LfLockAnswer *answer)
{
	if (question->call == LF_LOCK_TAKE &&
		(answer->state == LF_LOCK_HELD || (answer->state == LF_LOCK_UNKNOWN && answer->sent)))
		lf_tracked_release(question->lock, question->value, question->ttl,
						   answer->state == LF_LOCK_UNKNOWN);
}

/*
 * A lease of this lock that is live here has lost it, or may have: also if whoever
 * asked is gone by now, and no mint will end it.
 */
static bool
shows_another(const LfLockQuestion *question, const LfLockAnswer *answer)
{
	if (question->call == LF_LOCK_TAKE)
		return answer->state == LF_LOCK_HELD;
	return question->call == LF_LOCK_VERIFY &&
		(answer->state == LF_LOCK_OTHER || answer->state == LF_LOCK_ABSENT);
}

static void
answered(const LfLockQuestion *question, const LfLockAnswer *answer)
{
	LfPending  *pending = NULL;
	int			number = 0;
	LfRemote   *remote = asker_of(question->id, &pending, &number);

	if (remote != NULL)
		remote->question = 0;
	lf_remote_see(question, answer);
	if (shows_another(question, answer))
		lf_tracked_doubt(question->lock);
	if (remote == NULL)
	{
		answer_nobody(question, answer);
		return;
	}
	if (pending->request.kind == LF_REQUEST_RENEW)
		take_answer_to_renew(pending, question, answer);
	else if (remote->state == LF_REMOTE_GRANTED)
		take_answer_to_keep(remote, answer);
	else if (remote->state == LF_REMOTE_ASKED && remote->adopts)
		take_answer_to_verify(pending, number, answer);
	else if (remote->state == LF_REMOTE_ASKED)
		take_answer_to_take(pending, remote, answer);
}

/* ---- letting go ---- */

void
lf_remote_give_back(LfRemote *remote)
{
	if (remote->lock == NULL)
		return;
	if (remote->listening)
		lf_coordinator_unlisten(remote->lock);
	if (remote->ours && remote->state != LF_REMOTE_ASKED)
		lf_tracked_release(remote->lock, &remote->value, remote->ttl,
						   remote->state == LF_REMOTE_REFUSED);
	remote->state = LF_REMOTE_IDLE;
	remote->question = 0;		/* one that is under way meets nobody */
	remote->ours = remote->listening = false;
	remote->confirming = remote->confirmed = false;
}

bool
lf_remote_is_granted(const LfRemote *remote)
{
	return remote->lock == NULL ||
		(remote->state == LF_REMOTE_GRANTED && lf_clock_now() < remote->deadline);
}

void
lf_remote_hand_over(LfPending *pending, int number)
{
	LfRemote   *remote = &pending->remotes[number];
	LfMint	   *mint = &pending->mints[number];

	if (mint->old.coordinator == LF_COORDINATOR_REDIS)
		lf_tracked_remove(mint->old.token);
	if (remote->lock != NULL && mint->grant.state.over == LF_OVER_NOT)
	{
		lf_tracked_add(&mint->grant, remote->lock);
		remote->ours = false;
	}
	lf_remote_give_back(remote);
}

const char *
lf_remote_finding(const LfRemote *remote)
{
	switch (remote->found)
	{
		case LF_LOCK_HELD:
			return remote->barred ? "its lease was revoked, and it has held the lock ever since" :
				"less than 100 ms are left";
		case LF_LOCK_OTHER:
			return "another holder has the lock";
		case LF_LOCK_ABSENT:
			return "nobody has the lock";
		case LF_LOCK_NO_EXPIRY:
			return "the lock has no expiry";
		case LF_LOCK_WRONG_TYPE:
			return "what is stored under the lock's key has another type";
		case LF_LOCK_NO_GRANT:
			return "what is stored there is no grant of the lock";
		case LF_LOCK_UNKNOWN:
			break;
	}
	return remote->problem;
}
