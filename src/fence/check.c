/*
 * check.c
 *		The writer's steps: may this transaction write to that resource now?
 *
 * Runs in backends, in the guard's trigger at each row.  Look, lock, look
 * again; then the snapshot.  There is no "already checked" flag: each row looks
 * at the grant, and asks token_lock.c whether its lock is there.
 *
 * What must end well: a mint that begins between the two looks (the lock is not
 * to be had, or the second look sees it), an entry that is not in memory (it is
 * loaded under the share lock), a table of entries that is full (refused
 * without inserting).
 */
#include "postgres.h"

#include "access/xact.h"
#include "base/compat.h"
#include "base/point.h"
#include "fence/check.h"
#include "fence/epoch.h"
#include "fence/grants.h"
#include "fence/present.h"
#include "fence/token_lock.h"
#include "utils/snapmgr.h"

static FullTransactionId
widen_xid(TransactionId xid)
{
	FullTransactionId next = ReadNextFullTransactionId();
	uint32		epoch = EpochFromFullTransactionId(next);

	if (xid > XidFromFullTransactionId(next))
		epoch--;
	return FullTransactionIdFromEpochAndXid(epoch, xid);
}

/*
 * The cheap comparison is right whenever it says "before": both are within
 * half the range of the next xid.  An old grant may look like a later one;
 * then the full xids decide.
 */
static bool
snapshot_sees(FullTransactionId minted_by, Snapshot snapshot)
{
	TransactionId xid = XidFromFullTransactionId(minted_by);

	if (!FullTransactionIdIsValid(minted_by) ||
		TransactionIdPrecedes(xid, snapshot->xmin))
		return true;
	if (FullTransactionIdPrecedes(minted_by, widen_xid(snapshot->xmin)))
		return true;
	return !XidInMVCCSnapshot(xid, snapshot);
}

/*
 * The statement's snapshot, and the transaction's where that is what the
 * reading was done by: a cascade of a foreign key runs in a newer one.
 */
static bool
snapshots_see(FullTransactionId minted_by)
{
	if (ActiveSnapshotSet() && !snapshot_sees(minted_by, GetActiveSnapshot()))
		return false;
	return !IsolationUsesXactSnapshot() ||
		snapshot_sees(minted_by, GetTransactionSnapshot());
}

static bool
reject(LfVerdict *verdict, LfReason reason)
{
	verdict->kind = LF_VERDICT_REJECTED;
	verdict->reason = reason;
	return false;
}

/* Does the grant admit its holder at this moment? */
static bool
grant_admits(const LfGrantState *state, bool accept_lapsed, LfVerdict *verdict)
{
	if (state->draining || state->over != LF_OVER_NOT)
		return reject(verdict, lf_over_reason(state->over));
	if (!accept_lapsed && lf_clock_now() >= state->deadline)
		return reject(verdict, LF_REASON_LAPSED);
	return true;
}

/*
 * What the table says of a grant that is not the entry's, or has none.  One that
 * is its resource's latest and not over is good, but could not be brought into
 * memory: that is no verdict on it.
 */
static LfReason
reason_in_table(const LfGrant *grant)
{
	LfGrant		latest;

	if (lf_grants_latest(&grant->resource, &latest) &&
		latest.state.token > grant->state.token)
		return LF_REASON_SUPERSEDED;
	if (grant->state.over != LF_OVER_NOT)
		return lf_over_reason(grant->state.over);
	ereport(ERROR,
			(errcode(LF_ERRCODE_WORKER),
			 errmsg("the grant of token %lld cannot be looked at now",
					(long long) grant->state.token),
			 errdetail("Either a new grant of its resource is being made, or there is no room in memory for it."),
			 errhint("Try again. lease_fence.max_leases and max_locks_per_transaction limit what fits into memory.")));
}

/*
 * Which presented token speaks for this resource, if it is not the current one?
 * Only asked when the write is refused, so a look into the table is no matter.
 */
