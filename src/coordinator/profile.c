/*
 * profile.c
 *		Profiles, as sessions see them.
 *
 * Runs in backends.  The profiles are read by a latest snapshot and cached;
 * adding and dropping one sends an invalidation of their table.  They name their
 * servers, as a dump brings them; which ones these are now is looked up with them,
 * and again when any server is changed.
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
#include "coordinator/lock_key.h"
#include "coordinator/profile.h"
#include "coordinator/profile_table.h"
#include "coordinator/redis_options.h"
#include "foreign/foreign.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

static LfProfile *profiles = NULL;
static int	profile_count = 0;
static bool cache_valid = false;
static uint64 generation = 1;
static Oid	cached_table = InvalidOid;
static MemoryContext cache_context = NULL;
static bool callback_registered = false;

static void
invalidate(Datum arg, Oid relid)
{
	if (relid != InvalidOid && relid != cached_table)
		return;
	cache_valid = false;
	generation++;
}

static void
invalidate_servers(Datum arg, int cache, uint32 hash)
{
	cache_valid = false;
	generation++;
}

static void
register_callbacks(void)
{
	if (callback_registered)
		return;
	CacheRegisterRelcacheCallback(invalidate, (Datum) 0);
	CacheRegisterSyscacheCallback(FOREIGNSERVEROID, invalidate_servers, (Datum) 0);
	CacheRegisterSyscacheCallback(FOREIGNDATAWRAPPEROID, invalidate_servers, (Datum) 0);
	callback_registered = true;
}

uint64
lf_profile_generation(void)
{
	register_callbacks();
	return generation;
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

/* A word that this library does not know must not pass for another. */
static void
refuse_word(const LfProfile *profile, const char *column, const char *word)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("profile \"%s\" has an unknown %s: \"%s\"", profile->name, column, word),
			 errhint("Drop the profile, and add it again.")));
}

static LfPolicy
read_policy(const LfProfile *profile, const char *word)
{
	if (strcmp(word, "single") == 0)
		return LF_POLICY_SINGLE;
	if (strcmp(word, "external") != 0)
		refuse_word(profile, "policy", word);
	return LF_POLICY_EXTERNAL;
}

static LfShape
read_shape(const LfProfile *profile, const char *word)
{
	if (strcmp(word, "redisson") == 0)
		return LF_SHAPE_REDISSON;
	if (strcmp(word, "string") != 0)
		refuse_word(profile, "shape", word);
	return LF_SHAPE_STRING;
}

/* The first, and only one. */
static char *
read_server_name(const LfProfile *profile, Datum servers)
{
	Datum	   *names;
	bool	   *nulls;
	int			count;

	deconstruct_array(DatumGetArrayTypeP(servers), TEXTOID, -1, false, TYPALIGN_INT,
					  &names, &nulls, &count);
	if (count != 1 || nulls[0])
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("profile \"%s\" does not name exactly one server", profile->name),
				 errhint("Drop the profile, and add it again.")));
	return TextDatumGetCString(names[0]);
}

static char *
column_text(HeapTuple tuple, TupleDesc desc, int column)
{
	bool		isnull;

	return TextDatumGetCString(heap_getattr(tuple, column, desc, &isnull));
}

static void
read_profile(HeapTuple tuple, TupleDesc desc, LfProfile *profile)
{
	bool		isnull;
	Datum		roles;
	Interval   *ttl;

	profile->name = pstrdup(NameStr(*DatumGetName(heap_getattr(tuple, LF_PROFILE_NAME, desc, &isnull))));
	profile->prefix = column_text(tuple, desc, LF_PROFILE_PREFIX);
	profile->policy = read_policy(profile, column_text(tuple, desc, LF_PROFILE_POLICY));
	profile->server_name = NULL;
	profile->server = InvalidOid;
	if (profile->policy == LF_POLICY_SINGLE)
		profile->server_name =
			read_server_name(profile, heap_getattr(tuple, LF_PROFILE_SERVERS, desc, &isnull));
	profile->shape = read_shape(profile, column_text(tuple, desc, LF_PROFILE_SHAPE));
	profile->watch = DatumGetBool(heap_getattr(tuple, LF_PROFILE_WATCH, desc, &isnull));
	profile->lock_key = column_text(tuple, desc, LF_PROFILE_LOCK_KEY);
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
	Relation	table = try_table_open(oid, AccessShareLock);
	Snapshot	snapshot;
	SysScanDesc scan;
	MemoryContext saved;
	HeapTuple	tuple;
	int			room = 8;

	if (table == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"lease_fence\" was dropped meanwhile")));
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan = systable_beginscan(table, InvalidOid, false, snapshot, 0, NULL);
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

/* One of that name that is not of our wrapper is none. */
static void
find_server(LfProfile *profile)
{
	Oid			server;

	if (profile->policy != LF_POLICY_SINGLE)
		return;
	server = get_foreign_server_oid(profile->server_name, true);
	if (OidIsValid(server) && lf_redis_options_own(server))
		profile->server = server;
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
		for (int i = 0; i < profile_count; i++)
			find_server(&profiles[i]);
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

	register_callbacks();
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

static void
refuse_no_lock(const LfResource *resource, const LfLock *lock)
{
	const char *pattern = lf_lock_key_is_none(lock->key, lock->key_length);

	if (pattern != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("resource \"%.*s\" has no lock", resource->length, resource->name),
				 errdetail("Its key would be \"%.*s\". Keys like \"%s\" are what libraries keep beside their locks.",
						   lock->key_length, lock->key, pattern),
				 errhint("Name the resource of the lock itself.")));
}

/* False: its key is too long. */
static bool
fill_lock(const LfProfile *profile, const LfResource *resource, LfLock *lock)
{
	int			length = lf_lock_key_render(profile->lock_key, resource, lock->key);

	lock->server = profile->server;
	lock->shape = profile->shape;
	lock->watch = profile->watch;
	lock->key_length = Max(length, 0);
	return length >= 0;
}

bool
lf_profile_find_lock(const LfProfile *profile, const LfResource *resource, LfLock *lock)
{
	return profile->policy == LF_POLICY_SINGLE && OidIsValid(profile->server) &&
		fill_lock(profile, resource, lock) &&
		lf_lock_key_is_none(lock->key, lock->key_length) == NULL;
}

void
lf_profile_lock(const LfProfile *profile, const LfResource *resource, LfLock *lock)
{
	Assert(profile->policy == LF_POLICY_SINGLE);
	if (!OidIsValid(profile->server))
		ereport(ERROR,
				(errcode(LF_ERRCODE_COORDINATOR),
				 errmsg("server \"%s\" of profile \"%s\" is not there",
						profile->server_name, profile->name),
				 errdetail("Resource \"%.*s\". No server of foreign data wrapper \"%s\" has that name.",
						   resource->length, resource->name, LF_REDIS_WRAPPER),
				 errhint("Create the server, or drop the profile and add it again.")));
	if (!fill_lock(profile, resource, lock))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the lock key of resource \"%.*s\" has more than %d bytes",
						resource->length, resource->name, LF_LOCK_KEY_MAX),
				 errdetail("By profile \"%s\" it is \"%s\".", profile->name, profile->lock_key)));
	refuse_no_lock(resource, lock);
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
