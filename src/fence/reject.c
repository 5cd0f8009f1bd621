/*
 * reject.c
 *		Refusing a write: the audit first, then the error.
 *
 * Runs in backends.  The record is durable before the client hears of the
 * rejection, so its rollback cannot undo it.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "base/compat.h"
#include "base/settings.h"
#include "catalog/pg_authid.h"
#include "fence/grants.h"
#include "fence/present.h"
#include "fence/reject.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/rls.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#define PRESENTED_SHOWN 5

/* One column as JSON: numbers bare, all else quoted. */
static void
append_json_column(StringInfo json, Form_pg_attribute attribute, Datum value)
{
	Oid			output;
	bool		is_varlena;
	char		category;
	bool		is_preferred;
	char	   *text;

	getTypeOutputInfo(attribute->atttypid, &output, &is_varlena);
	get_type_category_preferred(attribute->atttypid, &category, &is_preferred);
	text = OidOutputFunctionCall(output, value);
	escape_json(json, NameStr(attribute->attname));
	appendStringInfoString(json, ": ");
	if (category == TYPCATEGORY_NUMERIC && strspn(text, "-0123456789.") == strlen(text))
		appendStringInfoString(json, text);
	else
		escape_json(json, text);
}

/* The row's primary key, or NULL if it has none. */
static char *
key_of(Relation relation, HeapTuple row)
{
	TupleDesc	desc = RelationGetDescr(relation);
	Bitmapset  *key = RelationGetIndexAttrBitmap(relation, INDEX_ATTR_BITMAP_PRIMARY_KEY);
	StringInfoData json;
	int			member = -1;

	if (row == NULL || key == NULL)
		return NULL;
	initStringInfo(&json);
	appendStringInfoChar(&json, '{');
	while ((member = bms_next_member(key, member)) >= 0)
	{
		int			number = member + FirstLowInvalidHeapAttributeNumber;
		bool		isnull;
		Datum		value = heap_getattr(row, number, desc, &isnull);

		if (isnull)
			continue;
		if (json.len > 1)
			appendStringInfoString(&json, ", ");
		append_json_column(&json, TupleDescAttr(desc, number - 1), value);
	}
	appendStringInfoChar(&json, '}');
	bms_free(key);
	return json.data;
}

static char *
row_as_json(Relation relation, HeapTuple row)
{
	Datum		composite = heap_copy_tuple_as_datum(row, RelationGetDescr(relation));

	return TextDatumGetCString(DirectFunctionCall1(row_to_json, composite));
}

/*
 * The message reaches the client, and any function on the way that catches it:
 * with a SECURITY DEFINER function, or a cascade, these are two roles.
 */
static bool
may_read_audit(void)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_MONITOR) &&
		has_privs_of_role(GetOuterUserId(), ROLE_PG_MONITOR);
}

static char *
seconds(int64 microseconds)
{
	return psprintf("%.3f s", Max(microseconds, 0) / 1000000.0);
}

/* Holder bytes for a message: as they are when they are plain ASCII. */
static char *
holder_text(const LfHolder *holder)
{
	for (int i = 0; i < holder->length; i++)
	{
		if (holder->bytes[i] < 0x20 || holder->bytes[i] > 0x7e)
			return TextDatumGetCString(DirectFunctionCall1(byteaout,
														   PointerGetDatum(cstring_to_text_with_len(holder->bytes,
																									holder->length))));
	}
	return pnstrdup(holder->bytes, holder->length);
}

static int64
over_for(const LfVerdict *verdict)
{
	const LfGrantState *state = &verdict->current;
	LfClock		now = lf_clock_now();

	if (state->token == 0 || state->token != verdict->token)
		return -1;
	if (state->over != LF_OVER_NOT)
		return now - state->over_since;
	return now >= state->deadline ? now - state->deadline : -1;
}

static void
fill_rejection(LfRejection *rejection, const LfWrite *write,
			   const LfResource *resource, const LfVerdict *verdict,
			   LfGrant *current, LfGrant *presented)
{
	memset(rejection, 0, sizeof(*rejection));
	rejection->action = LF_ACTION_REJECTED;
	rejection->reason = verdict->reason;
	rejection->operation = write->operation;
	rejection->resource = resource;
	rejection->presented_token = verdict->token;
	rejection->current_token = verdict->current.token;
	rejection->over_for = over_for(verdict);
	if (write->relation != NULL)
	{
		rejection->relation = RelationGetRelid(write->relation);
		rejection->key = key_of(write->relation, write->key_row);
		if (lf_audit_row == LF_AUDIT_ROW_FULL && write->new_row != NULL)
			rejection->new_row = row_as_json(write->relation, write->new_row);
	}
	if (resource != NULL && verdict->current.token != 0 &&
		lf_entry_read(resource, current))
		rejection->current_holder = &current->holder;
	if (verdict->presented.length > 0)
		rejection->presented_holder = &verdict->presented;
	else if (rejection->current_holder != NULL && current->state.token == verdict->token)
		rejection->presented_holder = rejection->current_holder;
	else if (verdict->token != 0 && lf_grants_by_token(verdict->token, presented))
		rejection->presented_holder = &presented->holder;
}

