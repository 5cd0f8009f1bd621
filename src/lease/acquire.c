/*
 * acquire.c
 *		SQL: acquire, try_acquire, acquire_all.
 *
 * Runs in backends.  Re-entry is decided here, everything else by the worker.
 */
#include "postgres.h"

#include "access/xact.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/result.h"
#include "base/settings.h"
#include "coordinator/profile.h"
#include "executor/execdesc.h"
#include "nodes/execnodes.h"
#include "fence/present.h"
#include "funcapi.h"
#include "lease/acquire.h"
#include "base/arguments.h"
#include "lease/ask.h"
#include "lease/held.h"
#include "tcop/pquery.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "catalog/pg_type.h"
#include "utils/portal.h"
#include "utils/uuid.h"
#include "utils/fmgrprotos.h"

PG_FUNCTION_INFO_V1(lf_acquire);
PG_FUNCTION_INFO_V1(lf_try_acquire);
PG_FUNCTION_INFO_V1(lf_acquire_all);

#define TTL_DEFAULT (INT64CONST(30) * USECS_PER_SEC)

/* The arguments that the three have in common, from `ttl` on. */
typedef struct Terms
{
	int64		ttl;			/* 0: the default, with a watchdog */
	LfClock		until;
	bool		no_wait;
	LfScope		scope;
	LfHolder	holder;
} Terms;

/*
 * Is this call in the top level statement itself, and not in a function or DO
 * block that it runs?  Then the executor that calls us is the portal's own.
 */
static bool
called_at_top_level(FunctionCallInfo fcinfo)
{
	return ActivePortal != NULL && ActivePortal->queryDesc != NULL &&
		ActivePortal->queryDesc->estate != NULL &&
		fcinfo->flinfo->fn_mcxt == ActivePortal->queryDesc->estate->es_query_cxt;
}

void
lf_acquire_check_isolation(void)
{
	lf_ask_require_primary();
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("a lease cannot be taken in a transaction of isolation level REPEATABLE READ or SERIALIZABLE"),
				 errdetail("Its snapshot is older than the grant, so what it reads could be from before the lease."),
				 errhint("Take a lease of scope \"session\" or \"detached\" first, then begin the transaction and present its token.")));
}

static void
check_transaction(FunctionCallInfo fcinfo, LfScope scope)
{
	lf_acquire_check_isolation();
	if (scope == LF_SCOPE_TRANSACTION && !IsTransactionBlock() &&
		called_at_top_level(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_NO_ACTIVE_SQL_TRANSACTION),
				 errmsg("a lease of scope \"transaction\" can only be taken in a transaction block"),
				 errdetail("It would be over at the end of this very statement."),
				 errhint("BEGIN first, or take it with scope \"session\" or \"detached\".")));
}

void
lf_acquire_random_holder(LfHolder *holder)
{
	Datum		uuid = DirectFunctionCall1(gen_random_uuid, (Datum) 0);
	char	   *text = DatumGetCString(DirectFunctionCall1(uuid_out, uuid));

	holder->length = strlen(text);
	memcpy(holder->bytes, text, holder->length);
}

static LfScope
read_scope(FunctionCallInfo fcinfo, int number)
{
	char	   *scope;

	if (PG_ARGISNULL(number))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"scope\" must not be NULL")));
	scope = text_to_cstring(PG_GETARG_TEXT_PP(number));
	if (strcmp(scope, "transaction") == 0)
		return LF_SCOPE_TRANSACTION;
	if (strcmp(scope, "session") == 0)
		return LF_SCOPE_SESSION;
	if (strcmp(scope, "detached") == 0)
		return LF_SCOPE_DETACHED;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("argument \"scope\" is not allowed: \"%s\"", scope),
			 errhint("It is one of \"transaction\", \"session\" and \"detached\".")));
}

/* Arguments from number `first`: ttl, wait, scope, holder. */
static void
read_terms(FunctionCallInfo fcinfo, int first, Terms *terms)
{
	memset(terms, 0, sizeof(*terms));
	terms->ttl = lf_argument_ttl(fcinfo, first);
	terms->until = lf_argument_wait(fcinfo, first + 1, &terms->no_wait);
	terms->scope = read_scope(fcinfo, first + 2);
	if (!lf_argument_holder(fcinfo, first + 3, &terms->holder))
	{
		if (terms->scope == LF_SCOPE_DETACHED)
			lf_acquire_random_holder(&terms->holder);
		else
			lf_held_identity(&terms->holder);
	}
	check_transaction(fcinfo, terms->scope);
}

static void
describe_request(LfRequest *request, const Terms *terms)
{
	memset(request, 0, sizeof(*request));
	request->kind = LF_REQUEST_ACQUIRE;
	request->no_wait = terms->no_wait;
	request->scope = terms->scope;
	request->watchdog = terms->ttl == 0 && terms->scope != LF_SCOPE_DETACHED;
	request->role = GetOuterUserId();
	request->holder = terms->holder;
	request->count = 1;
}

