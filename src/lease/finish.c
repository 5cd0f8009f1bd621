/*
 * finish.c
 *		Minting for the requests that are ready, publishing, answering.
 *
 * Runs in the database's worker.  All that are ready in a pass are minted in
 * one transaction; each is published, and answered, when the standbys have
 * passed its commit.  A revocation takes the same way, but mints nothing.
 *
 * What must end well: a mint that fails (its neighbours in the batch are tried
 * alone), a standby that does not answer (the others' leases go on), a session
 * that withdrew what is committed (it is published as over).
 */
#include "postgres.h"

#include "access/xlog.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/point.h"
#include "base/transaction.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fence/ends.h"
#include "lease/pending.h"
#include "lease/remote.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"

/* How soon to look again, in microseconds: standbys do not wake us. */
#define RETRY_STANDBY	INT64CONST(2000)

/* A revocation is minted like a grant, but for the grant. */
typedef struct RevokeWork
{
	int64		token;
	const char *reason;
} RevokeWork;

/* ---- minting ---- */

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
void
lf_finish_batch(LfPending **batch, int count, LfClock *next)
{
	char	   *problem;

	if (count == 0 || commit_batch(batch, count, &problem))
		return;
	if (problem == NULL)
	{
		*next = Min(*next, lf_clock_now() + LF_RETRY_SOON);
		return;
	}
	for (int i = 0; i < count; i++)
	{
		if (count > 1 && commit_batch(&batch[i], 1, &problem))
			continue;
		if (problem != NULL)
			lf_pending_refuse(batch[i], LF_ANSWER_FAILED, problem);
		else
			*next = Min(*next, lf_clock_now() + LF_RETRY_SOON);
	}
}

/* ---- revoking ---- */

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

void
lf_finish_revoke(LfPending *pending, LfClock *next)
{
	RevokeWork	work = {pending->mints[0].old.token, pending->request.reason};
	XLogRecPtr	end;
	char	   *problem;

	while (lf_ends_write() > 0)
		;
	if (lf_entry_end_is_pending(&pending->mints[0].grant.resource))
	{
		*next = Min(*next, lf_clock_now() + LF_RETRY_SOON);
		return;
	}
	if (pending->was_live && work.reason[0] != '\0')
		lf_transaction_try("noting a revocation", note_reason, &work, &end, &problem);
	pending->end = GetFlushRecPtr(NULL);
	pending->committed = true;
}

/* ---- publishing ---- */

static void
answer_granted(LfPending *pending)
{
	for (int i = 0; pending->segment != NULL && i < pending->request.count; i++)
		lf_pending_names(pending)[i].token = pending->mints[i].grant.state.token;
	if (lf_request_answer(pending->slot, pending->request.ticket, LF_ANSWER_GRANTED,
						  pending->mints[0].grant.state.token, NULL))
		return;
	/* withdrawn between publishing and now */
	lf_pending_look_again();
	for (int i = 0; i < pending->request.count; i++)
		lf_entry_end(&pending->mints[i].grant.resource,
					 pending->mints[i].grant.state.token, LF_OVER_RELEASED);
}

/* A lock that is gone by now, or whose time is over. */
static const LfRemote *
find_lost(const LfPending *pending)
{
	for (int i = 0; i < pending->request.count; i++)
	{
		if (!lf_remote_is_granted(&pending->remotes[i]))
			return &pending->remotes[i];
	}
	return NULL;
}

static void
answer_lost(LfPending *pending, const LfRemote *lost)
{
	lf_request_answer(pending->slot, pending->request.ticket,
					  lost->adopts ? LF_ANSWER_NOT_HOLDER : LF_ANSWER_COORDINATOR,
					  0, "the lock was lost while its grant was made");
}

/* Step 4.  What was committed is published, if need be as over. */
static void
publish(LfPending *pending)
{
	const LfRemote *lost;

	if (pending->request.kind == LF_REQUEST_REVOKE)
	{
		lf_pending_look_again();
		lf_mint_abandon(&pending->mints[0]);
		lf_request_answer(pending->slot, pending->request.ticket,
						  pending->was_live ? LF_ANSWER_GRANTED : LF_ANSWER_NOTHING, 0, NULL);
		return;
	}
	lost = find_lost(pending);
	for (int i = 0; i < pending->request.count; i++)
	{
		LfMint	   *mint = &pending->mints[i];

		if (lost != NULL || !lf_pending_is_open(pending))
		{
			mint->grant.state.over = LF_OVER_RELEASED;
			lf_pending_look_again();
		}
		if (pending->remotes[i].lock != NULL)
			mint->until = pending->remotes[i].deadline;
		lf_mint_publish(mint);
		lf_remote_hand_over(pending, i);
	}
	LF_POINT("mint-unanswered");
	if (lost != NULL)
		answer_lost(pending, lost);
	else
		answer_granted(pending);
	LF_POINT("mint-answered");
}

void
lf_finish_committed(LfClock *next)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, lf_pending_all())
	{
		LfPending  *pending = lf_pending_of(iter.cur);

		if (!pending->committed)
			continue;
		if (!lf_standbys_passed(pending->end))
		{
			*next = Min(*next, lf_clock_now() + RETRY_STANDBY);
			continue;
		}
		publish(pending);
		lf_pending_forget(pending);
	}
}
