/*
 * operation.c
 *		Operation keys.
 *
 * Runs in backends.  The key is looked up before the fence is: an operation
 * that was applied is applied, whatever token its retry comes under.  Only what
 * was applied is recorded, in the transaction that applied it.
 *
 * What must end well: two sessions with one key at once (the second waits for
 * the first one's end), a rolled-back attempt (leaves nothing), a COMMIT whose
 * answer was lost (the retry gets the answer).
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/table.h"
#include "catalog/pg_collation.h"
#include "common/hashfn.h"
#include "common/sha2.h"
#include "fence/operation.h"
#include "fence/present.h"
#include "funcapi.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(lf_operation);

#define FIELD4_OPERATION 17992	/* beside those of token_lock.c */

/* The columns of lease_fence.operations. */
enum
{
	COLUMN_KEY = 1,
	COLUMN_ROLE,
	COLUMN_RELATION,
	COLUMN_DIGEST,
	COLUMN_ANSWER,
	COLUMN_TOKEN,
	COLUMN_AT,
	COLUMN_COUNT = COLUMN_AT
};

typedef struct StoredOperation
{
	Oid			role;
	Oid			relation;
	uint8		digest[32];
	Jsonb	   *answer;
	int64		token;			/* 0: none */
	TimestampTz at;
} StoredOperation;

/*
 * Keys whose hashes collide wait for each other, no more: the row decides.
 *
 * Booked on the transaction, as locks of tokens are: a cursor that fails inside
 * a savepoint would lose the lock while what was recorded before stays.
 */
static void
lock_key(const char *key)
{
	uint64		hash = hash_bytes_extended((const unsigned char *) key, strlen(key), 0);
	ResourceOwner saved = CurrentResourceOwner;
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash,
						 FIELD4_OPERATION);
	CurrentResourceOwner = CurTransactionResourceOwner;
	LockAcquire(&tag, ExclusiveLock, false, false);
	CurrentResourceOwner = saved;
}

static void
read_stored(HeapTuple tuple, TupleDesc desc, StoredOperation *stored)
{
	bool		isnull;
	bytea	   *digest = DatumGetByteaPP(heap_getattr(tuple, COLUMN_DIGEST, desc, &isnull));
	Name		role = DatumGetName(heap_getattr(tuple, COLUMN_ROLE, desc, &isnull));

	memset(stored, 0, sizeof(*stored));
	memcpy(stored->digest, VARDATA_ANY(digest),
		   Min(sizeof(stored->digest), VARSIZE_ANY_EXHDR(digest)));
	stored->role = get_role_oid(NameStr(*role), true);
	stored->relation = DatumGetObjectId(heap_getattr(tuple, COLUMN_RELATION, desc, &isnull));
	stored->answer = DatumGetJsonbPCopy(heap_getattr(tuple, COLUMN_ANSWER, desc, &isnull));
	stored->token = DatumGetInt64(heap_getattr(tuple, COLUMN_TOKEN, desc, &isnull));
	if (isnull)
		stored->token = 0;
	stored->at = DatumGetTimestampTz(heap_getattr(tuple, COLUMN_AT, desc, &isnull));
}

/* By a latest snapshot: the one who was before us may have committed just now. */
static bool
find_stored(const char *key, StoredOperation *stored)
{
	const LfCatalog *catalog = lf_catalog_required();
	Relation	table = table_open(catalog->operations, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData scan_key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found;

	ScanKeyEntryInitialize(&scan_key, 0, COLUMN_KEY, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ, CStringGetTextDatum(key));
	scan = systable_beginscan(table, lf_catalog_required()->operations_index, true,
							  snapshot, 1, &scan_key);
	tuple = systable_getnext(scan);
	found = HeapTupleIsValid(tuple);
	if (found)
		read_stored(tuple, RelationGetDescr(table), stored);
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(table, AccessShareLock);
	return found;
}

static void
digest_request(LfOperation *operation, const char *request)
{
	Datum		hash = DirectFunctionCall1(sha256_bytea,
										   PointerGetDatum(cstring_to_text(request)));

	memcpy(operation->digest, VARDATA_ANY(DatumGetByteaPP(hash)), sizeof(operation->digest));
}

static void
check_key(const char *argument, const char *key)
{
	if (key[0] == '\0' || strlen(key) > LF_OPERATION_KEY_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" has %zu bytes", argument, strlen(key)),
				 errhint("An operation key has 1 to %d bytes.", LF_OPERATION_KEY_MAX)));
}