static void
classify(const LfResource *resource, LfVerdict *verdict)
{
	int64	   *tokens;
	int			count = lf_present_list(&tokens);
	int64		unknown = 0;

	reject(verdict, LF_REASON_MISSING);
	for (int i = 0; i < count; i++)
	{
		LfGrant		grant;

		if (!lf_epoch_has_minted(tokens[i]) || !lf_grants_by_token(tokens[i], &grant))
			unknown = tokens[i];
		else if (lf_resource_equal(&grant.resource, resource))
		{
			verdict->token = tokens[i];
			verdict->presented = grant.holder;
			verdict->reason = verdict->current.token > tokens[i] ? LF_REASON_SUPERSEDED :
				reason_in_table(&grant);
			break;
		}
	}
	if (verdict->reason == LF_REASON_MISSING && unknown != 0)
	{
		verdict->token = unknown;
		verdict->reason = LF_REASON_UNKNOWN;
	}
	pfree(tokens);
}

static bool
is_latest(const LfResource *resource, int64 token, LfGrant *grant)
{
	return lf_grants_latest(resource, grant) && grant->state.token == token;
}

/* Under the share lock of the token. */
static bool
load_locked(const LfResource *resource, int64 token)
{
	volatile bool filled = false;
	LfEntryLoad load;
	LfGrant		grant;

	if (!is_latest(resource, token, &grant) || !lf_entry_begin_load(resource, &load))
		return false;
	PG_TRY();
	{
		if (is_latest(resource, token, &grant))
		{
			LF_POINT("load-read");
			filled = lf_entry_fill(&grant, &load);
		}
	}
	PG_FINALLY();
	{
		if (load.inserted && !filled)
			lf_entry_cancel_load(resource, &load);
	}
	PG_END_TRY();
	return filled;
}

/*
 * The entry is not in memory.  A token that is the resource's latest in the
 * table may bring it back, under that token's share lock: no mint can pass us
 * then.  A reader with another token inserts nothing.  The entry stands there as
 * loading before the table is read for good, so that whoever ends the grant
 * meanwhile leaves a mark on it.
 *
 * A row above all that was minted here came by a restore: it speaks of another
 * history's lease, and a new epoch is due.
 */
bool
lf_check_load(const LfResource *resource, int64 token)
{
	bool		loaded;

	if (!lf_epoch_has_minted(token))
	{
		lf_epoch_raise_floor(token);
		return false;
	}
	if (!lf_token_lock_share(token))
		return false;
	loaded = load_locked(resource, token);
	lf_token_unlock_share(token);
	return loaded;
}

static bool
load_entry(const LfResource *resource, int64 floor)
{
	int64	   *tokens;
	int			count = lf_present_list(&tokens);
	bool		loaded = false;

	for (int i = 0; !loaded && i < count; i++)
	{
		LfGrant		grant;

		if (tokens[i] > floor && lf_grants_by_token(tokens[i], &grant) &&
			lf_resource_equal(&grant.resource, resource))
			loaded = lf_check_load(resource, tokens[i]);
	}
	pfree(tokens);
	return loaded;
}

/* Who only observes takes no lock: what the table says will do. */
static void
read_unlocked(const LfResource *resource, LfGrantState *state)
{
	LfGrant		grant;

	if (lf_grants_latest(resource, &grant))
		*state = grant.state;
}

/*
 * Step 0: without any lock of the token.  No new sharer joins a drain, and a
 * stream of them cannot hold one off.
 */
static bool
first_look(const LfResource *resource, uint32 hash, int64 floor,
		   bool accept_lapsed, bool observing, LfVerdict *verdict)
{
	LfGrantState *state = &verdict->current;
	bool		there = lf_entry_look(resource, hash, state) && !state->loading;

	if (!there && !observing && load_entry(resource, floor))
		there = lf_entry_look(resource, hash, state) && !state->loading;
	if (!there)
		memset(state, 0, sizeof(*state));
	if (!there && observing)
		read_unlocked(resource, state);

	if (state->token == 0)
	{
		classify(resource, verdict);
		return false;
	}
	switch (lf_present_match(state->token, state->role))
	{
		case LF_MATCH_NONE:
			classify(resource, verdict);
			return false;
		case LF_MATCH_WRONG_ROLE:
			verdict->token = state->token;
			return reject(verdict, LF_REASON_WRONG_ROLE);
		case LF_MATCH_YES:
			break;
	}
	verdict->token = state->token;
	if (state->token <= floor)
		return reject(verdict, LF_REASON_UNKNOWN);
	return grant_admits(state, accept_lapsed, verdict);
}