/* Ours from now on, and presented. */
static void
take(const LfResource *resource, int64 token, const Terms *terms)
{
	if (terms->scope != LF_SCOPE_DETACHED)
		lf_held_add(resource, &terms->holder, token, terms->scope);
	lf_present_add(token, false);
}

/*
 * Who hands a resource out: its lock, if a lock service does, and for how long
 * if the caller does not say.
 */
static void
find_coordinator(const LfResource *resource, const Terms *terms, LfLock *lock, int64 *ttl)
{
	const LfProfile *profile = lf_profile_of(resource);

	lock->server = InvalidOid;
	*ttl = terms->ttl > 0 ? terms->ttl : TTL_DEFAULT;
	if (profile == NULL)
		return;
	lf_profile_check_use(profile, resource);
	if (profile->policy == LF_POLICY_SINGLE)
	{
		lf_profile_lock(profile, resource, lock);
		*ttl = terms->ttl > 0 ? terms->ttl : profile->ttl;
		return;
	}
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the lease of resource \"%.*s\" is handed out by others",
					resource->length, resource->name),
			 errdetail("It is under profile \"%s\" of policy \"external\".", profile->name),
			 errhint("Take it there, and import it with lease_fence.import_grant().")));
}

/* 0: not to be had; *request says who was in the way. */
static int64
acquire_one(const LfResource *resource, const Terms *terms, LfRequest *request)
{
	int64		token = 0;

	describe_request(request, terms);
	request->resource = *resource;
	find_coordinator(resource, terms, &request->lock, &request->ttl);
	if (terms->scope != LF_SCOPE_DETACHED)
		token = lf_held_reenter(resource, &terms->holder, terms->scope, terms->ttl);
	if (token != 0)
	{
		lf_present_add(token, false);
		return token;
	}
	if (!lf_ask_worker(request, terms->until))
		return 0;
	take(resource, request->token, terms);
	return request->token;
}

static void
raise_not_available(const LfRequest *request)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("lease of resource \"%.*s\" is not available",
					request->resource.length, request->resource.name),
			 errdetail("The wait ran out."),
			 errhint("%s", lf_ask_who_is_in_the_way(request))));
}

/* How long the present grant still runs; -1: it does not, or nobody knows. */
static int64
time_left(const LfResource *resource, const LfRequest *refused)
{
	LfGrantState state;
	LfClock		now = lf_clock_now();

	if (lf_entry_look(resource, lf_resource_hash(resource), &state) &&
		lf_grant_is_live(&state, now))
		return state.deadline - now;
	if (refused != NULL && refused->elsewhere)
		return refused->left;
	return refused != NULL ? 0 : -1;
}

Datum
lf_acquire_row(FunctionCallInfo fcinfo, const LfResource *resource, int64 token,
			   const LfRequest *refused)
{
	Datum		values[3];
	bool		nulls[3] = {true, true, true};
	int64		left = time_left(resource, token != 0 ? NULL : refused);

	if (token != 0)
	{
		values[0] = Int64GetDatum(token);
		values[1] = lf_interval_datum(Max(left, 0));
		nulls[0] = nulls[1] = false;
	}
	else if (left >= 0)
	{
		values[2] = lf_interval_datum(left);
		nulls[2] = false;
	}
	return lf_result_row(fcinfo, values, nulls);
}

Datum
lf_acquire(PG_FUNCTION_ARGS)
{
	LfResource	resource;
	LfRequest	request;
	Terms		terms;
	int64		token;

	lf_argument_resource(fcinfo, 0, "resource", &resource);
	read_terms(fcinfo, 1, &terms);
	token = acquire_one(&resource, &terms, &request);
	if (token == 0)
		raise_not_available(&request);
	PG_RETURN_DATUM(lf_acquire_row(fcinfo, &resource, token, NULL));
}

Datum
lf_try_acquire(PG_FUNCTION_ARGS)
{
	LfResource	resource;
	LfRequest	request;
	Terms		terms;
	int64		token;

	lf_argument_resource(fcinfo, 0, "resource", &resource);
	read_terms(fcinfo, 1, &terms);
	token = acquire_one(&resource, &terms, &request);
	PG_RETURN_DATUM(lf_acquire_row(fcinfo, &resource, token, &request));
}

/* ---- several at once ---- */

static int
compare_names(const void *a, const void *b)
{
	const LfResource *left = &((const LfRequestName *) a)->resource;
	const LfResource *right = &((const LfRequestName *) b)->resource;
	int			result = memcmp(left->name, right->name, Min(left->length, right->length));

	return result != 0 ? result : (int) left->length - (int) right->length;
}

/* Distinct names in byte order, so that everybody takes them in one order. */
static LfRequestName *
read_names(FunctionCallInfo fcinfo, int *count)
{
	Datum	   *elements;
	bool	   *nulls;
	int			given;
	LfRequestName *names;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"resources\" must not be NULL")));
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false, TYPALIGN_INT,
					  &elements, &nulls, &given);
	if (given == 0 || given > lf_max_resources_per_transaction)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"resources\" has %d elements", given),
				 errhint("It has 1 to %d (lease_fence.max_resources_per_transaction).",
						 lf_max_resources_per_transaction)));
	names = palloc0(given * sizeof(LfRequestName));
	for (int i = 0; i < given; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("argument \"resources\" must not contain NULL")));
		lf_argument_resource_text(DatumGetTextPP(elements[i]), "resources",
								  &names[i].resource);
	}
	qsort(names, given, sizeof(LfRequestName), compare_names);
	*count = 0;
	for (int i = 0; i < given; i++)
	{
		if (i == 0 || compare_names(&names[i], &names[*count - 1]) != 0)
			names[(*count)++] = names[i];
	}
	return names;
}

