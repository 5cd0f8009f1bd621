/*
 * writer.c
 *		The worker's side of the audit: takes records from the backends' places
 *		and puts them into lease_fence.rejected_writes, one batch a commit.
 *
 * Runs in a database's worker alone.
 *
 * What must end well: a place is answered only when its row is committed and
 * the standbys have it, or when the record is in the server log.  A worker
 * that dies at any step leaves places TAKEN or COMMITTED; its successor sets
 * them back to PENDING and writes them again, and the id's primary key makes
 * the second row harmless.  The table's lock is never waited for: the rejected
 * transaction may itself hold it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "audit/place.h"
#include "base/notify.h"
#include "base/stat.h"
#include "base/catalog.h"
#include "base/point.h"
#include "base/shmem.h"
#include "base/table.h"
#include "base/transaction.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#define BATCH 256

/* The batch under way: its places and their records. */
static int	taken[BATCH];
static LfRecord *records[BATCH];
static bool failed[BATCH];
static int	taken_count = 0;

/* Committed and not answered: spares answer its scan. */
static int	unanswered = 0;

/*
 * The table by OID, locked; the OID looked up again under the lock, since the
 * extension may have been dropped and created in between.
 */
bool
lf_audit_lock_table(void)
{
	const LfCatalog *catalog = lf_catalog();
	Oid			table;

	if (catalog == NULL)
		return false;
	table = catalog->rejected_writes;
	if (!ConditionalLockRelationOid(table, RowExclusiveLock))
		return false;

	catalog = lf_catalog();
	if (catalog != NULL && catalog->rejected_writes == table)
		return true;
	UnlockRelationOid(table, RowExclusiveLock);
	return false;
}

static Datum
text_value(const char *string, int length, bool *null)
{
	*null = length == 0;
	return PointerGetDatum(cstring_to_text_with_len(string, length));
}

/* Empty is NULL; a bytea is built as a text is. */
void
lf_audit_record_values(const LfRecord *record, Datum *values, bool *nulls)
{
	const char *action = lf_audit_action_name(record->action);
	const char *reason = lf_reason_name(record->reason);
	static Interval over_for;

#define TEXT(i, s) \
	values[i] = text_value((s), strlen(s), &nulls[i])
#define BYTES(i, s, length) \
	values[i] = text_value((s), (length), &nulls[i])
#define NUMBER(i, n, none) \
	(values[i] = Int64GetDatum(n), nulls[i] = (n) == (none))

	memset(nulls, false, LF_AUDIT_COLUMNS * sizeof(bool));
	values[0] = Int64GetDatum(record->id);
	values[1] = TimestampTzGetDatum(record->at);
	TEXT(2, action);
	TEXT(3, reason);
	TEXT(4, record->relation);
	TEXT(5, record->operation);
	TEXT(6, record->key);
	BYTES(7, record->resource.name, record->resource.length);
	NUMBER(8, record->presented_token, 0);
	NUMBER(9, record->current_token, 0);
	BYTES(10, record->presented_holder.bytes, record->presented_holder.length);
	BYTES(11, record->current_holder.bytes, record->current_holder.length);
	over_for.time = record->over_for;
	values[12] = IntervalPGetDatum(&over_for);
	nulls[12] = record->over_for < 0;
	values[13] = DirectFunctionCall1(namein, CStringGetDatum(record->role));
	nulls[13] = record->role[0] == '\0';
	TEXT(14, record->application);
	TEXT(15, record->client);
	values[16] = Int32GetDatum(record->pid);
	nulls[16] = record->pid == 0;
	TEXT(17, record->statement);
	TEXT(18, record->new_row);
	values[19] = Int64GetDatum(record->rows);

#undef TEXT
#undef BYTES
#undef NUMBER
}

