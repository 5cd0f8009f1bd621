/*
 * protectable.c
 *		What can be protected: the table, its triggers, its token column and the
 *		template of its resources.
 *
 * Runs in the backend of the table's owner, within protect(), which holds a
 * lock on the table by then.  The partitions are locked here, since each has
 * triggers and keys of its own.
 *
 * Every refusal is raised before protect() changes anything: nothing is to be
 * taken back.  What the token column holds already is no matter of this file:
 * protect.c reads it together with the DDL.
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/catalog.h"
#include "fence/protect.h"
#include "fence/protectable.h"
#include "fence/template.h"

#include "access/relation.h"
#include "access/table.h"
#include "catalog/catalog.h"
#include "catalog/partition.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "optimizer/optimizer.h"
#include "rewrite/rewriteHandler.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

static void
refuse_table(Relation rel, int sqlstate, const char *what, const char *hint)
{
	ereport(ERROR,
			(errcode(sqlstate),
			 errmsg("\"%s\" cannot be protected: %s",
					RelationGetRelationName(rel), what),
			 errhint("%s", hint)));
}

static void
check_kind(Relation rel)
{
	Form_pg_class form = rel->rd_rel;

	if (form->relkind != RELKIND_RELATION &&
		form->relkind != RELKIND_PARTITIONED_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" cannot be protected", RelationGetRelationName(rel)),
				 errdetail_relkind_not_supported(form->relkind),
				 errhint("Protect the table that holds the rows.")));
	if (IsSystemRelation(rel))
		refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "it is a system catalog",
					 "Protect tables of your own.");
	if (form->relnamespace == lf_catalog_required()->schema)
		refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE,
					 "it belongs to the extension lease_fence",
					 "Protect tables of your own.");
	if (form->relpersistence == RELPERSISTENCE_TEMP)
		refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "it is a temporary table",
					 "Nobody else can write it.");
	if (OidIsValid(form->reloftype))
		refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "it is a typed table",
					 "A typed table cannot have a token column; make it an ordinary one with ALTER TABLE ... NOT OF.");
	if (form->relispartition)
		refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "it is a partition",
					 "Protect the partitioned table: its partitions are then guarded too.");
	if (has_superclass(RelationGetRelid(rel)) ||
		(form->relkind == RELKIND_RELATION &&
		 find_inheritance_children(RelationGetRelid(rel), NoLock) != NIL))
		refuse_table(rel, ERRCODE_FEATURE_NOT_SUPPORTED, "it takes part in table inheritance",
					 "Use declarative partitioning, or end the inheritance with ALTER TABLE ... NO INHERIT.");
}

/*
 * The guard must be the last to see a row.  PostgreSQL sorts triggers by name
 * in byte order.
 */
static void
check_triggers(Relation rel)
{
	Oid			guard = lf_catalog_required()->guard_function;
	TriggerDesc *triggers = rel->trigdesc;	/* good until a catalog is looked at */
	int			i;

	for (i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		Trigger    *trigger = &triggers->triggers[i];

		if (trigger->tgfoid == guard)
			continue;
		if (strcmp(trigger->tgname, LF_GUARD_TRIGGER) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("table \"%s\" has a trigger \"%s\" that is not a guard",
							RelationGetRelationName(rel), LF_GUARD_TRIGGER),
					 errhint("Rename it with ALTER TRIGGER ... RENAME TO.")));
		if (TRIGGER_FOR_ROW(trigger->tgtype) && TRIGGER_FOR_BEFORE(trigger->tgtype) &&
			trigger->tgenabled != TRIGGER_DISABLED &&
			strcmp(trigger->tgname, LF_GUARD_TRIGGER) > 0)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("trigger \"%s\" of table \"%s\" would run after the guard",
							trigger->tgname, RelationGetRelationName(rel)),
					 errdetail("It could change the row that the guard has let through."),
					 errhint("Rename it to something that sorts before \"%s\".",
							 LF_GUARD_TRIGGER)));
	}
}

/*
 * The token column changes with each write: it can be no key, and no part of
 * what decides where a row is.
 */
static void
check_token_column_use(Relation rel, AttrNumber column)
{
	Bitmapset  *wanted = bms_make_singleton(column - FirstLowInvalidHeapAttributeNumber);
	Bitmapset  *keys = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_KEY);
	bool		in_key = bms_overlap(keys, wanted);

	if (!in_key && rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		in_key = has_partition_attrs(rel, wanted, NULL);
	if (in_key)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("token column \"%s\" of table \"%s\" is part of a key",
						get_attname(RelationGetRelid(rel), column, false),
						RelationGetRelationName(rel)),
				 errdetail("Each write changes it."),
				 errhint("Give another name as token_column: a column that does not exist is added.")));
	bms_free(keys);
	bms_free(wanted);
}