static void
refuse_reuse(const char *key, const char *detail)
{
	ereport(ERROR,
			(errcode(LF_ERRCODE_OPERATION_REUSED),
			 errmsg("operation key \"%s\" belongs to another request", key),
			 errdetail_internal("%s", detail),
			 errhint("Use a new key for each operation, and the same one only to repeat the same request.")));
}

Jsonb *
lf_operation_begin(LfOperation *operation, const char *key, Oid relation,
				   const char *request)
{
	StoredOperation stored;

	operation->key = key;
	operation->relation = relation;
	check_key("operation_key", key);
	digest_request(operation, request);
	lock_key(key);
	if (!find_stored(key, &stored))
		return NULL;
	if (!lf_present_role_allowed(stored.role))
		refuse_reuse(key, "It was used by another role.");
	if (memcmp(stored.digest, operation->digest, sizeof(stored.digest)) != 0)
		refuse_reuse(key, "It was applied with other arguments.");
	return stored.answer;
}

void
lf_operation_applied(const LfOperation *operation, int64 token, Jsonb *answer)
{
	Datum		values[COLUMN_COUNT];
	bool		nulls[COLUMN_COUNT] = {false};
	NameData	role;
	bytea	   *digest = palloc(VARHDRSZ + sizeof(operation->digest));

	SET_VARSIZE(digest, VARHDRSZ + sizeof(operation->digest));
	memcpy(VARDATA(digest), operation->digest, sizeof(operation->digest));
	namestrcpy(&role, GetUserNameFromId(GetOuterUserId(), false));
	values[COLUMN_KEY - 1] = CStringGetTextDatum(operation->key);
	values[COLUMN_ROLE - 1] = NameGetDatum(&role);
	values[COLUMN_RELATION - 1] = ObjectIdGetDatum(operation->relation);
	values[COLUMN_DIGEST - 1] = PointerGetDatum(digest);
	values[COLUMN_ANSWER - 1] = JsonbPGetDatum(answer);
	values[COLUMN_TOKEN - 1] = Int64GetDatum(token);
	nulls[COLUMN_TOKEN - 1] = token == 0;
	values[COLUMN_AT - 1] = TimestampTzGetDatum(GetCurrentTimestamp());
	lf_table_insert(lf_catalog_required()->operations, COLUMN_COUNT, values, nulls);

	/* the same statement may ask again */
	CommandCounterIncrement();
}

/* SQL: operation(key): what became of it?  No row: it was not applied. */
Datum
lf_operation(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	StoredOperation stored;
	Datum		values[5];
	bool		nulls[5] = {false};
	char	   *key;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"key\" must not be NULL")));
	key = text_to_cstring(PG_GETARG_TEXT_PP(0));
	check_key("key", key);
	InitMaterializedSRF(fcinfo, 0);
	if (!find_stored(key, &stored) || !lf_present_role_allowed(stored.role))
		PG_RETURN_NULL();
	values[0] = ObjectIdGetDatum(stored.relation);
	values[1] = CStringGetTextDatum("applied");
	values[2] = JsonbPGetDatum(stored.answer);
	values[3] = Int64GetDatum(stored.token);
	nulls[3] = stored.token == 0;
	values[4] = TimestampTzGetDatum(stored.at);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	PG_RETURN_NULL();
}