static void
insert_one(LfTableWriter *writer, const LfRecord *record)
{
	Datum		values[LF_AUDIT_COLUMNS];
	bool		nulls[LF_AUDIT_COLUMNS];

	lf_audit_record_values(record, values, nulls);
	if (!lf_table_add(writer, values, nulls))
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
				 errmsg("no row was inserted for the id " INT64_FORMAT,
						record->id)));
}

static void
insert_all(LfRecord *const *range, int count)
{
	LfTableWriter *writer = lf_table_open(lf_catalog_required()->rejected_writes, LF_AUDIT_COLUMNS, true);

	for (int i = 0; i < count; i++)
		insert_one(writer, range[i]);
	lf_table_close(writer);
}

/* Its id is there: its row was committed before the worker that wrote it died. */
static bool
is_there_already(const LfRecord *record, const ErrorData *error)
{
	return record->retaken && error->sqlerrcode == ERRCODE_UNIQUE_VIOLATION &&
		error->constraint_name != NULL &&
		strcmp(error->constraint_name, "rejected_writes_pkey") == 0;
}

/* In a subtransaction: NULL, or the message of the error that undid it all. */
static char *
insert_range(LfRecord *const *range, int count)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	char	   *volatile message = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		insert_all(range, count);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		if (count > 1 || !is_there_already(range[0], error))
			message = error->message ? error->message : pstrdup("unknown error");
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return message;
}

/*
 * All at once, as nearly always; record by record after an error, so that one
 * record that cannot be inserted does not stop the others.
 */
void
lf_audit_insert(LfRecord *const *list, int count, bool *is_failed)
{
	int			i;

	memset(is_failed, false, count * sizeof(bool));
	if (insert_range(list, count) == NULL)
		return;
	for (i = 0; i < count; i++)
	{
		char	   *error = insert_range(&list[i], 1);

		if (error == NULL)
			continue;
		is_failed[i] = true;
		lf_audit_log(list[i], error);
	}
}

void
lf_audit_insert_termination(const LfTermination *termination)
{
	LfRecord   *record = palloc0(sizeof(LfRecord));
	bool		is_failed;

	record->id = lf_audit_record_id();
	record->at = GetCurrentTimestamp();
	record->database = MyDatabaseId;
	record->action = LF_ACTION_TERMINATED;
	record->reason = termination->reason;
	record->pid = termination->pid;
	record->presented_token = termination->old_token;
	record->current_token = termination->new_token;
	record->over_for = -1;
	record->rows = 1;
	record->resource = termination->resource;

	lf_audit_insert(&record, 1, &is_failed);
	pfree(record);
}

/* Is there a place of this database in use, or one that waits for us? */
static bool
any_place(int database, bool pending)
{
	int			slot;

	for (slot = 0; slot < MaxBackends; slot++)
	{
		uint32		word = lf_audit_word(slot);

		if (word != LF_PLACE_EMPTY && LF_PLACE_DATABASE(word) == database &&
			(!pending || LF_PLACE_STATE(word) == LF_PLACE_PENDING))
			return true;
	}
	return false;
}

bool
lf_audit_busy(int database)
{
	return any_place(database, false) || lf_audit_observed_any();
}

/* The record is in the log: its backend need not wait for anything else. */
static void
answer_logged(int slot, int database)
{
	pg_atomic_fetch_add_u64(&lf_audit_counts(database)->logged, 1);
	lf_audit_step(slot, LF_PLACE_WORD(database, LF_PLACE_TAKEN), LF_PLACE_EMPTY);
	lf_backend_wake(slot);
}

/*
 * Fill the batch.  A record of a dropped database, whose index is ours now, has
 * no table any more.
 */
static void
take_batch(int database)
{
	uint32		pending = LF_PLACE_WORD(database, LF_PLACE_PENDING);
	int			slot;

	taken_count = 0;
	for (slot = 0; slot < MaxBackends && taken_count < BATCH; slot++)
	{
		LfRecord   *record = &lf_audit_places[slot].record;

		if (lf_audit_word(slot) != pending ||
			!lf_audit_try_step(slot, pending,
							   LF_PLACE_WORD(database, LF_PLACE_TAKEN)))
			continue;
		if (record->database != MyDatabaseId)
		{
			lf_audit_log(record, "its database was dropped");
			answer_logged(slot, database);
			continue;
		}
		taken[taken_count] = slot;
		records[taken_count] = record;
		taken_count++;
	}
}