/* The ones that this session has already; the rest goes to the worker. */
static int
reenter_all(LfRequestName *names, int count, const Terms *terms, LfRequestName *missing)
{
	int			missing_count = 0;

	for (int i = 0; i < count; i++)
	{
		if (terms->scope != LF_SCOPE_DETACHED)
			names[i].token = lf_held_reenter(&names[i].resource, &terms->holder,
											 terms->scope, terms->ttl);
		if (names[i].token == 0)
			missing[missing_count++] = names[i];
	}
	return missing_count;
}

static void
give_back_all(LfRequestName *names, int count, LfScope scope)
{
	for (int i = 0; i < count; i++)
	{
		if (names[i].token != 0)
			lf_held_give_back(names[i].token, scope);
	}
}

/* Asks for all of them in one request; their tokens go to names. */
static bool
ask_for_all(LfRequestName *names, int count, const Terms *terms, LfRequest *request)
{
	dsm_segment *segment = NULL;
	bool		granted;

	describe_request(request, terms);
	request->count = count;
	request->resource = names[0].resource;
	request->ttl = names[0].ttl;
	memcpy(&request->lock, &names[0].lock, sizeof(LfLock));
	if (count > 1)
	{
		segment = dsm_create(count * sizeof(LfRequestName), 0);
		memcpy(dsm_segment_address(segment), names, count * sizeof(LfRequestName));
		request->names = dsm_segment_handle(segment);
	}
	granted = lf_ask_worker(request, terms->until);
	if (granted && count == 1)
		names[0].token = request->token;
	else if (granted)
		memcpy(names, dsm_segment_address(segment), count * sizeof(LfRequestName));
	if (segment != NULL)
		dsm_detach(segment);
	return granted;
}

static void
return_rows(FunctionCallInfo fcinfo, const LfRequestName *names, int count)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	for (int i = 0; i < count; i++)
	{
		Datum		values[2];
		bool		nulls[2] = {false, false};

		values[0] = PointerGetDatum(cstring_to_text_with_len(names[i].resource.name,
															 names[i].resource.length));
		values[1] = Int64GetDatum(names[i].token);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
}

/*
 * Two lists, merged by position: what was missing comes back with tokens.
 */
static void
merge_tokens(LfRequestName *names, int count, const LfRequestName *missing)
{
	int			next = 0;

	for (int i = 0; i < count; i++)
	{
		if (names[i].token == 0)
			names[i].token = missing[next++].token;
	}
}

/* So that the message is about the one that is in the way, not the first. */
static void
find_unavailable(LfRequest *request, const LfRequestName *names, int count)
{
	for (int i = 0; i < count; i++)
	{
		const LfResource *resource = &names[i].resource;
		LfGrantState state;

		if (!lf_entry_look(resource, lf_resource_hash(resource), &state))
			continue;
		if (request->blocked_token != 0 ? state.token == request->blocked_token :
			lf_grant_is_live(&state, lf_clock_now()))
		{
			request->resource = *resource;
			return;
		}
	}
}

/*
 * All or none: if one cannot be prolonged, or the missing ones are not to be had, it
 * keeps nothing of the others.  How many were missing.
 */
static int
reenter_or_ask(LfRequestName *names, int count, LfRequestName *missing, const Terms *terms)
{
	volatile int missing_count = 0;
	LfRequest	request;

	PG_TRY();
	{
		missing_count = reenter_all(names, count, terms, missing);
		if (missing_count > 0 && !ask_for_all(missing, missing_count, terms, &request))
		{
			find_unavailable(&request, missing, missing_count);
			raise_not_available(&request);
		}
	}
	PG_CATCH();
	{
		give_back_all(names, count, terms->scope);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return missing_count;
}

Datum
lf_acquire_all(PG_FUNCTION_ARGS)
{
	int			count;
	LfRequestName *names = read_names(fcinfo, &count);
	LfRequestName *missing = palloc0(count * sizeof(LfRequestName));
	int			missing_count;
	Terms		terms;

	read_terms(fcinfo, 1, &terms);
	for (int i = 0; i < count; i++)
		find_coordinator(&names[i].resource, &terms, &names[i].lock, &names[i].ttl);
	InitMaterializedSRF(fcinfo, 0);
	missing_count = reenter_or_ask(names, count, missing, &terms);
	for (int i = 0; i < missing_count; i++)
		take(&missing[i].resource, missing[i].token, &terms);
	merge_tokens(names, count, missing);
	for (int i = 0; i < count; i++)
		lf_present_add(names[i].token, false);
	return_rows(fcinfo, names, count);
	PG_RETURN_NULL();
}
