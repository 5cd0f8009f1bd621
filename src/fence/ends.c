/*
 * ends.c
 *		Ends of grants: what shared memory has, written into the table.
 *
 * Runs in the database's one worker.  Nothing here waits for the table's lock:
 * what cannot be written now comes again, as entries keep their ends until they
 * are told that these are committed.
 *
 * What must end well: an end that cannot be written (it is put off, ever longer,
 * and the others of its batch are written one by one), many of those (only for
 * a limited time in each pass), a table that somebody has locked, an end that
 * its mint has written already (told once to who listens).
 */
#include "postgres.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/database.h"
#include "base/notify.h"
#include "base/point.h"
#include "base/stat.h"
#include "base/transaction.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fence/ends.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#define ENDS_PER_BATCH 256
#define ENDS_PER_STATEMENT 64	/* each row looks for itself among them */
#define SINGLY_LIMIT INT64CONST(500000)

static SPIPlanPtr end_plan = NULL;
static void (*tell_taken) (const LfEnd *end) = NULL;

typedef struct EndWork
{
	LfEnd		ends[ENDS_PER_BATCH];
	int			count;
	bool		opened;
} EndWork;

/* Worker: an end that could not be written; token 0: free. */
typedef struct PutOff
{
	int64		token;
	int			failures;
	LfClock		retry_at;
} PutOff;

static PutOff put_off[64];

/* ---- rows ---- */

/* Counted, and told to who listens, when the table says so for the first time. */
static void
announce_end(int64 token, LfOver how, const LfResource *resource)
{
	int			database = lf_database_mine();

	switch (how)
	{
		case LF_OVER_NOT:
		case LF_OVER_RELEASED:
			lf_stat_add(database, LF_STAT_RELEASED, 1);
			break;
		case LF_OVER_LAPSED:
			lf_stat_add(database, LF_STAT_LAPSED, 1);
			lf_notify_add("lost", resource, token);
			break;
		case LF_OVER_REVOKED:
			lf_stat_add(database, LF_STAT_REVOKED, 1);
			lf_notify_add("revoked", resource, token);
			break;
		case LF_OVER_TAKEN:
			lf_stat_add(database, LF_STAT_TAKEN_OVER, 1);
			lf_notify_add("superseded", resource, token);
			break;
	}
}

/* The row that was updated, of these ends. */
static void
announce_row(HeapTuple row, TupleDesc desc, const LfEnd *ends, int count)
{
	bool		isnull;
	int64		token = DatumGetInt64(SPI_getbinval(row, desc, 1, &isnull));
	LfResource	resource;

	lf_resource_of_text(&resource, DatumGetTextPP(SPI_getbinval(row, desc, 2, &isnull)));
	for (int i = 0; i < count; i++)
	{
		if (ends[i].token == token)
			announce_end(token, ends[i].how, &resource);
	}
}

/* One statement for all: starting it costs more than what it does for a row. */
static void
update_rows(const LfEnd *ends, int count)
{
	Oid			types[] = {INT8ARRAYOID, TEXTARRAYOID, TIMESTAMPTZARRAYOID};
	Datum		tokens[ENDS_PER_STATEMENT];
	Datum		hows[ENDS_PER_STATEMENT];
	Datum		times[ENDS_PER_STATEMENT];
	Datum		values[3];

	/* planned for any number of them: each time anew would cost more than they do */
	if (end_plan == NULL)
	{
		end_plan = SPI_prepare_cursor("UPDATE lease_fence.grants"
									  " SET how_ended = ($2)[pg_catalog.array_position($1, token)],"
									  " ended_at = ($3)[pg_catalog.array_position($1, token)]"
									  " WHERE token OPERATOR(pg_catalog.=) ANY ($1) AND ended_at IS NULL"
									  " RETURNING token, resource",
									  lengthof(types), types, CURSOR_OPT_GENERIC_PLAN);
		SPI_keepplan(end_plan);
	}
	for (int i = 0; i < count; i++)
	{
		tokens[i] = Int64GetDatum(ends[i].token);
		hows[i] = CStringGetTextDatum(lf_over_name(ends[i].how));
		times[i] = TimestampTzGetDatum(ends[i].at);
	}
	values[0] = PointerGetDatum(construct_array(tokens, count, INT8OID, sizeof(int64),
												true, TYPALIGN_DOUBLE));
	values[1] = PointerGetDatum(construct_array(hows, count, TEXTOID, -1, false, TYPALIGN_INT));
	values[2] = PointerGetDatum(construct_array(times, count, TIMESTAMPTZOID, sizeof(TimestampTz),
												true, TYPALIGN_DOUBLE));
	SPI_execute_plan(end_plan, values, NULL, false, 0);
	for (uint64 i = 0; i < SPI_processed; i++)
		announce_row(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, ends, count);
	SPI_freetuptable(SPI_tuptable);
}

void
lf_ends_update(const LfEnd *ends, int count)
{
	for (int i = 0; i < count; i += ENDS_PER_STATEMENT)
		update_rows(&ends[i], Min(count - i, ENDS_PER_STATEMENT));
}