/* Each partition has triggers and partition keys of its own. */
static void
check_partitions(Relation root, const char *token_column, LOCKMODE lockmode)
{
	List	   *members = find_all_inheritors(RelationGetRelid(root), lockmode, NULL);
	ListCell   *cell;

	foreach(cell, members)
	{
		Relation	rel = table_open(lfirst_oid(cell), NoLock);
		AttrNumber	column = get_attnum(RelationGetRelid(rel), token_column);

		if (rel->rd_rel->relkind == RELKIND_FOREIGN_TABLE)
			refuse_table(root, ERRCODE_FEATURE_NOT_SUPPORTED, "it has a foreign partition",
						 "Others write those rows without asking this database.");
		check_triggers(rel);
		if (column > 0)
			check_token_column_use(rel, column);
		table_close(rel, NoLock);
	}
	list_free(members);
}

/* Has the column the default 0?  As an expression it is a cast of one. */
static bool
default_is_zero(Relation rel, Form_pg_attribute attribute)
{
	Node	   *expression;

	if (!attribute->atthasdef)
		return false;
	expression = eval_const_expressions(NULL, build_column_default(rel, attribute->attnum));
	return IsA(expression, Const) && !((Const *) expression)->constisnull &&
		DatumGetInt64(((Const *) expression)->constvalue) == 0;
}

static void
check_token_column(Relation rel, LfProtection *protection)
{
	const char *name = protection->token_column;
	AttrNumber	column;
	Form_pg_attribute attribute;

	if (name[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"token_column\" must not be empty")));

	column = get_attnum(RelationGetRelid(rel), name);
	protection->column_exists = column != InvalidAttrNumber;
	if (!protection->column_exists)
		return;

	attribute = column > 0 ? TupleDescAttr(RelationGetDescr(rel), column - 1) : NULL;
	if (attribute == NULL || attribute->atttypid != INT8OID ||
		attribute->attgenerated != '\0' || attribute->attidentity != '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("column \"%s\" of table \"%s\" cannot hold tokens",
						name, RelationGetRelationName(rel)),
				 errdetail("A token column is an ordinary column of type bigint, neither generated nor an identity."),
				 errhint("Give another name as token_column: a column that does not exist is added.")));

	protection->column_nullable = !attribute->attnotnull;
	protection->column_default = default_is_zero(rel, attribute);
}

static void
check_template(Relation rel, const LfProtection *protection)
{
	LfTemplate *tmpl = lf_template_parse(protection->resource, RelationGetDescr(rel));
	AttrNumber *columns = palloc(RelationGetNumberOfAttributes(rel) * sizeof(AttrNumber));
	int			count = lf_template_columns(tmpl, columns, RelationGetNumberOfAttributes(rel));
	AttrNumber	token_column = get_attnum(RelationGetRelid(rel), protection->token_column);
	int			i;

	for (i = 0; i < count; i++)
	{
		if (columns[i] == token_column)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("resource template \"%s\" names the token column \"%s\"",
							protection->resource, protection->token_column),
					 errdetail("Each write changes it.")));
	}
}

static void
check_present_guard(Relation rel, LfProtection *protection)
{
	Trigger    *trigger = lf_guard_find_trigger(rel);

	if (trigger == NULL)
		return;
	if (trigger->tgnargs > LF_GUARD_ARG_TOKEN_COLUMN &&
		strcmp(trigger->tgargs[LF_GUARD_ARG_TOKEN_COLUMN],
			   protection->token_column) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("table \"%s\" is guarded with the token column \"%s\", not \"%s\"",
						RelationGetRelationName(rel),
						trigger->tgargs[LF_GUARD_ARG_TOKEN_COLUMN],
						protection->token_column),
				 errhint("To change it, call lease_fence.unprotect() first.")));
	if (strcmp(trigger->tgname, LF_GUARD_TRIGGER) != 0)
		protection->old_trigger = pstrdup(trigger->tgname);
}

void
lf_protectable_check(LfProtection *protection, LOCKMODE lockmode)
{
	Relation	rel = relation_open(protection->relation, NoLock);

	check_kind(rel);
	check_present_guard(rel, protection);
	check_token_column(rel, protection);
	check_template(rel, protection);
	check_partitions(rel, protection->token_column, lockmode);
	relation_close(rel, NoLock);
}