/*
 * May the caller see what the row says?  The guard saw it whoever wrote it; the
 * error must not tell more than a SELECT would.
 */
static bool
may_see_rows(Relation relation)
{
	return pg_class_aclcheck(RelationGetRelid(relation), GetUserId(), ACL_SELECT) == ACLCHECK_OK &&
		check_enable_rls(RelationGetRelid(relation), InvalidOid, true) != RLS_ENABLED;
}

/* A sentence; empty when neither row nor resource is known. */
static char *
describe_row(const LfWrite *write, const char *key, const LfResource *resource)
{
	StringInfoData text;

	initStringInfo(&text);
	if (write->relation != NULL)
	{
		appendStringInfo(&text, "%s of table \"%s.%s\"", write->operation,
						 get_namespace_name(RelationGetNamespace(write->relation)),
						 RelationGetRelationName(write->relation));
		if (key != NULL)
			appendStringInfo(&text, ", row %s", key);
		appendStringInfoString(&text, resource != NULL ? ", resource " : "");
	}
	else if (resource != NULL)
		appendStringInfoString(&text, "Resource ");
	if (resource != NULL)
		appendStringInfo(&text, "\"%.*s\"", resource->length, resource->name);
	if (text.len > 0)
		appendStringInfoChar(&text, '.');
	return text.data;
}

static char *
list_presented(void)
{
	int64	   *tokens;
	int			count = lf_present_list(&tokens);
	StringInfoData text;

	if (count == 0)
		return "Nothing is presented.";
	initStringInfo(&text);
	appendStringInfoString(&text, "Presented:");
	for (int i = 0; i < Min(count, PRESENTED_SHOWN); i++)
	{
		LfGrant		grant;

		appendStringInfo(&text, "%s %lld", i > 0 ? "," : "", (long long) tokens[i]);
		if (lf_grants_by_token(tokens[i], &grant) &&
			lf_present_role_allowed(grant.state.role))
			appendStringInfo(&text, " for \"%.*s\"", grant.resource.length, grant.resource.name);
	}
	appendStringInfoString(&text, count > PRESENTED_SHOWN ? " and more." : ".");
	return text.data;
}

static void
raise_superseded(const LfVerdict *verdict, const char *what, const char *where,
				 const LfGrant *current)
{
	StringInfoData detail;

	initStringInfo(&detail);
	appendStringInfoString(&detail, where);
	if (verdict->current.token > verdict->token &&
		verdict->current.token != current->state.token)
		appendStringInfoString(&detail, " The row was written under that token, which is not of the lease's present grant.");
	else if (verdict->current.token > verdict->token)
		appendStringInfo(&detail, " The newer grant was made %s ago%s%s.",
						 seconds(GetCurrentTimestamp() - current->granted_at),
						 may_read_audit() ? ", to holder " : "",
						 may_read_audit() ? holder_text(&current->holder) : "");
	else
		appendStringInfoString(&detail, " A newer grant is being made, or has written there already.");
	ereport(ERROR,
			(errcode(LF_ERRCODE_SUPERSEDED),
			 verdict->current.token > verdict->token ?
			 errmsg("%s refused: token %lld is superseded by %lld",
					what, (long long) verdict->token, (long long) verdict->current.token) :
			 errmsg("%s refused: token %lld is superseded",
					what, (long long) verdict->token),
			 errdetail_internal("%s", detail.data),
			 errhint("Stop: nothing was written, and nothing ever will be under this token. Acquire the lease again and start from the reads.")));
}

static void
raise_over(const LfVerdict *verdict, const char *what, const char *where)
{
	ereport(ERROR,
			(errcode(LF_ERRCODE_OVER),
			 errmsg("%s refused: the lease of token %lld is over",
					what, (long long) verdict->token),
			 errdetail("%s It was %s %s ago.", where,
					   verdict->reason == LF_REASON_LAPSED ? "over when its time ran out," :
					   lf_reason_name(verdict->reason),
					   seconds(over_for(verdict))),
			 errhint("Acquire the lease again and start from the reads.")));
}

static void
raise_truncate(const char *where)
{
	ereport(ERROR,
			(errcode(LF_ERRCODE_MISSING),
			 errmsg("write refused: a table that is guarded row by row cannot be truncated"),
			 errdetail("%s It would take the leases of all its rows.", where),
			 errhint("DELETE the rows under their leases, or guard the table as a whole: with a template without columns.")));
}

