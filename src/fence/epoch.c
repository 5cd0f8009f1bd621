/*
 * epoch.c
 *		Epochs: uninterrupted histories of a database.
 *
 * Runs in backends (confirming) and in workers (beginning).
 *
 * What must end well: promotion, point-in-time restore, dump and restore,
 * template copy, pg_upgrade, DROP and CREATE EXTENSION: each changes one of the
 * four facts that a row of lease_fence.epochs remembers, and the first worker
 * that sees it begins a new epoch.  A crash restart changes none of them.
 */
#include "postgres.h"

#include "access/xact.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/database.h"
#include "base/shmem.h"
#include "base/transaction.h"
#include "executor/spi.h"
#include "fence/entry.h"
#include "fence/epoch.h"
#include "fence/epoch_table.h"
#include "fence/grants.h"
#include "fence/mint.h"
#include "fence/stamp.h"
#include "port/atomics.h"
#include "storage/lmgr.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

/* Microseconds from 2000-01-01, PostgreSQL's own zero, to 2025-01-01 UTC. */
#define START_OF_2025 (INT64CONST(9132) * USECS_PER_DAY)

/*
 * floor is 0 until the epoch is confirmed; what it means is only good together
 * with database and extension, which change under LF_LOCK_EPOCHS, floor first
 * set to 0.
 */
typedef struct LfEpochState
{
	Oid			database;
	Oid			extension;
	int64		id;
	pg_atomic_uint64 floor;
	pg_atomic_uint64 minted;	/* highest token of this epoch */
	pg_atomic_uint64 stamp;		/* highest trace of another history */
	pg_atomic_uint32 asked;		/* somebody wanted it confirmed, and it was not */
} LfEpochState;

static LfEpochState *states = NULL;

/* Backend: what a protect() of this transaction found. */
static int64 found_stamp = 0;
static bool callback_registered = false;

/* Worker: begun in a transaction that has not committed yet. */
static LfEpoch begun;

Size
lf_epoch_shmem_size(void)
{
	return mul_size(LF_MAX_DATABASES, sizeof(LfEpochState));
}

void
lf_epoch_shmem_init(void)
{
	bool		there;

	states = ShmemInitStruct("lease_fence epochs", lf_epoch_shmem_size(), &there);
	if (there)
		return;
	for (int i = 0; i < LF_MAX_DATABASES; i++)
	{
		memset(&states[i], 0, sizeof(LfEpochState));
		pg_atomic_init_u64(&states[i].floor, 0);
		pg_atomic_init_u64(&states[i].minted, 0);
		pg_atomic_init_u64(&states[i].stamp, 0);
		pg_atomic_init_u32(&states[i].asked, 0);
	}
}

/*
 * Floors grow along a history.  Ids would not do: a restore may have brought the
 * epochs of another one, with ids of its own.
 */
static bool
is_older(const LfEpoch *epoch, LfEpochState *state)
{
	int64		floor = (int64) pg_atomic_read_u64(&state->floor);

	return state->database == epoch->database && state->extension == epoch->extension &&
		(epoch->floor < floor || (epoch->floor == floor && epoch->id < state->id));
}

/* Of one epoch it only grows: a backend's look at the table may be an old one. */
static void
raise_minted(LfEpochState *state, uint64 token)
{
	uint64		known = pg_atomic_read_u64(&state->minted);

	while (known < token &&
		   !pg_atomic_compare_exchange_u64(&state->minted, &known, token))
		;
}

/*
 * Only ever called with the epoch that the table names last, and the highest
 * token there: by the worker, or by a backend that found it unchanged.  A
 * backend that is late must not put an older one back.
 */
static void
publish(int database, const LfEpoch *epoch, int64 minted)
{
	LfEpochState *state = &states[database];

	LWLockAcquire(lf_lwlock(LF_LOCK_EPOCHS), LW_EXCLUSIVE);
	if (!is_older(epoch, state))
	{
		bool		same = state->database == epoch->database &&
			state->extension == epoch->extension && state->id == epoch->id &&
			(int64) pg_atomic_read_u64(&state->floor) == epoch->floor;

		if (!same)
		{
			pg_atomic_write_u64(&state->floor, 0);
			pg_atomic_write_u64(&state->minted, 0);
		}
		raise_minted(state, Max(minted, epoch->floor));
		state->database = epoch->database;
		state->extension = epoch->extension;
		state->id = epoch->id;
		pg_write_barrier();
		pg_atomic_write_u64(&state->floor, (uint64) epoch->floor);
	}
	LWLockRelease(lf_lwlock(LF_LOCK_EPOCHS));
}