/* To the queue again, perhaps written: who takes it next cannot know. */
static void
put_back(int slot, uint32 word)
{
	lf_audit_places[slot].record.retaken = true;
	lf_audit_step(slot, word, LF_PLACE_WORD(LF_PLACE_DATABASE(word), LF_PLACE_PENDING));
}

static void
put_back_batch(int database)
{
	int			i;

	for (i = 0; i < taken_count; i++)
		put_back(taken[i], LF_PLACE_WORD(database, LF_PLACE_TAKEN));
	taken_count = 0;
}

static void
settle_batch(int database, XLogRecPtr committed)
{
	int			i;

	for (i = 0; i < taken_count; i++)
	{
		if (failed[i])
		{
			answer_logged(taken[i], database);
			continue;
		}
		lf_audit_places[taken[i]].committed = committed;
		lf_audit_step(taken[i], LF_PLACE_WORD(database, LF_PLACE_TAKEN),
					  LF_PLACE_WORD(database, LF_PLACE_COMMITTED));
		pg_atomic_fetch_add_u64(&lf_audit_counts(database)->written, 1);
		lf_stat_add(database, LF_STAT_REJECTED, 1);
		lf_notify_add("rejected", &lf_audit_places[taken[i]].record.resource,
					  lf_audit_places[taken[i]].record.presented_token);
		unanswered++;
	}
	taken_count = 0;
}

/* Records are taken only once the table is ours: until then they can time out. */
static void
write_batch(void *arg)
{
	int			database = *(int *) arg;

	if (!lf_audit_lock_table())
		return;
	take_batch(database);
	if (taken_count > 0)
		lf_audit_insert(records, taken_count, failed);
	LF_POINT("audit-inserted");
}

/*
 * A batch that found all its rows there already wrote nothing and has no commit
 * of its own: what is flushed by then is a bound for the commit that wrote them.
 */
bool
lf_audit_write_pending(int database)
{
	XLogRecPtr	before = XactLastCommitEnd;
	XLogRecPtr	end;
	char	   *problem;
	bool		any;

	if (!any_place(database, true))
		return false;

	if (!lf_transaction_try("writing rejected writes", write_batch, &database,
							&end, &problem))
	{
		pfree(problem);
		put_back_batch(database);
		return false;
	}
	any = taken_count > 0;
	LF_POINT("audit-committed");
	settle_batch(database, end != before ? end : GetFlushRecPtr(NULL));
	return any;
}

void
lf_audit_answer(int database)
{
	uint32		word = LF_PLACE_WORD(database, LF_PLACE_COMMITTED);
	XLogRecPtr	passed = InvalidXLogRecPtr;
	int			slot;

	for (slot = 0; slot < MaxBackends && unanswered > 0; slot++)
	{
		XLogRecPtr	committed = lf_audit_places[slot].committed;

		if (lf_audit_word(slot) != word)
			continue;
		if (committed > passed && !lf_standbys_passed(committed))
			continue;
		passed = Max(passed, committed);
		lf_audit_step(slot, word, LF_PLACE_EMPTY);
		lf_backend_wake(slot);
		unanswered--;
	}
}

void
lf_audit_adopt(int database)
{
	int			slot;

	lf_audit_counts_begin(database);
	unanswered = 0;
	for (slot = 0; slot < MaxBackends; slot++)
	{
		uint32		word = lf_audit_word(slot);

		if (word == LF_PLACE_WORD(database, LF_PLACE_TAKEN) ||
			word == LF_PLACE_WORD(database, LF_PLACE_COMMITTED))
			put_back(slot, word);
	}
}