static void
raise_missing(const LfResource *resource, const char *column,
			  const LfVerdict *verdict, const char *where)
{
	if (verdict->reason == LF_REASON_NO_RESOURCE)
		ereport(ERROR,
				(errcode(LF_ERRCODE_MISSING),
				 errmsg("write refused: the row names no resource"),
				 column != NULL ?
				 errdetail("%s Column \"%s\" of the guard's template is NULL.", where, column) :
				 errdetail("%s The resource's name would be empty, or longer than %d bytes.",
						   where, LF_RESOURCE_MAX),
				 errhint("Only rows whose resource has a name can be written.")));
	ereport(ERROR,
			(errcode(LF_ERRCODE_MISSING),
			 resource == NULL ?
			 errmsg("write refused: no lease of the row's resource is presented") :
			 errmsg("write refused: no lease of resource \"%.*s\" is presented",
					resource->length, resource->name),
			 errdetail("%s %s", where, list_presented()),
			 lf_present_setting_is_stale() ?
			 errhint("lease_fence.token was set in an earlier transaction, it counts only in the one that sets it. Use SET LOCAL in each.") :
			 errhint("Acquire the lease at the start of the transaction, present its token, or set lease_fence.token.")));
}

void
lf_reject_raise(const LfWrite *write, const LfResource *resource,
				const char *column, const LfVerdict *verdict)
{
	bool		visible = write->relation == NULL || may_see_rows(write->relation);
	const LfResource *shown = visible ? resource : NULL;
	char	   *key = write->relation == NULL || !visible ? NULL :
		key_of(write->relation, write->key_row);
	char	   *where = describe_row(write, key, shown);
	const char *what = write->relation != NULL ? "stale write" : write->operation;
	LfGrant		current;

	memset(&current, 0, sizeof(current));
	switch (verdict->reason)
	{
		case LF_REASON_SUPERSEDED:
			if (resource != NULL)
				lf_entry_read(resource, &current);
			raise_superseded(verdict, what, where, &current);
			break;
		case LF_REASON_LAPSED:
		case LF_REASON_RELEASED:
		case LF_REASON_REVOKED:
			raise_over(verdict, what, where);
			break;
		case LF_REASON_UNKNOWN:
			ereport(ERROR,
					(errcode(LF_ERRCODE_UNKNOWN),
					 errmsg("token %lld is unknown", (long long) verdict->token),
					 errdetail("%s%sThe token was never minted in this database, or before its present epoch.",
							   where, where[0] == '\0' ? "" : " "),
					 errhint("Acquire the lease and use the token that it answers.")));
			break;
		case LF_REASON_WRONG_ROLE:
			ereport(ERROR,
					(errcode(LF_ERRCODE_WRONG_ROLE),
					 errmsg("token %lld was minted for another role", (long long) verdict->token),
					 errdetail("%s%sRole \"%s\" is not a member of that role.",
							   where, where[0] == '\0' ? "" : " ",
							   GetUserNameFromId(GetOuterUserId(), true)),
					 errhint("Acquire the lease as the role that writes.")));
			break;
		case LF_REASON_SNAPSHOT:
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("write refused: the snapshot is older than the grant of token %lld",
							(long long) verdict->token),
					 errdetail("%s What this statement reads may be from before the lease was taken.", where),
					 errhint("Retry the transaction: take the lease first, then read.")));
			break;
		case LF_REASON_TRUNCATE:
			raise_truncate(where);
			break;
		case LF_REASON_MISSING:
		case LF_REASON_NO_RESOURCE:
		case LF_REASON_BYPASS:
			raise_missing(shown, column, verdict, where);
			break;
	}
	pg_unreachable();
}

static void
raise_unconfirmed(void)
{
	ereport(ERROR,
			(errcode(LF_ERRCODE_WORKER),
			 errmsg("guarded tables cannot be written yet: the epoch of this database is not confirmed"),
			 errdetail("Its history is not the one that the last epoch began in, and the worker has not begun a new one."),
			 errhint("Try again in a moment. The view lease_fence.worker_status and the server log say what the worker does.")));
}

void
lf_reject_write(const LfWrite *write, const LfResource *resource,
				const char *column, const LfVerdict *verdict)
{
	LfRejection rejection;
	LfGrant		current;
	LfGrant		presented;

	if (verdict->kind == LF_VERDICT_UNCONFIRMED)
		raise_unconfirmed();
	fill_rejection(&rejection, write, resource, verdict, &current, &presented);
	lf_audit_reject(&rejection);
	lf_reject_raise(write, resource, column, verdict);
}

void
lf_reject_observe(const LfWrite *write, const LfResource *resource,
				  const LfVerdict *verdict)
{
	LfRejection rejection;
	LfGrant		current;
	LfGrant		presented;

	fill_rejection(&rejection, write, resource, verdict, &current, &presented);
	rejection.action = LF_ACTION_OBSERVED;
	lf_audit_observe(&rejection);
}
