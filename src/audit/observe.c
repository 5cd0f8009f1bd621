/*
 * observe.c
 *		Guards in mode observe: a bounded shared table that counts the writes
 *		that would have been refused.
 *
 * Backends count; a database's worker turns its cells into rows of the audit.
 *
 * What must end well: a backend never waits here.  It finds its cell under the
 * shared lock and adds to an atomic count; only a new cell and the worker's
 * clearing take the lock exclusively, and a backend that does not get it at
 * once forgets this one write, and counts that.  The worker subtracts what it
 * wrote after its commit: a count is never lost, and written twice only if the
 * worker dies in between.
 *
 * A cell in use belongs to its database: only that one's worker writes its
 * record, and only a worker frees it.  So the worker reads the record without
 * the lock.
 */
#include "postgres.h"

#include "audit/place.h"
#include "base/database.h"
#include "base/shmem.h"
#include "base/transaction.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/shmem.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#define CELLS 256
#define WRITE_EVERY INT64CONST(1000000)	/* microseconds */

/* Cells of a database that was dropped, or lost its extension, end some time. */
#define FORGET_AFTER (10 * USECS_PER_MINUTE)

/* What one row stands for.  Hashed as bytes: zeroed before it is filled. */
typedef struct ObserveKey
{
	uint64		query;
	Oid			database;
	Oid			relation;
	Oid			role;
	uint32		reason;
	char		application[NAMEDATALEN];
} ObserveKey;

typedef struct ObserveCell
{
	ObserveKey	key;
	pg_atomic_uint64 count;
	LfRecord	record;			/* of the first write */
} ObserveCell;

typedef struct ObserveShared
{
	pg_atomic_uint64 forgotten;
	uint32		hashes[CELLS];	/* 0: the cell is free */
	ObserveCell cells[CELLS];
} ObserveShared;

static ObserveShared *shared = NULL;

/* The worker's batch: cells, their records, and the counts it writes. */
static int	batch[CELLS];
static LfRecord *records[CELLS];
static bool failed[CELLS];
static int	batch_size = 0;
static bool batch_written = false;

Size
lf_audit_observe_shmem_size(void)
{
	return sizeof(ObserveShared);
}

void
lf_audit_observe_shmem_init(void)
{
	bool		found;
	int			i;

	shared = ShmemInitStruct("lease_fence observe", sizeof(ObserveShared), &found);
	if (found)
		return;
	memset(shared, 0, sizeof(ObserveShared));
	pg_atomic_init_u64(&shared->forgotten, 0);
	for (i = 0; i < CELLS; i++)
		pg_atomic_init_u64(&shared->cells[i].count, 0);
}

uint64
lf_audit_observed_forgotten(void)
{
	return pg_atomic_read_u64(&shared->forgotten);
}

static void
forget(uint64 writes)
{
	pg_atomic_fetch_add_u64(&shared->forgotten, writes);
}

static uint32
make_key(ObserveKey *key, const LfRejection *rejection)
{
	uint32		hash;

	memset(key, 0, sizeof(*key));
	key->query = pgstat_get_my_query_id();
	key->database = MyDatabaseId;
	key->relation = rejection->relation;
	key->role = GetOuterUserId();
	key->reason = rejection->reason;
	strlcpy(key->application, application_name ? application_name : "",
			NAMEDATALEN);
	hash = hash_bytes((const unsigned char *) key, sizeof(*key));
	return hash == 0 ? 1 : hash;
}

/* With the lock.  hash 0 and no key: a free cell. */
static ObserveCell *
find_cell(const ObserveKey *key, uint32 hash)
{
	int			i;

	for (i = 0; i < CELLS; i++)
		if (shared->hashes[i] == hash &&
			(key == NULL || memcmp(&shared->cells[i].key, key, sizeof(*key)) == 0))
			return &shared->cells[i];
	return NULL;
}

/* Count in the cell that is there; false: there is none, or no lock. */
static bool
count_in_cell(const ObserveKey *key, uint32 hash)
{
	ObserveCell *cell;

	if (!LWLockConditionalAcquire(lf_lwlock(LF_LOCK_OBSERVE), LW_SHARED))
		return false;
	cell = find_cell(key, hash);
	if (cell != NULL)
		pg_atomic_fetch_add_u64(&cell->count, 1);
	LWLockRelease(lf_lwlock(LF_LOCK_OBSERVE));
	return cell != NULL;
}

