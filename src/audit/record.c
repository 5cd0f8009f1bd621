/*
 * record.c
 *		The backend's side of the audit: its record of a rejected write, the
 *		shared place that carries it to the worker, and the server log for what
 *		the worker did not write in time.
 *
 * Runs in every backend that rejects a write; the worker uses the places
 * through place.h.
 *
 * What must end well: a client hears of its rejection only after the record is
 * durable, in the table or in the log.  A backend has one place and one record
 * under way.  When it leaves without an answer (cancelled, terminated) the
 * record stays PENDING for the worker, and whoever has the place next waits
 * for that first.
 */
#include "postgres.h"

#include <limits.h>

#include "audit/place.h"
#include "base/compat.h"
#include "base/database.h"
#include "base/point.h"
#include "base/settings.h"
#include "base/shmem.h"
#include "common/ip.h"
#include "mb/pg_wchar.h"
#include "storage/latch.h"
#include "storage/shmem.h"
#include "tcop/tcopprot.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

typedef struct LfAuditShared
{
	pg_atomic_uint64 next_id;
	LfAuditCounts counts[LF_MAX_DATABASES + 1];
	pg_atomic_uint32 words[FLEXIBLE_ARRAY_MEMBER];	/* one per backend */
} LfAuditShared;

#define MICROSECONDS_TO_2025 \
	((int64) (2460677 - POSTGRES_EPOCH_JDATE) * USECS_PER_DAY)

pg_atomic_uint32 *lf_audit_words = NULL;
LfAuditPlace *lf_audit_places = NULL;

static LfAuditShared *shared = NULL;
static uint32 wait_event = 0;

/* The words are dense, for the worker's scans; the places lie behind them. */
static Size
places_offset(void)
{
	return MAXALIGN(add_size(offsetof(LfAuditShared, words),
							 mul_size(MaxBackends, sizeof(pg_atomic_uint32))));
}

Size
lf_audit_shmem_size(void)
{
	return add_size(places_offset(), mul_size(MaxBackends, sizeof(LfAuditPlace)));
}

/*
 * Ids begin at the wall clock, so that those of an earlier run are below.  A
 * clock that was set back can make two clash: the worker notices.
 */
void
lf_audit_shmem_init(void)
{
	bool		found;
	int			i;

	shared = ShmemInitStruct("lease_fence audit", lf_audit_shmem_size(), &found);
	lf_audit_words = shared->words;
	lf_audit_places = (LfAuditPlace *) ((char *) shared + places_offset());
	if (found)
		return;

	memset(shared, 0, lf_audit_shmem_size());
	pg_atomic_init_u64(&shared->next_id,
					   Max(GetCurrentTimestamp() - MICROSECONDS_TO_2025, 1));
	for (i = 0; i <= LF_MAX_DATABASES; i++)
	{
		pg_atomic_init_u64(&shared->counts[i].logged, 0);
		pg_atomic_init_u64(&shared->counts[i].written, 0);
		pg_atomic_init_u64(&shared->counts[i].stalled_at, LF_NEVER_STALLED);
	}
	for (i = 0; i < MaxBackends; i++)
		pg_atomic_init_u32(&shared->words[i], LF_PLACE_EMPTY);
}

int64
lf_audit_record_id(void)
{
	lf_shmem_require();
	return (int64) pg_atomic_fetch_add_u64(&shared->next_id, 1);
}

LfAuditCounts *
lf_audit_counts(int database)
{
	return &shared->counts[database >= 0 ? database : LF_MAX_DATABASES];
}

uint64
lf_audit_logged(int database)
{
	return pg_atomic_read_u64(&lf_audit_counts(database)->logged);
}

uint64
lf_audit_written(int database)
{
	return pg_atomic_read_u64(&lf_audit_counts(database)->written);
}

/* An index is given to another database only after the first was dropped. */
void
lf_audit_counts_begin(int database)
{
	LfAuditCounts *counts = lf_audit_counts(database);

	if (OidIsValid(counts->database) && counts->database != MyDatabaseId)
	{
		pg_atomic_write_u64(&counts->logged, 0);
		pg_atomic_write_u64(&counts->written, 0);
		pg_atomic_write_u64(&counts->stalled_at, LF_NEVER_STALLED);
	}
	counts->database = MyDatabaseId;
}

/*
 * Copy into a place's string, cut at a character's border.  What is not valid
 * in the database's encoding would not get into the table: its bytes beyond
 * ASCII become question marks.
 */
static void
copy_text(char *target, Size size, const char *source)
{
	int			length = 0;
	int			i;

	if (source != NULL)
		length = pg_mbcliplen(source, strlen(source), (int) size - 1);
	if (length > 0)
		memcpy(target, source, length);
	target[length] = '\0';

	if (!pg_verifymbstr(target, length, true))
	{
		for (i = 0; i < length; i++)
			if (IS_HIGHBIT_SET(target[i]))
				target[i] = '?';
	}
}

