/*
 * mint.c
 *		Minting: making a token durable and current.
 *
 * Runs in the database's one worker, which holds the minter's lock for its
 * life.  Nothing here waits: a lock that is not to be had at once is an answer.
 *
 * The order is the protocol: the old token is dead for everybody (step 1)
 * before its writers are drained (step 2), they are gone before the new token
 * exists (step 3), it is durable, here and on the synchronous standbys, before
 * anybody can write under it (step 4).
 *
 * What must end well: the worker's death between any two steps.  Before the
 * commit nothing has been granted, and "over" stays; after it, the next worker
 * finds the entry draining, and publishes what the table says.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "audit/audit.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/database.h"
#include "base/point.h"
#include "base/settings.h"
#include "base/stat.h"
#include "base/transaction.h"
#include "executor/spi.h"
#include "fence/drain.h"
#include "fence/ends.h"
#include "fence/epoch.h"
#include "fence/grants.h"
#include "fence/mint.h"
#include "fence/token_lock.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

/* JSON clients carry integers up to this one unharmed. */
#define TOKEN_MAX ((INT64CONST(1) << 53) - 1)

typedef struct LoadWork
{
	const LfResource *resource;
	LfEntryLoad load;
	bool		opened;
} LoadWork;

typedef struct MintWork
{
	LfMint	  **mints;
	int			count;
	bool		opened;
} MintWork;