/* Step 2: what changed while the lock was taken, or why it was not had. */
static bool
second_look(const LfResource *resource, uint32 hash, bool accept_lapsed,
			LfVerdict *verdict)
{
	LfGrantState *state = &verdict->current;

	if (!lf_entry_look(resource, hash, state) || state->loading ||
		state->token != verdict->token)
		return reject(verdict, LF_REASON_SUPERSEDED);
	return grant_admits(state, accept_lapsed, verdict);
}

static void
lock_table_is_full(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("out of shared memory"),
			 errdetail("The lock that keeps a fence shut until this transaction ends could not be had."),
			 errhint("You might need to increase max_locks_per_transaction.")));
}

/* The statement must see what was there when the grant was made. */
static bool
check_snapshots(LfVerdict *verdict)
{
	return snapshots_see(verdict->current.minted_by) ||
		reject(verdict, LF_REASON_SNAPSHOT);
}

/* Steps 1 to 3, for a token that the first look admitted. */
static void
lock_and_look(const LfResource *resource, uint32 hash, bool accept_lapsed,
			  LfVerdict *verdict)
{
	LF_POINT("check-looked");
	if (!lf_token_lock_share(verdict->token))
	{
		if (second_look(resource, hash, accept_lapsed, verdict))
			lock_table_is_full();
		return;
	}
	LF_POINT("check-locked");
	if (second_look(resource, hash, accept_lapsed, verdict) && check_snapshots(verdict))
		verdict->locked = true;
	else
		lf_token_unlock_share(verdict->token);
	LF_POINT("check-done");
}

/*
 * All steps.  Where this transaction has the lock already, the first look was one
 * under the lock: it is the second one too.  What a savepoint took is not had any
 * more when it is rolled back.
 */
static void
look_and_lock(const LfResource *resource, uint32 hash, int64 floor,
			  bool accept_lapsed, LfVerdict *verdict)
{
	if (!first_look(resource, hash, floor, accept_lapsed, false, verdict))
		return;
	if (lf_token_lock_is_shared(verdict->token))
		check_snapshots(verdict);
	else
		lock_and_look(resource, hash, accept_lapsed, verdict);
}

/* Who presents nothing is refused in any epoch. */
static void
refuse_unconfirmed(LfVerdict *verdict)
{
	int64	   *tokens;

	if (lf_present_list(&tokens) == 0)
		reject(verdict, LF_REASON_MISSING);
	else
		verdict->kind = LF_VERDICT_UNCONFIRMED;
	pfree(tokens);
}

void
lf_check_resource(const LfResource *resource, bool accept_lapsed,
				  bool observing, LfVerdict *verdict)
{
	uint32		hash = lf_resource_hash(resource);
	int64		floor;

	LF_POINT("check-begun");
	verdict->kind = LF_VERDICT_ACCEPTED;
	verdict->token = 0;
	verdict->locked = false;
	verdict->presented.length = 0;
	memset(&verdict->current, 0, sizeof(verdict->current));
	if (!lf_epoch_confirmed(&floor))
		refuse_unconfirmed(verdict);
	else if (observing)
		first_look(resource, hash, floor, accept_lapsed, true, verdict);
	else
		look_and_lock(resource, hash, floor, accept_lapsed, verdict);
}

void
lf_check_token(int64 token, LfVerdict *verdict, LfResource *resource)
{
	LfGrant		grant;
	int64		floor;

	memset(verdict, 0, sizeof(*verdict));
	memset(resource, 0, sizeof(*resource));
	verdict->kind = LF_VERDICT_ACCEPTED;
	verdict->token = token;
	if (!lf_epoch_confirmed(&floor))
		verdict->kind = LF_VERDICT_UNCONFIRMED;
	else if (!lf_epoch_has_minted(token) || !lf_grants_by_token(token, &grant))
		reject(verdict, LF_REASON_UNKNOWN);
	else
	{
		uint32		hash = lf_resource_hash(&grant.resource);

		*resource = grant.resource;
		look_and_lock(resource, hash, floor, false, verdict);

		/* numbers can be guessed: nobody learns what another role has leased */
		if (verdict->kind == LF_VERDICT_REJECTED &&
			(verdict->reason == LF_REASON_WRONG_ROLE ||
			 !lf_present_role_allowed(grant.state.role)))
		{
			verdict->reason = LF_REASON_WRONG_ROLE;
			memset(resource, 0, sizeof(*resource));
		}
	}
}
