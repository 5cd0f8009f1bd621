/*
 * profile.c
 *		Profiles, as sessions see them.
 *
 * Runs in backends.  The profiles are read by a latest snapshot and cached;
 * adding and dropping one sends an invalidation of their table.
 *
 * A profile remembers the system and the database in which it was added: in a
 * restored or copied one it is off until it is added again, so that a copy never
 * touches what belongs to production.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/errors.h"
#include "catalog/pg_type.h"
#include "coordinator/profile.h"
#include "coordinator/profile_table.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

static LfProfile *profiles = NULL;
static int	profile_count = 0;
static bool cache_valid = false;
static Oid	cached_table = InvalidOid;
static MemoryContext cache_context = NULL;
static bool callback_registered = false;

static void
invalidate(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == cached_table)
		cache_valid = false;
}

static void
read_roles(Datum roles, LfProfile *profile)
{
	Datum	   *names;
	int			count;

	deconstruct_array(DatumGetArrayTypeP(roles), NAMEOID, NAMEDATALEN, false,
					  TYPALIGN_CHAR, &names, NULL, &count);
	profile->roles = palloc(Max(count, 1) * sizeof(Oid));
	profile->role_count = 0;
	for (int i = 0; i < count; i++)
	{
		Oid			role = get_role_oid(NameStr(*DatumGetName(names[i])), true);

		if (OidIsValid(role))
			profile->roles[profile->role_count++] = role;
	}
}

static void
read_profile(HeapTuple tuple, TupleDesc desc, LfProfile *profile)
{
	bool		isnull;
	Datum		roles;
	Interval   *ttl;

	profile->name = pstrdup(NameStr(*DatumGetName(heap_getattr(tuple, LF_PROFILE_NAME, desc, &isnull))));
	profile->prefix = TextDatumGetCString(heap_getattr(tuple, LF_PROFILE_PREFIX, desc, &isnull));
	profile->policy = LF_POLICY_EXTERNAL;
	ttl = DatumGetIntervalP(heap_getattr(tuple, LF_PROFILE_TTL, desc, &isnull));
	profile->ttl = ttl->time;
	roles = heap_getattr(tuple, LF_PROFILE_ROLES, desc, &isnull);
	profile->role_count = -1;
	if (!isnull)
		read_roles(roles, profile);
	profile->here =
		(uint64) DatumGetInt64(heap_getattr(tuple, LF_PROFILE_SYSTEM_IDENTIFIER, desc, &isnull)) ==
		GetSystemIdentifier() &&
		DatumGetObjectId(heap_getattr(tuple, LF_PROFILE_DATABASE_OID, desc, &isnull)) == MyDatabaseId;
}

static void
read_profiles(Oid oid)
{
	Relation	table = table_open(oid, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(table, InvalidOid, false, snapshot, 0, NULL);
	MemoryContext saved;
	HeapTuple	tuple;
	int			room = 8;

	if (cache_context == NULL)
		cache_context = AllocSetContextCreate(TopMemoryContext, "lease_fence profiles",
											  ALLOCSET_SMALL_SIZES);
	MemoryContextReset(cache_context);
	profile_count = 0;
	saved = MemoryContextSwitchTo(cache_context);
	profiles = palloc0(room * sizeof(LfProfile));
	while ((tuple = systable_getnext(scan)) != NULL)
	{
		if (profile_count == room)
			profiles = repalloc(profiles, (room *= 2) * sizeof(LfProfile));
		read_profile(tuple, RelationGetDescr(table), &profiles[profile_count++]);
	}
	MemoryContextSwitchTo(saved);
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(table, AccessShareLock);
}

/*
 * Read halfway, they would be the wrong ones: a resource of others would pass for
 * our own.
 */
static void
load_profiles(void)
{
	cached_table = lf_catalog_required()->profiles;
	cache_valid = true;			/* before reading: what arrives meanwhile clears it */
	PG_TRY();
	{
		read_profiles(cached_table);
	}
	PG_CATCH();
	{
		cache_valid = false;
		PG_RE_THROW();
	}
	PG_END_TRY();
}

const LfProfile *
lf_profile_of(const LfResource *resource)
{
	const LfProfile *best = NULL;
	Size		best_length = 0;

	if (!callback_registered)
	{
		CacheRegisterRelcacheCallback(invalidate, (Datum) 0);
		callback_registered = true;
	}
	AcceptInvalidationMessages();
	if (!cache_valid)
		load_profiles();
	for (int i = 0; i < profile_count; i++)
	{
		Size		length = strlen(profiles[i].prefix);

		if (length <= resource->length && (best == NULL || length > best_length) &&
			memcmp(profiles[i].prefix, resource->name, length) == 0)
		{
			best = &profiles[i];
			best_length = length;
		}
	}
	return best;
}

static bool
role_may_use(const LfProfile *profile)
{
	if (profile->role_count < 0)
		return true;
	for (int i = 0; i < profile->role_count; i++)
	{
		if (has_privs_of_role(GetOuterUserId(), profile->roles[i]))
			return true;
	}
	return false;
}

void
lf_profile_check_use(const LfProfile *profile, const LfResource *resource)
{
	if (!profile->here)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("profile \"%s\" of resource \"%.*s\" belongs to another system or database",
						profile->name, resource->length, resource->name),
				 errdetail("This database is a copy of the one in which it was added."),
				 errhint("Drop the profile, and add it again if this copy is to use the same lock service.")));
	if (!role_may_use(profile))
		ereport(ERROR,
				(errcode(LF_ERRCODE_WRONG_ROLE),
				 errmsg("role \"%s\" may not take the lease of resource \"%.*s\"",
						GetUserNameFromId(GetOuterUserId(), true),
						resource->length, resource->name),
				 errdetail("Profile \"%s\" reserves it to other roles.", profile->name),
				 errhint("Use a role that the profile names, or have the profile changed.")));
}
