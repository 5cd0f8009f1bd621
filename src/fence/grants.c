/*
 * grants.c
 *		lease_fence.grants: read by its indexes, and its new rows.
 *
 * Runs in backends and in workers, inside transactions; only workers write.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/table.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "fence/grants.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/acl.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "catalog/pg_collation.h"

/* The columns of lease_fence.grants. */
enum
{
	COLUMN_TOKEN = 1,
	COLUMN_RESOURCE,
	COLUMN_HOLDER,
	COLUMN_COORDINATOR,
	COLUMN_ROLE,
	COLUMN_SCOPE,
	COLUMN_TTL,
	COLUMN_EXTERNAL_NUMBER,
	COLUMN_GRANTED_AT,
	COLUMN_ENDED_AT,
	COLUMN_HOW_ENDED,
	COLUMN_END_REASON,
	COLUMN_COUNT = COLUMN_END_REASON
};

/*
 * The transaction that wrote this version of the row: the mint, or a later one
 * that wrote its end.  Either is no earlier than the mint, which is the safe
 * side for the question "does this snapshot see the mint?".
 */
static FullTransactionId
writer_of(HeapTuple tuple)
{
	TransactionId xid = HeapTupleHeaderGetRawXmin(tuple->t_data);
	FullTransactionId next = ReadNextFullTransactionId();
	uint32		epoch = EpochFromFullTransactionId(next);

	if (HeapTupleHeaderXminFrozen(tuple->t_data) || !TransactionIdIsNormal(xid))
		return InvalidFullTransactionId;
	if (xid > XidFromFullTransactionId(next))
		epoch--;
	return FullTransactionIdFromEpochAndXid(epoch, xid);
}

static Datum
column(HeapTuple tuple, TupleDesc desc, int number, bool *isnull)
{
	return heap_getattr(tuple, number, desc, isnull);
}

static LfScope
parse_scope(const char *text)
{
	if (strcmp(text, "detached") == 0)
		return LF_SCOPE_DETACHED;
	if (strcmp(text, "session") == 0)
		return LF_SCOPE_SESSION;
	return LF_SCOPE_TRANSACTION;
}

static LfCoordinator
parse_coordinator(const char *text)
{
	if (strcmp(text, "redis") == 0)
		return LF_COORDINATOR_REDIS;
	return strcmp(text, "external") == 0 ? LF_COORDINATOR_EXTERNAL : LF_COORDINATOR_EMBEDDED;
}

static LfOver
parse_over(const char *text)
{
	if (strcmp(text, "released") == 0)
		return LF_OVER_RELEASED;
	if (strcmp(text, "revoked") == 0)
		return LF_OVER_REVOKED;
	if (strcmp(text, "taken over") == 0)
		return LF_OVER_TAKEN;
	return LF_OVER_LAPSED;
}

static void
read_names(HeapTuple tuple, TupleDesc desc, LfGrant *grant)
{
	bool		isnull;
	text	   *resource = DatumGetTextPP(column(tuple, desc, COLUMN_RESOURCE, &isnull));
	bytea	   *holder = DatumGetByteaPP(column(tuple, desc, COLUMN_HOLDER, &isnull));

	lf_resource_of_text(&grant->resource, resource);
	grant->holder.length = Min(VARSIZE_ANY_EXHDR(holder), LF_HOLDER_MAX);
	memcpy(grant->holder.bytes, VARDATA_ANY(holder), grant->holder.length);
}

static void
read_end(HeapTuple tuple, TupleDesc desc, LfGrant *grant)
{
	bool		isnull;
	Datum		ended = column(tuple, desc, COLUMN_ENDED_AT, &isnull);
	Datum		how;

	if (isnull)
		return;
	grant->ended_at = DatumGetTimestampTz(ended);
	how = column(tuple, desc, COLUMN_HOW_ENDED, &isnull);
	grant->state.over = isnull ? LF_OVER_LAPSED : parse_over(TextDatumGetCString(how));
	grant->state.over_since = lf_clock_now() -
		Max(0, GetCurrentTimestamp() - grant->ended_at);
}

static void
read_grant(HeapTuple tuple, TupleDesc desc, LfGrant *grant)
{
	bool		isnull;
	Interval   *ttl = DatumGetIntervalP(column(tuple, desc, COLUMN_TTL, &isnull));
	char	   *scope = TextDatumGetCString(column(tuple, desc, COLUMN_SCOPE, &isnull));
	LfGrantState *state = &grant->state;

	memset(grant, 0, sizeof(*grant));
	read_names(tuple, desc, grant);
	state->token = DatumGetInt64(column(tuple, desc, COLUMN_TOKEN, &isnull));
	state->minted_by = writer_of(tuple);
	state->role = get_role_oid(NameStr(*DatumGetName(column(tuple, desc, COLUMN_ROLE, &isnull))), true);
	state->scope = parse_scope(scope);
	state->owner = -1;
	state->ttl = ttl->time + (ttl->day + ttl->month * INT64CONST(30)) * USECS_PER_DAY;
	grant->granted_at = DatumGetTimestampTz(column(tuple, desc, COLUMN_GRANTED_AT, &isnull));
	state->coordinator = parse_coordinator(TextDatumGetCString(column(tuple, desc, COLUMN_COORDINATOR, &isnull)));
	if (state->coordinator == LF_COORDINATOR_EXTERNAL)
	{
		grant->of.number = DatumGetInt64(column(tuple, desc, COLUMN_EXTERNAL_NUMBER, &isnull));
		if (isnull)
			grant->of.number = -1;
	}
	read_end(tuple, desc, grant);
	state->barred = state->over == LF_OVER_REVOKED && state->coordinator == LF_COORDINATOR_REDIS;

	/*
	 * Memory of the deadline is lost.  A transaction's or a session's grant
	 * does not outlive it, nor one whose lock service may have given it to
	 * somebody else meanwhile; a detached one runs its full ttl again, from when
	 * this memory began.
	 */
	if (state->scope == LF_SCOPE_DETACHED && state->coordinator != LF_COORDINATOR_REDIS)
		state->deadline = lf_clock_after(lf_entry_memory_since(), state->ttl);
	else if (state->over == LF_OVER_NOT)
	{
		state->over = LF_OVER_LAPSED;
		state->over_since = lf_clock_now();
	}
}

