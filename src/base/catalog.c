/*
 * catalog.c
 *		OIDs of the extension and of its own tables, cached per process.
 *
 * Runs in backends and in workers, inside transactions.  CREATE and DROP
 * EXTENSION at any moment, committed or rolled back, in this session or in
 * another, must end well: what was found is forgotten when one of our tables
 * changes, and "not there" is never remembered.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "base/catalog.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#define LF_EXTENSION "lease_fence"

static LfCatalog cached;
static bool cached_valid = false;
static bool callback_registered = false;

static void
forget_cached(Datum arg, Oid relid)
{
	if (relid == InvalidOid ||
		relid == cached.grants || relid == cached.epochs ||
		relid == cached.rejected_writes || relid == cached.guard_modes ||
		relid == cached.operations || relid == cached.profiles)
		cached_valid = false;
}

/* Is that schema a member of the extension, or somebody else's? */
static bool
schema_is_ours(Oid schema, Oid extension)
{
	return getExtensionOfObject(NamespaceRelationId, schema) == extension;
}

static bool
find_relation(Oid schema, const char *name, Oid *result)
{
	*result = get_relname_relid(name, schema);
	return OidIsValid(*result);
}

static bool
find_function(Oid schema, const char *name, oidvector *arguments, Oid *result)
{
	*result = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
							  CStringGetDatum(name), PointerGetDatum(arguments),
							  ObjectIdGetDatum(schema));
	return OidIsValid(*result);
}

/* The version of the extension's SQL, as pg_extension has it; NULL: none there. */
static char *
version_of(Oid extension)
{
	Relation	table = table_open(ExtensionRelationId, AccessShareLock);
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	char	   *version = NULL;

	ScanKeyInit(&key, Anum_pg_extension_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(extension));
	scan = systable_beginscan(table, ExtensionOidIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool		isnull;
		Datum		value = heap_getattr(tuple, Anum_pg_extension_extversion,
										 RelationGetDescr(table), &isnull);

		version = isnull ? NULL : TextDatumGetCString(value);
	}
	systable_endscan(scan);
	table_close(table, AccessShareLock);
	return version;
}

/*
 * A library that was replaced without ALTER EXTENSION UPDATE, or the other way
 * round, would read tables and call functions that are not as it knows them.
 */
static bool
version_fits(Oid extension)
{
	char	   *version = version_of(extension);

	return version != NULL && strcmp(version, LF_VERSION) == 0;
}

static bool
find_all(LfCatalog *catalog)
{
	Oid			text = TEXTOID;
	Oid			schema;

	catalog->extension = get_extension_oid(LF_EXTENSION, true);
	if (!OidIsValid(catalog->extension) || !version_fits(catalog->extension))
		return false;
	schema = get_namespace_oid(LF_EXTENSION, true);
	if (!OidIsValid(schema) || !schema_is_ours(schema, catalog->extension))
		return false;
	catalog->schema = schema;
	return find_function(schema, "guard", buildoidvector(NULL, 0), &catalog->guard_function) &&
		find_function(schema, "begin_epoch", buildoidvector(&text, 1),
					  &catalog->begin_epoch_function) &&
		find_relation(schema, "grants", &catalog->grants) &&
		find_relation(schema, "grants_pkey", &catalog->grants_token_index) &&
		find_relation(schema, "grants_resource", &catalog->grants_resource_index) &&
		find_relation(schema, "epochs", &catalog->epochs) &&
		find_relation(schema, "epochs_pkey", &catalog->epochs_index) &&
		find_relation(schema, "rejected_writes", &catalog->rejected_writes) &&
		find_relation(schema, "rejected_writes_pkey", &catalog->rejected_writes_index) &&
		find_relation(schema, "operations", &catalog->operations) &&
		find_relation(schema, "operations_pkey", &catalog->operations_index) &&
		find_relation(schema, "profiles", &catalog->profiles) &&
		find_relation(schema, "guard_modes", &catalog->guard_modes) &&
		find_relation(schema, "guard_modes_pkey", &catalog->guard_modes_index);
}

const LfCatalog *
lf_catalog(void)
{
	LfCatalog	found;

	if (cached_valid)
		return &cached;
	if (!callback_registered)
	{
		CacheRegisterRelcacheCallback(forget_cached, (Datum) 0);
		callback_registered = true;
	}
	memset(&found, 0, sizeof(found));
	if (creating_extension || !find_all(&found))
		return NULL;
	cached = found;
	cached_valid = true;
	return &cached;
}

static void
raise_other_version(const char *version)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the library of lease_fence is of version %s, the extension in this database of version %s",
					LF_VERSION, version),
			 errdetail("Nothing is granted, and no guarded table can be written, until they agree."),
			 errhint("Run ALTER EXTENSION lease_fence UPDATE; if the library is the older one, restart the server.")));
}

void
lf_catalog_check_version(void)
{
	Oid			extension = creating_extension ? InvalidOid :
		get_extension_oid(LF_EXTENSION, true);
	char	   *version = OidIsValid(extension) ? version_of(extension) : NULL;

	if (version != NULL && strcmp(version, LF_VERSION) != 0)
		raise_other_version(version);
}

const LfCatalog *
lf_catalog_required(void)
{
	const LfCatalog *catalog = lf_catalog();

	if (catalog == NULL)
		lf_catalog_check_version();
	if (catalog == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"%s\" is not installed in this database",
						LF_EXTENSION),
				 errhint("Run CREATE EXTENSION lease_fence.")));
	return catalog;
}
