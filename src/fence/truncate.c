/*
 * truncate.c
 *		TRUNCATE of guarded tables, seen through object_access_hook.
 *
 * Runs in every backend.  A TRUNCATE trigger would not do: that of a
 * partitioned table does not fire when one of its partitions is truncated, and
 * partitions do not inherit it.
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/catalog.h"
#include "fence/guard.h"
#include "fence/protect.h"
#include "fence/truncate.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "storage/lmgr.h"
#include "utils/syscache.h"

static object_access_hook_type previous_hook = NULL;

static bool
has_triggers(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool		result = false;

	if (HeapTupleIsValid(tuple))
	{
		result = ((Form_pg_class) GETSTRUCT(tuple))->relhastriggers;
		ReleaseSysCache(tuple);
	}
	return result;
}

/*
 * Lets the guard decide.
 *
 * For a table that is named in the command this is called before TRUNCATE
 * holds its lock, and once more under it if anything changed meanwhile.  So
 * we open with a lock of our own and give it back at once: kept, it would
 * make two concurrent TRUNCATEs wait for each other.  PostgreSQL looks at
 * privileges only after us, except for partitions, which it has locked by
 * then: who may not truncate gets its error, not ours.
 */
static void
check_truncate(Oid relid)
{
	Relation	rel;
	Trigger    *trigger;

	if (!has_triggers(relid))
		return;
	if (lf_catalog() == NULL)
	{
		/* of another version: what is its guard, and what not, only the name says */
		if (OidIsValid(get_trigger_oid(relid, LF_GUARD_TRIGGER, true)))
			lf_catalog_check_version();
		return;
	}

	rel = table_open(relid, AccessShareLock);
	trigger = lf_guard_find_trigger(rel);
	if (trigger != NULL && trigger->tgenabled != TRIGGER_DISABLED &&
		(CheckRelationLockedByMe(rel, AccessExclusiveLock, false) ||
		 pg_class_aclcheck(relid, GetUserId(), ACL_TRUNCATE) == ACLCHECK_OK))
		lf_guard_truncate(rel, trigger);
	table_close(rel, AccessShareLock);
}

static void
truncate_hook(ObjectAccessType access, Oid class_id, Oid object_id,
			  int sub_id, void *arg)
{
	if (previous_hook != NULL)
		previous_hook(access, class_id, object_id, sub_id, arg);

	if (access == OAT_TRUNCATE && class_id == RelationRelationId &&
		!IsBinaryUpgrade)
		check_truncate(object_id);
}

void
lf_truncate_install_hook(void)
{
	previous_hook = object_access_hook;
	object_access_hook = truncate_hook;
}