bool
lf_epoch_confirmed(int64 *floor)
{
	int			database = lf_database_mine();
	const LfCatalog *catalog = lf_catalog();
	LfEpochState *state;
	LfEpoch		last;

	if (database < 0 || catalog == NULL)
		return false;
	state = &states[database];
	*floor = (int64) pg_atomic_read_u64(&state->floor);
	pg_read_barrier();
	if (*floor != 0 && state->database == MyDatabaseId &&
		state->extension == catalog->extension)
		return true;

	if (!lf_epoch_read_last(&last))
	{
		*floor = PG_INT64_MAX;
		return true;
	}
	if (lf_epoch_is_present(&last))
	{
		publish(database, &last, lf_grants_last_token());
		*floor = last.floor;
		return true;
	}
	pg_atomic_write_u32(&state->asked, 1);
	lf_database_want(database);
	return false;
}

bool
lf_epoch_has_minted(int64 token)
{
	int			database = lf_database_mine();

	if (database < 0 || token <= (int64) pg_atomic_read_u64(&states[database].floor))
		return false;
	return token <= (int64) pg_atomic_read_u64(&states[database].minted);
}

void
lf_epoch_note_mint(int64 token)
{
	raise_minted(&states[lf_database_mine()], (uint64) token);
}

void
lf_epoch_raise_floor(int64 stamp)
{
	int			database = lf_database_mine();
	uint64		known;

	if (database < 0)
		return;
	known = pg_atomic_read_u64(&states[database].stamp);
	while (known < (uint64) stamp &&
		   !pg_atomic_compare_exchange_u64(&states[database].stamp, &known,
										   (uint64) stamp))
		;
	pg_atomic_write_u32(&states[database].asked, 1);
	lf_database_want(database);
}

/* A protect() that is rolled back has found nothing. */
static void
end_of_transaction(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT && found_stamp > 0)
		lf_epoch_raise_floor(found_stamp);
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT ||
		event == XACT_EVENT_PREPARE)
		found_stamp = 0;
}

void
lf_epoch_raise_floor_at_commit(int64 stamp)
{
	lf_shmem_require();			/* now, and not in the middle of a commit */
	if (!callback_registered)
	{
		RegisterXactCallback(end_of_transaction, NULL);
		callback_registered = true;
	}
	found_stamp = Max(found_stamp, stamp);
}

/*
 * The place may still hold what an extension that was dropped has left, or a
 * database that was dropped: that says nothing of ours.
 */
bool
lf_epoch_look(int database, Oid extension, LfEpochView *view)
{
	LfEpochState *state = &states[database];

	memset(view, 0, sizeof(*view));
	LWLockAcquire(lf_lwlock(LF_LOCK_EPOCHS), LW_SHARED);
	if (state->database == MyDatabaseId && state->extension == extension)
	{
		view->id = state->id;
		view->floor = (int64) pg_atomic_read_u64(&state->floor);
		view->confirmed = view->floor != 0;
	}
	LWLockRelease(lf_lwlock(LF_LOCK_EPOCHS));
	return view->id != 0;
}

int64
lf_epoch_floor(int database)
{
	return (int64) pg_atomic_read_u64(&states[database].floor);
}

/* Caller holds the lock exclusively. */
static void
forget_state(LfEpochState *state)
{
	pg_atomic_write_u64(&state->floor, 0);
	state->id = 0;
	state->database = InvalidOid;
	state->extension = InvalidOid;
	pg_atomic_write_u64(&state->stamp, 0);
	pg_atomic_write_u32(&state->asked, 0);
}

void
lf_epoch_forget(int database)
{
	LWLockAcquire(lf_lwlock(LF_LOCK_EPOCHS), LW_EXCLUSIVE);
	forget_state(&states[database]);
	LWLockRelease(lf_lwlock(LF_LOCK_EPOCHS));
}

/*
 * Compared and forgotten under one lock: what a backend has just confirmed for
 * the present extension, and the entries that it loaded since, must stay.
 */
bool
lf_epoch_forget_other(int database, Oid extension)
{
	LfEpochState *state = &states[database];
	bool		other;

	LWLockAcquire(lf_lwlock(LF_LOCK_EPOCHS), LW_EXCLUSIVE);
	other = state->id != 0 &&
		(state->database != MyDatabaseId || state->extension != extension);
	if (other)
		forget_state(state);
	LWLockRelease(lf_lwlock(LF_LOCK_EPOCHS));
	return other;
}