void
lf_mint_check_range(int64 token)
{
	if (token >= TOKEN_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the range of tokens is exhausted at %lld", (long long) token)));
}

/*
 * A token that the table has and nobody has minted here came with another
 * history, by a restore: an epoch begins above it before anything goes on.
 */
static bool
is_of_here(int64 token)
{
	if (token <= lf_epoch_floor(lf_database_mine()) || lf_epoch_has_minted(token))
		return true;
	lf_epoch_raise_floor(token);
	return false;
}

static void
load_entry(void *arg)
{
	LoadWork   *work = arg;
	LfGrant		grant;

	work->opened = lf_grants_try_lock();
	if (!work->opened)
		return;
	if (!lf_grants_latest(work->resource, &grant))
	{
		memset(&grant, 0, sizeof(grant));
		grant.resource = *work->resource;
		grant.state.owner = -1;
		grant.state.over = LF_OVER_RELEASED;
	}
	work->opened = is_of_here(grant.state.token);
	if (!work->opened)
		return;
	lf_entry_fill(&grant, &work->load);

	/* one of another epoch that a restore brought holds nothing */
	if (grant.state.token <= lf_epoch_floor(lf_database_mine()))
		lf_entry_end(&grant.resource, grant.state.token, LF_OVER_LAPSED);
}

LfLoad
lf_mint_load(const LfResource *resource, LfGrantState *state)
{
	uint32		hash = lf_resource_hash(resource);
	LoadWork	work = {.resource = resource};
	XLogRecPtr	end;
	char	   *problem;

	if (lf_entry_look(resource, hash, state) && !state->loading)
		return LF_LOAD_DONE;
	if (!lf_entry_begin_load(resource, &work.load))
		return LF_LOAD_NO_ROOM;
	if (lf_transaction_try("loading a grant", load_entry, &work, &end, &problem) &&
		work.opened && lf_entry_look(resource, hash, state) && !state->loading)
		return LF_LOAD_DONE;
	if (work.load.inserted)
		lf_entry_cancel_load(resource, &work.load);
	return LF_LOAD_LATER;
}

/*
 * Who released before the end of its transaction gets until the deadline that
 * it had; who lapsed or was replaced gets drain_timeout from the first request
 * on, however many of them give up before: else short waits would never get
 * through.  A revocation begins that time anew.
 */
bool
lf_mint_begin(LfMint *mint, LfOver how)
{
	LfClock		since;

	if (!lf_entry_begin_mint(&mint->grant.resource, how, &mint->old,
							 &mint->old_end_written))
		return false;
	LF_POINT("mint-begun");
	mint->begun = true;
	mint->locked = mint->old.token == 0;
	since = how == LF_OVER_REVOKED ? lf_clock_now() : mint->old.drain_since;
	mint->terminate_at = lf_clock_after(since, lf_drain_timeout * INT64CONST(1000));
	if (mint->old.over == LF_OVER_RELEASED && how != LF_OVER_REVOKED)
		mint->terminate_at = Max(mint->terminate_at, mint->old.deadline);
	return true;
}

LfDrainState
lf_mint_drain(LfMint *mint, int asker)
{
	if (!mint->locked)
		mint->locked = lf_token_lock_exclusive(mint->old.token);
	if (mint->locked)
	{
		LF_POINT("mint-drained");
		return LF_DRAIN_DONE;
	}
	return lf_drain_look(mint, asker);
}

static void
unlock(LfMint *mint)
{
	if (mint->locked && mint->old.token != 0)
		lf_token_unlock_exclusive(mint->old.token);
	mint->locked = false;
}

/* A table that somebody has locked is no reason to wait: the log has it. */
static void
write_terminations(LfMint *mint)
{
	if (mint->termination_count == 0 || !lf_audit_lock_table())
		return;
	for (int i = 0; i < mint->termination_count; i++)
	{
		mint->terminations[i].new_token = mint->grant.state.token;
		lf_audit_insert_termination(&mint->terminations[i]);
	}
}

/* Of the grants that these replace. */
static void
write_old_ends(const MintWork *work)
{
	LfEnd	   *ends = palloc0(work->count * sizeof(LfEnd));
	int			count = 0;

	for (int i = 0; i < work->count; i++)
	{
		const LfMint *mint = work->mints[i];

		if (mint->old.token == 0 || mint->old_end_written)
			continue;
		ends[count].token = mint->old.token;
		ends[count].how = mint->old.over;
		ends[count++].at = mint->grant.granted_at;
	}
	lf_ends_update(ends, count);
	pfree(ends);
}

/*
 * The last token is read inside the transaction that mints: with one minter,
 * the highest committed token is the highest there is.
 */
static void
mint_all(void *arg)
{
	MintWork   *work = arg;
	FullTransactionId xid;
	LfTableWriter *grants;
	int64		floor;
	int64		token;

	work->opened = ConditionalLockRelationOid(lf_catalog_required()->grants, RowExclusiveLock);
	if (!work->opened)
		return;
	if (!lf_epoch_confirmed(&floor))
	{
		/* dropped and created again during this pass: the next one sees it */
		work->opened = false;
		return;
	}
	token = Max(lf_grants_last_token(), floor);
	work->opened = is_of_here(token);
	if (!work->opened)
		return;
	lf_mint_check_range(token + work->count);
	lf_epoch_note_mint(token + work->count);
	xid = GetCurrentFullTransactionId();

	grants = lf_grants_open();
	for (int i = 0; i < work->count; i++)
	{
		LfMint	   *mint = work->mints[i];

		mint->grant.state.token = ++token;
		mint->grant.state.minted_by = xid;
		mint->grant.granted_at = GetCurrentTimestamp();
		lf_grants_add(grants, &mint->grant);
	}
	lf_table_close(grants);

	SPI_connect();
	write_old_ends(work);
	for (int i = 0; i < work->count; i++)
		write_terminations(work->mints[i]);
	SPI_finish();
	LF_POINT("mint-inserted");
}

bool
lf_mint_commit(LfMint **mints, int count, XLogRecPtr *end, char **problem)
{
	MintWork	work = {mints, count, false};

	*problem = NULL;
	if (!lf_transaction_try("minting", mint_all, &work, end, problem) || !work.opened)
		return false;
	lf_stat_add(lf_database_mine(), LF_STAT_MINTS, 1);
	lf_stat_add(lf_database_mine(), LF_STAT_GRANTED, count);
	LF_POINT("mint-committed");
	return true;
}

void
lf_mint_publish(LfMint *mint)
{
	LfGrantState *state = &mint->grant.state;

	state->deadline = mint->until != 0 ? mint->until :
		lf_clock_after(lf_clock_now(), state->ttl);
	lf_entry_publish(&mint->grant);
	LF_POINT("mint-published");
	unlock(mint);
	mint->begun = false;
}

static void
write_lost_terminations(void *arg)
{
	write_terminations((LfMint *) arg);
}

void
lf_mint_abandon(LfMint *mint)
{
	XLogRecPtr	end;
	char	   *problem;

	unlock(mint);
	if (mint->begun)
		lf_entry_cancel_mint(&mint->grant.resource);
	mint->begun = false;
	mint->grant.state.token = 0;
	if (mint->termination_count > 0)
		lf_transaction_try("recording terminations", write_lost_terminations,
						   mint, &end, &problem);
	mint->termination_count = 0;
}

/*
 * The grant that a dead worker committed and did not publish: nobody was told
 * of it, so it is over from the start.
 */
static void
settle_entry(void *arg)
{
	LfGrant    *grant = arg;
	LfGrant		latest;

	if (!lf_grants_try_lock())
		return;
	if (!lf_grants_latest(&grant->resource, &latest) ||
		latest.state.token <= grant->state.token)
	{
		lf_entry_cancel_mint(&grant->resource);
		return;
	}
	if (latest.state.over == LF_OVER_NOT)
		latest.state.over = LF_OVER_RELEASED;
	lf_entry_publish(&latest);
}

bool
lf_mint_recover(XLogRecPtr position)
{
	LfGrant		grant;
	int			cursor = 0;
	XLogRecPtr	end;
	char	   *problem;

	while (lf_entry_next(MyDatabaseId, &cursor, &grant))
	{
		if (!grant.state.draining)
			continue;
		if (!lf_standbys_passed(position) ||
			!lf_transaction_try("settling an interrupted grant", settle_entry,
								&grant, &end, &problem))
			return false;
		if (lf_entry_read(&grant.resource, &grant) && grant.state.draining)
			return false;
	}
	return true;
}