static bool
scan_one(Oid index, ScanKey key, bool backward, LfGrant *grant)
{
	const LfCatalog *catalog = lf_catalog_required();
	Relation	table = table_open(catalog->grants, AccessShareLock);
	Relation	index_relation = index_open(index, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan_ordered(table, index_relation, snapshot,
												  key == NULL ? 0 : 1, key);
	HeapTuple	tuple = systable_getnext_ordered(scan, backward ?
												 BackwardScanDirection : ForwardScanDirection);
	bool		found = HeapTupleIsValid(tuple);

	if (found)
		read_grant(tuple, RelationGetDescr(table), grant);
	systable_endscan_ordered(scan);
	UnregisterSnapshot(snapshot);
	index_close(index_relation, AccessShareLock);
	table_close(table, AccessShareLock);
	return found;
}

bool
lf_grants_try_lock(void)
{
	const LfCatalog *catalog = lf_catalog_required();

	return ConditionalLockRelationOid(catalog->grants, AccessShareLock) &&
		ConditionalLockRelationOid(catalog->grants_token_index, AccessShareLock) &&
		ConditionalLockRelationOid(catalog->grants_resource_index, AccessShareLock);
}

bool
lf_grants_by_token(int64 token, LfGrant *grant)
{
	ScanKeyData key;

	ScanKeyInit(&key, COLUMN_TOKEN, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(token));
	return scan_one(lf_catalog_required()->grants_token_index, &key, false, grant);
}

bool
lf_grants_latest(const LfResource *resource, LfGrant *grant)
{
	ScanKeyData key;

	ScanKeyEntryInitialize(&key, 0, COLUMN_RESOURCE, BTEqualStrategyNumber,
						   InvalidOid, C_COLLATION_OID, F_TEXTEQ,
						   PointerGetDatum(cstring_to_text_with_len(resource->name,
																	resource->length)));
	return scan_one(lf_catalog_required()->grants_resource_index, &key, true, grant);
}

/*
 * Asked for those from the last known one on, as a scan that is bounded reads no
 * more of the index' last page than it needs.
 */
int64
lf_grants_last_token(void)
{
	static int64 known = 0;
	Oid			index = lf_catalog_required()->grants_token_index;
	ScanKeyData key;
	LfGrant		grant;

	ScanKeyInit(&key, COLUMN_TOKEN, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(known));
	if (!scan_one(index, &key, true, &grant) && !scan_one(index, NULL, true, &grant))
		return 0;
	known = grant.state.token;
	return known;
}

/* ---- writing ---- */

static Datum
interval_datum(int64 microseconds)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = microseconds;
	return IntervalPGetDatum(interval);
}

static Datum
bytes_datum(const char *bytes, int length)
{
	return PointerGetDatum(cstring_to_text_with_len(bytes, length));
}

LfTableWriter *
lf_grants_open(void)
{
	return lf_table_open(lf_catalog_required()->grants, COLUMN_COUNT, true);
}

void
lf_grants_add(LfTableWriter *writer, const LfGrant *grant)
{
	char	   *role = GetUserNameFromId(grant->state.role, true);
	NameData	role_name;
	Datum		values[COLUMN_COUNT] = {0};
	bool		nulls[COLUMN_COUNT] = {false};

	namestrcpy(&role_name, role == NULL ? "" : role);
	values[COLUMN_TOKEN - 1] = Int64GetDatum(grant->state.token);
	values[COLUMN_RESOURCE - 1] = bytes_datum(grant->resource.name, grant->resource.length);
	values[COLUMN_HOLDER - 1] = bytes_datum(grant->holder.bytes, grant->holder.length);
	values[COLUMN_COORDINATOR - 1] = CStringGetTextDatum(lf_coordinator_name(grant->state.coordinator));
	values[COLUMN_ROLE - 1] = NameGetDatum(&role_name);
	values[COLUMN_SCOPE - 1] = CStringGetTextDatum(lf_scope_name(grant->state.scope));
	values[COLUMN_TTL - 1] = interval_datum(grant->state.ttl);
	values[COLUMN_EXTERNAL_NUMBER - 1] = Int64GetDatum(lf_grant_number(grant));
	nulls[COLUMN_EXTERNAL_NUMBER - 1] = lf_grant_number(grant) < 0;
	values[COLUMN_GRANTED_AT - 1] = TimestampTzGetDatum(grant->granted_at);
	nulls[COLUMN_ENDED_AT - 1] = true;
	nulls[COLUMN_HOW_ENDED - 1] = true;
	nulls[COLUMN_END_REASON - 1] = true;
	if (!lf_table_add(writer, values, nulls))
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
				 errmsg("no row was inserted for token %lld",
						(long long) grant->state.token),
				 errhint("A trigger on lease_fence.grants has left it out.")));
}
