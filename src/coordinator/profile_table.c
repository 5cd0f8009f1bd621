/*
 * profile_table.c
 *		SQL: add_profile, drop_profile.
 *
 * Runs in backends.  Everything is checked before anything is written, as far as
 * its policy uses it.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/resource.h"
#include "base/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_type.h"
#include "coordinator/lock_key.h"
#include "coordinator/profile.h"
#include "coordinator/profile_table.h"
#include "coordinator/redis_options.h"
#include "fmgr.h"
#include "foreign/foreign.h"
#include "base/arguments.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

PG_FUNCTION_INFO_V1(lf_add_profile);
PG_FUNCTION_INFO_V1(lf_drop_profile);

static void
check_not_null(FunctionCallInfo fcinfo, const char *const *names, int count)
{
	for (int i = 0; i < count; i++)
	{
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("argument \"%s\" must not be NULL", names[i])));
	}
}

static void
check_length(const char *argument, const char *value, int max)
{
	if (value[0] == '\0' || strlen(value) > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" has %zu bytes", argument, strlen(value)),
				 errhint("It has 1 to %d.", max)));
}

static LfPolicy
check_policy(const char *policy)
{
	if (strcmp(policy, "external") == 0)
		return LF_POLICY_EXTERNAL;
	if (strcmp(policy, "single") == 0)
		return LF_POLICY_SINGLE;
	if (strcmp(policy, "all") == 0 || strcmp(policy, "quorum") == 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("policy \"%s\" is not supported in this version", policy),
				 errhint("Policies \"single\" and \"external\" are.")));
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("argument \"policy\" is not allowed: \"%s\"", policy),
			 errhint("It is one of \"single\", \"all\", \"quorum\" and \"external\".")));
}

static void
check_shape(const char *shape)
{
	if (strcmp(shape, "string") != 0 && strcmp(shape, "redisson") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"shape\" is not allowed: \"%s\"", shape),
				 errhint("It is \"string\" or \"redisson\".")));
}

static void
check_no_servers(ArrayType *servers)
{
	if (ArrayGetNItems(ARR_NDIM(servers), ARR_DIMS(servers)) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"servers\" must be empty under policy \"external\""),
				 errdetail("The order is handed out by others, and imported with import_grant().")));
}

static char *
the_server(ArrayType *servers)
{
	Datum	   *names;
	bool	   *nulls;
	int			count;

	deconstruct_array(servers, TEXTOID, -1, false, TYPALIGN_INT, &names, &nulls, &count);
	if (count != 1 || nulls[0])
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"servers\" must name one server under policy \"single\": %s",
						OidOutputFunctionCall(F_ARRAY_OUT, PointerGetDatum(servers))),
				 errhint("Make one with CREATE SERVER ... FOREIGN DATA WRAPPER %s.", LF_REDIS_WRAPPER)));
	return TextDatumGetCString(names[0]);
}

/* Who may take leases there is the profile's matter; to name it takes USAGE. */
static void
check_one_server(ArrayType *servers)
{
	char	   *name = the_server(servers);
	Oid			server = get_foreign_server_oid(name, false);
	AclResult	may;

	if (!lf_redis_options_own(server))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"servers\" names server \"%s\", which is not one of \"%s\"",
						name, LF_REDIS_WRAPPER),
				 errhint("Make one with CREATE SERVER ... FOREIGN DATA WRAPPER %s.", LF_REDIS_WRAPPER)));
	may = lf_may_use_server(server, GetUserId());
	if (may != ACLCHECK_OK)
		aclcheck_error(may, OBJECT_FOREIGN_SERVER, name);
}

static void
check_roles(FunctionCallInfo fcinfo, int number)
{
	Datum	   *names;
	bool	   *nulls;
	int			count;

	if (PG_ARGISNULL(number))
		return;
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(number), NAMEOID, NAMEDATALEN, false,
					  TYPALIGN_CHAR, &names, &nulls, &count);
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("argument \"roles\" must not contain NULL")));
		get_role_oid(NameStr(*DatumGetName(names[i])), false);
	}
}

static void
announce_change(void)
{
	CacheInvalidateRelcacheByRelid(lf_catalog_required()->profiles);
}