/* ---- what is put off ---- */

/*
 * An end that cannot be written by itself is put off, ever longer: it must not
 * hold up the others, nor fill the log.  When there is no room for another one
 * the one that is due first makes way, and is tried again too soon.
 */
static PutOff *
find_put_off(int64 token)
{
	for (int i = 0; i < lengthof(put_off); i++)
	{
		if (put_off[i].token == token)
			return &put_off[i];
	}
	return NULL;
}

static void
put_off_end(int64 token)
{
	PutOff	   *place = find_put_off(token);

	if (place == NULL)
	{
		place = &put_off[0];
		for (int i = 1; i < lengthof(put_off); i++)
		{
			if (put_off[i].retry_at < place->retry_at)
				place = &put_off[i];
		}
		place->token = token;
		place->failures = 0;
	}
	place->failures++;
	place->retry_at = lf_clock_after(lf_clock_now(),
									 lf_database_backoff(place->failures));
}

/* Leaves those whose time has come. */
static void
leave_out_put_off(EndWork *work)
{
	LfClock		now = lf_clock_now();
	int			kept = 0;

	for (int i = 0; i < work->count; i++)
	{
		PutOff	   *place = find_put_off(work->ends[i].token);

		if (place == NULL || place->retry_at <= now)
			work->ends[kept++] = work->ends[i];
	}
	work->count = kept;
}

/* ---- a batch ---- */

/*
 * Must a crash not lose that?  It ends the leases of sessions and transactions
 * anyway, and a promotion ends all: what is lost of them is how they ended.
 */
static bool
must_be_flushed(const EndWork *work)
{
	for (int i = 0; i < work->count; i++)
	{
		if (work->ends[i].scope == LF_SCOPE_DETACHED ||
			work->ends[i].how == LF_OVER_REVOKED)
			return true;
	}
	return false;
}

/*
 * Nobody is answered when these are committed, and grants wait for the worker.
 * The source is one above that of the worker's own setting, which an equal one
 * would replace for good.
 */
static void
commit_without_waiting(void)
{
	set_config_option("synchronous_commit", "off", PGC_SUSET, PGC_S_SESSION,
					  GUC_ACTION_LOCAL, true, 0, false);
}

static void
write_ends(void *arg)
{
	EndWork    *work = arg;

	work->opened = ConditionalLockRelationOid(lf_catalog_required()->grants, RowExclusiveLock);
	if (!work->opened)
		return;
	if (!must_be_flushed(work))
		commit_without_waiting();
	SPI_connect();
	lf_ends_update(work->ends, work->count);
	SPI_finish();
	LF_POINT("ends-inserted");
}

/* True: they are in the table. */
static bool
try_ends(EndWork *work, char **problem)
{
	XLogRecPtr	end;

	*problem = NULL;
	work->opened = false;
	if (!lf_transaction_try("writing ends of grants", write_ends, work, &end, problem) ||
		!work->opened)
		return false;
	LF_POINT("ends-committed");
	for (int i = 0; i < work->count; i++)
	{
		PutOff	   *place = find_put_off(work->ends[i].token);

		if (place != NULL)
			memset(place, 0, sizeof(*place));
		lf_entry_end_written(&work->ends[i]);
	}
	return true;
}

/*
 * How many could be written, each by itself.  What there was no time for comes
 * in the next pass: each may have waited for a row's lock.
 */
static int
try_ends_singly(const EndWork *work)
{
	LfClock		limit = lf_clock_now() + SINGLY_LIMIT;
	int			written = 0;

	for (int i = 0; i < work->count && lf_clock_now() < limit; i++)
	{
		EndWork		single = {.ends = {work->ends[i]}, .count = 1};
		char	   *problem;

		if (try_ends(&single, &problem))
			written++;
		else if (problem != NULL)
			put_off_end(work->ends[i].token);
	}
	return written;
}

void
lf_ends_install(void (*taken) (const LfEnd *end))
{
	tell_taken = taken;
}

int
lf_ends_write(void)
{
	EndWork		work;
	char	   *problem;
	int			written;

	work.count = lf_entry_take_ends(MyDatabaseId, work.ends, ENDS_PER_BATCH);
	if (work.count == 0)
		return 0;
	for (int i = 0; tell_taken != NULL && i < work.count; i++)
		tell_taken(&work.ends[i]);
	leave_out_put_off(&work);
	if (work.count == 0)
		return -1;
	if (try_ends(&work, &problem))
		return work.count;
	written = problem == NULL ? 0 : try_ends_singly(&work);
	return written > 0 ? written : -1;
}

int
lf_ends_write_for(int64 longest)
{
	LfClock		limit = lf_clock_now() + longest;
	int			in_all = 0;
	int			written;

	do
	{
		written = lf_ends_write();
		in_all += Max(written, 0);
	}
	while (written == ENDS_PER_BATCH && lf_clock_now() < limit);
	return in_all > 0 ? in_all : written;
}