static void
fill_relation(LfRecord *record, Oid relation)
{
	char	   *name = OidIsValid(relation) ? get_rel_name(relation) : NULL;
	char	   *schema = name ? get_namespace_name(get_rel_namespace(relation)) : NULL;

	copy_text(record->relation, sizeof(record->relation),
			  name ? quote_qualified_identifier(schema, name) : NULL);
}

/* "host:port", "[host]:port" of an IPv6 address, "local"; none: no client. */
static void
fill_client(LfRecord *record)
{
	SockAddr   *address = &MyBEEntry->st_clientaddr;
	int			family = address->addr.ss_family;
	char		host[NI_MAXHOST];
	char		port[NI_MAXSERV];

	record->client[0] = '\0';
	if (family == AF_UNIX)
		strlcpy(record->client, "local", sizeof(record->client));
	else if ((family == AF_INET || family == AF_INET6) &&
			 pg_getnameinfo_all(&address->addr, address->salen,
								host, sizeof(host), port, sizeof(port),
								NI_NUMERICHOST | NI_NUMERICSERV) == 0)
		snprintf(record->client, sizeof(record->client),
				 family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

/* In a transaction that is still good: the names come from the catalogs. */
void
lf_audit_record_fill(LfRecord *record, const LfRejection *rejection)
{
	record->id = lf_audit_record_id();
	record->at = GetCurrentTimestamp();
	record->database = MyDatabaseId;
	record->action = rejection->action;
	record->reason = rejection->reason;
	record->retaken = false;
	record->pid = MyProcPid;
	record->presented_token = rejection->presented_token;
	record->current_token = rejection->current_token;
	record->over_for = rejection->over_for;
	record->rows = 1;

	record->resource.length = 0;
	if (rejection->resource != NULL)
		record->resource = *rejection->resource;
	record->presented_holder.length = 0;
	if (rejection->presented_holder != NULL)
		record->presented_holder = *rejection->presented_holder;
	record->current_holder.length = 0;
	if (rejection->current_holder != NULL)
		record->current_holder = *rejection->current_holder;

	fill_relation(record, rejection->relation);
	fill_client(record);
	copy_text(record->operation, sizeof(record->operation), rejection->operation);
	copy_text(record->role, sizeof(record->role),
			  GetUserNameFromId(GetOuterUserId(), true));
	copy_text(record->application, sizeof(record->application), application_name);
	copy_text(record->key, sizeof(record->key), rejection->key);
	copy_text(record->statement, sizeof(record->statement), debug_query_string);
	copy_text(record->new_row, sizeof(record->new_row), rejection->new_row);
}

const char *
lf_audit_action_name(LfAuditAction action)
{
	switch (action)
	{
		case LF_ACTION_REJECTED:
			return "rejected";
		case LF_ACTION_OBSERVED:
			return "observed";
		case LF_ACTION_TERMINATED:
			return "terminated";
		case LF_ACTION_BYPASSED:
			return "bypassed";
	}
	return "?";					/* keep the compiler quiet */
}

static void
append_text(StringInfo line, const char *name, const char *value)
{
	if (value[0] == '\0')
		return;
	appendStringInfo(line, ", \"%s\": ", name);
	escape_json(line, value);
}

static void
append_number(StringInfo line, const char *name, int64 value, int64 none)
{
	if (value != none)
		appendStringInfo(line, ", \"%s\": " INT64_FORMAT, name, value);
}

static void
append_holder(StringInfo line, const char *name, const LfHolder *holder)
{
	char		hex[2 + 2 * LF_HOLDER_MAX + 1] = "\\x";

	if (holder->length == 0)
		return;
	hex[2 + hex_encode(holder->bytes, holder->length, hex + 2)] = '\0';
	append_text(line, name, hex);
}

/*
 * The whole record as one line: JSON, which keeps a statement's line breaks
 * out of the log, and which a DBA can load into the table later.  Never sent
 * to the client, who may not read the audit.  error: why it is not in the
 * table; NULL: out of time.
 */
void
lf_audit_log(const LfRecord *record, const char *error)
{
	StringInfoData line;
	char	   *resource = pnstrdup(record->resource.name, record->resource.length);

	initStringInfo(&line);
	appendStringInfo(&line, "{\"id\": " INT64_FORMAT, record->id);
	append_text(&line, "at", timestamptz_to_str(record->at));
	append_number(&line, "database", record->database, InvalidOid);
	append_text(&line, "action", lf_audit_action_name(record->action));
	append_text(&line, "reason", lf_reason_name(record->reason));
	append_text(&line, "relation", record->relation);
	append_text(&line, "operation", record->operation);
	append_text(&line, "key", record->key);
	append_text(&line, "resource", resource);
	append_number(&line, "presented_token", record->presented_token, 0);
	append_number(&line, "current_token", record->current_token, 0);
	append_holder(&line, "presented_holder", &record->presented_holder);
	append_holder(&line, "current_holder", &record->current_holder);
	append_number(&line, "over_for_us", record->over_for, -1);
	append_text(&line, "role", record->role);
	append_text(&line, "application_name", record->application);
	append_text(&line, "client", record->client);
	append_number(&line, "pid", record->pid, 0);
	append_text(&line, "statement", record->statement);
	append_text(&line, "new_row", record->new_row);
	append_number(&line, "rows", record->rows, 0);
	append_text(&line, "error", error ? error : "");
	appendStringInfoChar(&line, '}');

	ereport(LOG_SERVER_ONLY,
			(errmsg("lease_fence: %s write not in the audit table%s: %s",
					lf_audit_action_name(record->action),
					error ? "" : " in time",
					line.data),
			 errhidestmt(true),
			 errhidecontext(true)));
	pfree(line.data);
	pfree(resource);
}

/* Wait until our place is empty, that is answered; false: out of time. */
static bool
wait_for_empty(int slot, LfClock deadline)
{
	while (lf_audit_word(slot) != LF_PLACE_EMPTY)
	{
		long		left = lf_clock_milliseconds_until(deadline, INT_MAX);

		if (left == 0)
			return false;
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 left,
						 lf_wait_event(&wait_event, "LeaseFenceAudit"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return true;
}

/*
 * Out of time: the record in our place goes to the log.  One that the worker
 * has taken may get into the table all the same; better twice than not at all.
 * Later rejections do not wait until the worker has shown a sign of life.
 */
static void
give_up(int slot)
{
	uint32		word = lf_audit_word(slot);
	int			database = LF_PLACE_DATABASE(word);

	while (!(LF_PLACE_STATE(word) == LF_PLACE_PENDING &&
			 lf_audit_try_step(slot, word, LF_PLACE_EMPTY)))
	{
		/* Only the worker can have moved it: look at what it is now. */
		word = lf_audit_word(slot);
		if (word == LF_PLACE_EMPTY)
			return;				/* answered in the last moment */
		if (LF_PLACE_STATE(word) != LF_PLACE_PENDING)
		{
			lf_audit_places[slot].logged = true;
			break;
		}
	}

	pg_atomic_write_u64(&lf_audit_counts(database)->stalled_at,
						lf_database_heartbeat(database));
	pg_atomic_fetch_add_u64(&lf_audit_counts(database)->logged, 1);
	lf_audit_log(&lf_audit_places[slot].record, NULL);
}

/*
 * Make the place ours.  In it there may be a record whose backend was
 * cancelled, or exited: the worker of its database, not always ours, is to
 * write it first.  One that is in the log already is not waited for.
 */
static bool
claim_place(int slot, LfClock deadline)
{
	uint32		word = lf_audit_word(slot);

	if (word != LF_PLACE_EMPTY)
	{
		if (lf_audit_places[slot].logged)
			return false;
		lf_database_wake(LF_PLACE_DATABASE(word));
		if (!wait_for_empty(slot, deadline))
		{
			give_up(slot);
			return false;
		}
	}

	/* The worker's reads of the old record are over before we overwrite it. */
	pg_memory_barrier();
	lf_audit_places[slot].logged = false;
	return true;
}

static bool
is_stalled(int database)
{
	return lf_database_heartbeat(database) ==
		pg_atomic_read_u64(&lf_audit_counts(database)->stalled_at);
}

static void
log_at_once(const LfRejection *rejection, int database)
{
	LfRecord   *record = palloc(sizeof(LfRecord));

	lf_audit_record_fill(record, rejection);
	pg_atomic_fetch_add_u64(&lf_audit_counts(database)->logged, 1);
	lf_audit_log(record, NULL);
	pfree(record);
}

/*
 * "want" comes after the record is visible, so that a worker about to retire
 * either sees the record or is started again.  It also comes when we do not
 * wait: a worker that retired right after a time-out has no later heartbeat.
 */
void
lf_audit_reject(const LfRejection *rejection)
{
	LfClock		deadline = lf_clock_after(lf_clock_now(),
										  (int64) lf_audit_timeout * 1000);
	int			database = lf_database_mine();
	int			slot = lf_backend_slot();

	LF_POINT("reject-begun");
	if (database < 0)
	{
		log_at_once(rejection, database);
		return;
	}

	if (is_stalled(database) || !claim_place(slot, deadline))
	{
		lf_database_want(database);
		log_at_once(rejection, database);
		return;
	}

	lf_audit_record_fill(&lf_audit_places[slot].record, rejection);
	lf_audit_step(slot, LF_PLACE_EMPTY, LF_PLACE_WORD(database, LF_PLACE_PENDING));
	lf_database_want(database);
	lf_database_wake(database);
	LF_POINT("reject-placed");

	if (!wait_for_empty(slot, deadline))
		give_up(slot);
	LF_POINT("reject-woken");
}