/* The unique indexes would say it less well; they are for who comes meanwhile. */
static void
check_new(const char *name, const char *prefix)
{
	Relation	table = table_open(lf_catalog_required()->profiles, AccessShareLock);
	TupleDesc	desc = RelationGetDescr(table);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(table, InvalidOid, false, snapshot, 0, NULL);
	HeapTuple	tuple;

	while ((tuple = systable_getnext(scan)) != NULL)
	{
		bool		isnull;
		Name		there = DatumGetName(heap_getattr(tuple, LF_PROFILE_NAME, desc, &isnull));

		if (strcmp(NameStr(*there), name) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_UNIQUE_VIOLATION),
					 errmsg("profile \"%s\" is there already", name),
					 errhint("Drop it first, with lease_fence.drop_profile().")));
		if (strcmp(TextDatumGetCString(heap_getattr(tuple, LF_PROFILE_PREFIX, desc, &isnull)), prefix) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_UNIQUE_VIOLATION),
					 errmsg("prefix \"%s\" has a profile already: \"%s\"", prefix, NameStr(*there)),
					 errhint("Drop that one first, with lease_fence.drop_profile().")));
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(table, AccessShareLock);
}

Datum
lf_add_profile(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"name", "prefix", "servers", "policy", "shape",
	"lock_key", "ttl", "watch"};
	Datum		values[LF_PROFILE_COLUMNS];
	bool		nulls[LF_PROFILE_COLUMNS] = {false};
	char	   *name_text;
	char	   *prefix;
	NameData	name;

	check_not_null(fcinfo, names, lengthof(names));
	name_text = text_to_cstring(PG_GETARG_TEXT_PP(0));
	check_length("name", name_text, NAMEDATALEN - 1);
	prefix = text_to_cstring(PG_GETARG_TEXT_PP(1));
	check_length("prefix", prefix, LF_RESOURCE_MAX);
	if (check_policy(text_to_cstring(PG_GETARG_TEXT_PP(3))) == LF_POLICY_SINGLE)
	{
		check_one_server(PG_GETARG_ARRAYTYPE_P(2));
		lf_lock_key_check(text_to_cstring(PG_GETARG_TEXT_PP(5)));
	}
	else
		check_no_servers(PG_GETARG_ARRAYTYPE_P(2));
	check_shape(text_to_cstring(PG_GETARG_TEXT_PP(4)));
	check_roles(fcinfo, 8);
	check_new(name_text, prefix);

	namestrcpy(&name, name_text);
	values[LF_PROFILE_NAME - 1] = NameGetDatum(&name);
	values[LF_PROFILE_PREFIX - 1] = PG_GETARG_DATUM(1);
	values[LF_PROFILE_SERVERS - 1] = PG_GETARG_DATUM(2);
	values[LF_PROFILE_POLICY - 1] = PG_GETARG_DATUM(3);
	values[LF_PROFILE_SHAPE - 1] = PG_GETARG_DATUM(4);
	values[LF_PROFILE_LOCK_KEY - 1] = PG_GETARG_DATUM(5);
	values[LF_PROFILE_TTL - 1] = lf_interval_datum(lf_argument_ttl(fcinfo, 6));
	values[LF_PROFILE_WATCH - 1] = PG_GETARG_DATUM(7);
	nulls[LF_PROFILE_ROLES - 1] = PG_ARGISNULL(8);
	values[LF_PROFILE_ROLES - 1] = PG_ARGISNULL(8) ? (Datum) 0 : PG_GETARG_DATUM(8);
	values[LF_PROFILE_SYSTEM_IDENTIFIER - 1] = Int64GetDatum((int64) GetSystemIdentifier());
	values[LF_PROFILE_DATABASE_OID - 1] = ObjectIdGetDatum(MyDatabaseId);
	lf_table_insert(lf_catalog_required()->profiles, LF_PROFILE_COLUMNS, values, nulls);
	announce_change();
	PG_RETURN_VOID();
}

static bool
delete_profile(const char *name)
{
	Relation	table = table_open(lf_catalog_required()->profiles, RowExclusiveLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(table, InvalidOid, false, snapshot, 0, NULL);
	HeapTuple	tuple;
	bool		found = false;

	while (!found && (tuple = systable_getnext(scan)) != NULL)
	{
		bool		isnull;
		Name		this = DatumGetName(heap_getattr(tuple, LF_PROFILE_NAME,
													 RelationGetDescr(table), &isnull));

		found = !isnull && strcmp(NameStr(*this), name) == 0;
		if (found)
			CatalogTupleDelete(table, &tuple->t_self);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(table, RowExclusiveLock);
	return found;
}

Datum
lf_drop_profile(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"name"};
	char	   *name;

	check_not_null(fcinfo, names, lengthof(names));
	name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	if (!delete_profile(name))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("profile \"%s\" does not exist", name)));
	announce_change();
	PG_RETURN_VOID();
}
