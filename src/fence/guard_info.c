/*
 * guard_info.c
 *		What a guard's trigger says, parsed once per backend and table.
 *
 * Runs in backends.  The cache is forgotten table by table when the table, its
 * triggers or its guard's mode change (set_mode sends the same invalidation).
 *
 * What must end well: columns renamed or dropped under the guard (an error that
 * names guard and column, nothing is written), an invalidation while an element
 * is being built (it stays invalid and is built again by the next row).
 */
#include "postgres.h"

#include "base/compat.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "fence/guard_info.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

static HTAB *cache = NULL;

static void
invalidate(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS status;
	LfGuardInfo *info;

	hash_seq_init(&status, cache);
	while ((info = hash_seq_search(&status)) != NULL)
	{
		if (relid == InvalidOid || info->relation == relid)
			info->valid = false;
	}
}

static void
create_cache(void)
{
	HASHCTL		control;

	memset(&control, 0, sizeof(control));
	control.keysize = sizeof(Oid);
	control.entrysize = sizeof(LfGuardInfo);
	control.hcxt = TopMemoryContext;
	cache = hash_create("lease_fence guards", 32, &control,
						HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	CacheRegisterRelcacheCallback(invalidate, (Datum) 0);
}

/*
 * A template that was good when protect() saw it has lost a column since: not
 * the writer's arguments are bad, the guard is.
 */
static void
name_guard(void *arg)
{
	Relation	relation = arg;

	if (geterrcode() == ERRCODE_INVALID_PARAMETER_VALUE)
		errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE);
	errcontext("guard of table \"%s.%s\"",
			   get_namespace_name(RelationGetNamespace(relation)),
			   RelationGetRelationName(relation));
}

static void
find_token_column(LfGuardInfo *info, Relation relation, const char *name)
{
	AttrNumber	number = get_attnum(RelationGetRelid(relation), name);

	if (number == InvalidAttrNumber ||
		TupleDescAttr(RelationGetDescr(relation), number - 1)->atttypid != INT8OID)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("guarded table \"%s.%s\" has lost its token column \"%s\"",
						get_namespace_name(RelationGetNamespace(relation)),
						RelationGetRelationName(relation), name),
				 errdetail("No row can be written until the column, of type bigint, is back."),
				 errhint("Rename it back, or call lease_fence.unprotect() and protect() again.")));
	info->token_column = number;
}

/* What lf_guard_same_resource() and the check of a row need of the template. */
static void
read_template(LfGuardInfo *info, TupleDesc desc)
{
	LfResource	resource;
	AttrNumber	column;

	info->columns = palloc(desc->natts * sizeof(AttrNumber));
	info->ncolumns = lf_template_columns(info->tmpl, info->columns, desc->natts);
	info->constant = NULL;
	if (info->ncolumns == 0 &&
		lf_template_render(info->tmpl, NULL, desc, &resource, &column))
	{
		info->constant = palloc(sizeof(LfResource));
		*info->constant = resource;
	}
}

/* The last enabled trigger of that event whose name sorts behind ours, if any. */
static const char *
late_trigger(Relation relation, const Trigger *ours, int16 event)
{
	TriggerDesc *desc = relation->trigdesc;
	const char *late = NULL;

	for (int i = 0; i < desc->numtriggers; i++)
	{
		Trigger    *other = &desc->triggers[i];

		if (TRIGGER_TYPE_MATCHES(other->tgtype, TRIGGER_TYPE_ROW,
								 TRIGGER_TYPE_BEFORE, event) &&
			other->tgenabled != TRIGGER_DISABLED &&
			strcmp(other->tgname, ours->tgname) > 0)
			late = pstrdup(other->tgname);
	}
	return late;
}

static void
build(LfGuardInfo *info, Relation relation, const Trigger *trigger)
{
	MemoryContext saved;
	ErrorContextCallback callback;

	if (trigger->tgnargs != LF_GUARD_ARGS)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("trigger \"%s\" of table \"%s\" has %d arguments instead of %d",
						trigger->tgname, RelationGetRelationName(relation),
						trigger->tgnargs, LF_GUARD_ARGS),
				 errhint("Guards are made by lease_fence.protect().")));
	callback.callback = name_guard;
	callback.arg = relation;
	callback.previous = error_context_stack;
	error_context_stack = &callback;

	if (info->context == NULL)
		info->context = AllocSetContextCreate(TopMemoryContext, "lease_fence guard",
											  ALLOCSET_SMALL_SIZES);
	MemoryContextReset(info->context);

	/* Before reading: what arrives while we read makes it invalid again. */
	info->relation = RelationGetRelid(relation);
	info->valid = true;
	info->mode = lf_guard_mode_read(RelationGetRelid(relation));

	saved = MemoryContextSwitchTo(info->context);
	find_token_column(info, relation, trigger->tgargs[LF_GUARD_ARG_TOKEN_COLUMN]);
	info->template_text = pstrdup(trigger->tgargs[LF_GUARD_ARG_RESOURCE]);
	info->tmpl = lf_template_parse(info->template_text, RelationGetDescr(relation));
	read_template(info, RelationGetDescr(relation));
	info->accept_lapsed = strcmp(trigger->tgargs[LF_GUARD_ARG_LAPSED], "accept") == 0;
	info->free_inserts = strcmp(trigger->tgargs[LF_GUARD_ARG_INSERTS], "free") == 0;
	info->late_insert = late_trigger(relation, trigger, TRIGGER_TYPE_INSERT);
	info->late_update = late_trigger(relation, trigger, TRIGGER_TYPE_UPDATE);
	info->late_delete = late_trigger(relation, trigger, TRIGGER_TYPE_DELETE);
	MemoryContextSwitchTo(saved);
	error_context_stack = callback.previous;
}

/* Stays invalid when building fails. */
static void
build_or_fail(LfGuardInfo *info, Relation relation, const Trigger *trigger)
{
	PG_TRY();
	{
		build(info, relation, trigger);
	}
	PG_CATCH();
	{
		info->valid = false;
		PG_RE_THROW();
	}
	PG_END_TRY();
}

static LfGuardInfo *
find_info(const Trigger *trigger)
{
	LfGuardInfo *info;
	bool		found;

	if (cache == NULL)
		create_cache();
	info = hash_search(cache, &trigger->tgoid, HASH_ENTER, &found);
	if (!found)
	{
		memset(info, 0, sizeof(*info));
		info->trigger = trigger->tgoid;
	}
	return info;
}

LfGuardInfo *
lf_guard_info(Relation relation, const Trigger *trigger, LfGuardInfo *known)
{
	LfGuardInfo *info = known != NULL ? known : find_info(trigger);

	if (!info->valid)
		build_or_fail(info, relation, trigger);
	return info;
}