/* Does a stamp, or a grant of another history, stand above all that was minted? */
static bool
stamp_is_ahead(int database, Oid extension)
{
	int64		stamp = (int64) pg_atomic_read_u64(&states[database].stamp);
	LfEpochView view;

	if (stamp == 0)
		return false;
	return lf_epoch_look(database, extension, &view) && stamp > view.floor &&
		stamp > (int64) pg_atomic_read_u64(&states[database].minted);
}

/* The worker never waits for a lock: not for one of our own tables either. */
static bool
lock_own_tables(LOCKMODE mode)
{
	const LfCatalog *catalog = lf_catalog_required();

	return ConditionalLockRelationOid(catalog->epochs, mode) &&
		ConditionalLockRelationOid(catalog->epochs_index, AccessShareLock) &&
		ConditionalLockRelationOid(catalog->grants, mode) && lf_grants_try_lock() &&
		ConditionalLockRelationOid(catalog->guard_modes, AccessShareLock);
}

/* What was raised above it meanwhile stays for the next look. */
static void
forget_stamp(int database, uint64 up_to)
{
	uint64		known = pg_atomic_read_u64(&states[database].stamp);

	if (known <= up_to)
		pg_atomic_compare_exchange_u64(&states[database].stamp, &known, 0);
}

/* In a transaction, our tables locked. */
static LfEpochNeed
look_at_need(int database, Oid extension, bool confirmed)
{
	LfEpoch		last;

	if (confirmed)
		return stamp_is_ahead(database, extension) ? LF_EPOCH_DUE : LF_EPOCH_GOOD;
	if (!lf_epoch_read_last(&last))
		return pg_atomic_read_u32(&states[database].asked) != 0 ?
			LF_EPOCH_DUE : LF_EPOCH_FIRST;
	if (!lf_epoch_is_present(&last))
		return LF_EPOCH_DUE;
	publish(database, &last, lf_grants_last_token());
	return LF_EPOCH_GOOD;
}

/* A stamp that cannot be compared yet is kept for the next look. */
LfEpochNeed
lf_epoch_need(int database, Oid extension)
{
	uint64		stamp = pg_atomic_read_u64(&states[database].stamp);
	LfEpochView view;
	LfEpochNeed need;

	lf_epoch_look(database, extension, &view);
	if (view.confirmed && stamp == 0)
		return LF_EPOCH_GOOD;

	lf_transaction_begin("confirming the epoch");
	if (!lock_own_tables(AccessShareLock))
		need = view.confirmed ? LF_EPOCH_GOOD : LF_EPOCH_LATER;
	else
	{
		need = look_at_need(database, extension, view.confirmed);
		if (need == LF_EPOCH_GOOD && view.confirmed)
			forget_stamp(database, stamp);
	}
	lf_transaction_commit();
	return need;
}

int64
lf_epoch_begin(int database, const char *reason)
{
	LfEpoch		last;

	if (!lock_own_tables(RowExclusiveLock))
		return 0;
	lf_epoch_read_last(&last);
	lf_epoch_describe_present(&begun);
	begun.id = last.id + 1;
	if (reason == NULL)
		reason = last.id == 0 ? "the extension was created" :
			"the history of this database is not the one before";

	SPI_connect();
	begun.floor = Max(last.floor, lf_grants_last_token());
	begun.floor = Max(begun.floor, GetCurrentTimestamp() - START_OF_2025);
	begun.floor = Max(begun.floor, (int64) pg_atomic_read_u64(&states[database].stamp));
	begun.floor = Max(begun.floor, lf_stamp_largest());
	lf_mint_check_range(begun.floor);
	lf_epoch_insert(&begun, reason);
	SPI_execute("UPDATE lease_fence.grants SET ended_at = pg_catalog.clock_timestamp(), how_ended = 'epoch'"
				" WHERE ended_at IS NULL", false, 0);
	SPI_finish();
	return begun.floor;
}

/*
 * No entry of before may speak any more: its token is below the floor, which
 * is published first.
 */
void
lf_epoch_began(int database)
{
	publish(database, &begun, begun.floor);
	forget_stamp(database, (uint64) begun.floor);
	pg_atomic_write_u32(&states[database].asked, 0);
	lf_entry_forget_database(MyDatabaseId);
	ereport(LOG,
			(errmsg("lease_fence: epoch %lld begins, every token up to %lld is refused",
					(long long) begun.id, (long long) begun.floor)));
}