/* Look again under the exclusive lock: another backend may have been first. */
static bool
count_in_new_cell(const ObserveKey *key, uint32 hash, const LfRecord *record)
{
	ObserveCell *cell;

	if (!LWLockConditionalAcquire(lf_lwlock(LF_LOCK_OBSERVE), LW_EXCLUSIVE))
		return false;
	cell = find_cell(key, hash);
	if (cell == NULL && (cell = find_cell(NULL, 0)) != NULL)
	{
		cell->key = *key;
		cell->record = *record;
		pg_atomic_write_u64(&cell->count, 0);
		shared->hashes[cell - shared->cells] = hash;
	}
	if (cell != NULL)
		pg_atomic_fetch_add_u64(&cell->count, 1);
	LWLockRelease(lf_lwlock(LF_LOCK_OBSERVE));
	return cell != NULL;
}

void
lf_audit_observe(const LfRejection *rejection)
{
	ObserveKey	key;
	uint32		hash = make_key(&key, rejection);
	LfRecord   *record;
	int			database;

	if (count_in_cell(&key, hash))
		return;

	/* Filled before the lock: names come from the catalogs. */
	record = palloc0(sizeof(LfRecord));
	lf_audit_record_fill(record, rejection);
	record->action = LF_ACTION_OBSERVED;
	if (!count_in_new_cell(&key, hash, record))
		forget(1);
	else if ((database = lf_database_mine()) >= 0)
		lf_database_want(database);
	pfree(record);
}

bool
lf_audit_observed_any(void)
{
	bool		any = false;
	int			i;

	LWLockAcquire(lf_lwlock(LF_LOCK_OBSERVE), LW_SHARED);
	for (i = 0; i < CELLS && !any; i++)
		any = shared->hashes[i] != 0 &&
			shared->cells[i].key.database == MyDatabaseId;
	LWLockRelease(lf_lwlock(LF_LOCK_OBSERVE));
	return any;
}

/*
 * Frees what no worker wrote for long.  Its backends go on counting into a new
 * cell, if there are any.
 */
static void
forget_old_cells(void)
{
	TimestampTz before = GetCurrentTimestamp() - FORGET_AFTER;
	int			i;

	LWLockAcquire(lf_lwlock(LF_LOCK_OBSERVE), LW_EXCLUSIVE);
	for (i = 0; i < CELLS; i++)
	{
		ObserveCell *cell = &shared->cells[i];

		if (shared->hashes[i] == 0 || cell->key.database == MyDatabaseId ||
			cell->record.at > before)
			continue;
		forget(pg_atomic_read_u64(&cell->count));
		shared->hashes[i] = 0;
	}
	LWLockRelease(lf_lwlock(LF_LOCK_OBSERVE));
}

/* A cell of ours is nobody else's to change but for its count. */
static void
collect_batch(void)
{
	int			i;

	batch_size = 0;
	LWLockAcquire(lf_lwlock(LF_LOCK_OBSERVE), LW_SHARED);
	for (i = 0; i < CELLS; i++)
	{
		ObserveCell *cell = &shared->cells[i];

		if (shared->hashes[i] == 0 || cell->key.database != MyDatabaseId)
			continue;
		cell->record.id = lf_audit_record_id();
		cell->record.rows = pg_atomic_read_u64(&cell->count);
		records[batch_size] = &cell->record;
		batch[batch_size++] = i;
	}
	LWLockRelease(lf_lwlock(LF_LOCK_OBSERVE));
}

/* After the commit.  What was counted meanwhile is a row of its own. */
static void
clear_batch(void)
{
	int			i;

	LWLockAcquire(lf_lwlock(LF_LOCK_OBSERVE), LW_EXCLUSIVE);
	for (i = 0; i < batch_size; i++)
	{
		ObserveCell *cell = &shared->cells[batch[i]];

		if (pg_atomic_sub_fetch_u64(&cell->count, cell->record.rows) == 0)
			shared->hashes[batch[i]] = 0;
		cell->record.at = GetCurrentTimestamp();
	}
	LWLockRelease(lf_lwlock(LF_LOCK_OBSERVE));
}

static void
write_batch(void *arg)
{
	batch_written = lf_audit_lock_table();
	if (batch_written)
		lf_audit_insert(records, batch_size, failed);
}

bool
lf_audit_write_observed(int database)
{
	static LfClock next = 0;
	LfClock		now = lf_clock_now();
	XLogRecPtr	end;
	char	   *problem;
	int			i;

	if (now < next)
		return false;
	next = lf_clock_after(now, WRITE_EVERY);

	forget_old_cells();
	collect_batch();
	if (batch_size == 0)
		return false;
	if (!lf_transaction_try("writing observed writes", write_batch, NULL,
							&end, &problem))
	{
		pfree(problem);
		return false;
	}
	if (!batch_written)
		return false;

	/* Those that failed are in the log: done with, as well. */
	clear_batch();
	for (i = 0; i < batch_size; i++)
		pg_atomic_fetch_add_u64(failed[i] ?
								&lf_audit_counts(database)->logged :
								&lf_audit_counts(database)->written, 1);
	return true;
}
