/*
 * manage.c
 *		SQL: present, renew, remaining, release, revoke, begin_epoch.
 *
 * Runs in backends.  A token's resource never changes, so it is found once;
 * what is true of the grant now, the entry in shared memory says.
 */
#include "postgres.h"

#include "access/xact.h"
#include "base/compat.h"
#include "base/database.h"
#include "base/errors.h"
#include "base/point.h"
#include "base/settings.h"
#include "catalog/pg_type.h"
#include "fence/check.h"
#include "fence/epoch.h"
#include "fence/grants.h"
#include "fence/present.h"
#include "fence/reject.h"
#include "base/arguments.h"
#include "lease/ask.h"
#include "lease/held.h"
#include "lease/manage.h"
#include "lease/prolong.h"
#include "utils/array.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(lf_present);
PG_FUNCTION_INFO_V1(lf_renew);
PG_FUNCTION_INFO_V1(lf_remaining);
PG_FUNCTION_INFO_V1(lf_release);
PG_FUNCTION_INFO_V1(lf_revoke);
PG_FUNCTION_INFO_V1(lf_begin_epoch);

static void
raise_for(const char *call, int64 token, const LfResource *resource,
		  LfReason reason, const LfGrantState *current)
{
	LfWrite		write = {NULL, call, NULL, NULL};
	LfVerdict	verdict;

	memset(&verdict, 0, sizeof(verdict));
	verdict.kind = LF_VERDICT_REJECTED;
	verdict.reason = reason;
	verdict.token = token;
	if (current != NULL)
		verdict.current = *current;
	lf_reject_raise(&write, resource, NULL, &verdict);
}

static void
require_epoch(void)
{
	int64		floor;

	if (!lf_epoch_confirmed(&floor))
		ereport(ERROR,
				(errcode(LF_ERRCODE_WORKER),
				 errmsg("the epoch of this database is not confirmed yet"),
				 errdetail("Its history is not the one that the last epoch began in, and the worker has not begun a new one."),
				 errhint("Try again in a moment. The view lease_fence.worker_status and the server log say what the worker does.")));
}

bool
lf_manage_find_grant(const char *call, int64 token, LfResource *resource, LfGrantState *state)
{
	LfGrant		grant;
	Oid			role;
	bool		there;

	lf_ask_require_primary();
	if (!lf_held_resource(token, resource, &role))
	{
		require_epoch();
		if (!lf_epoch_has_minted(token) || !lf_grants_by_token(token, &grant))
			raise_for(call, token, NULL, LF_REASON_UNKNOWN, NULL);
		*resource = grant.resource;
		role = grant.state.role;
	}
	if (!lf_present_role_allowed(role))
		raise_for(call, token, NULL, LF_REASON_WRONG_ROLE, NULL);
	memset(state, 0, sizeof(*state));
	there = lf_entry_look(resource, lf_resource_hash(resource), state) && !state->loading;
	if (!there && lf_check_load(resource, token))
		there = lf_entry_look(resource, lf_resource_hash(resource), state);
	if (!there)
		memset(state, 0, sizeof(*state));
	return there && state->token == token;
}

static LfReason
reason_of(int64 token, const LfGrantState *state)
{
	if (state->token != token || state->over == LF_OVER_TAKEN)
		return LF_REASON_SUPERSEDED;
	if (state->over == LF_OVER_RELEASED)
		return LF_REASON_RELEASED;
	return state->over == LF_OVER_REVOKED ? LF_REASON_REVOKED : LF_REASON_LAPSED;
}

/*
 * All are named before any is looked at, so that the first error leaves nothing
 * half presented: it takes the (sub)transaction with it.
 */
Datum
lf_present(PG_FUNCTION_ARGS)
{
	Datum	   *elements;
	bool	   *nulls;
	int			count;

	lf_ask_require_primary();
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), INT8OID, sizeof(int64), true,
					  TYPALIGN_DOUBLE, &elements, &nulls, &count);
	if (count > lf_max_resources_per_transaction)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("argument \"tokens\" has %d elements", count),
				 errhint("It has at most %d (lease_fence.max_resources_per_transaction).",
						 lf_max_resources_per_transaction)));
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("argument \"tokens\" must not contain NULL")));
		if (DatumGetInt64(elements[i]) <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("argument \"tokens\" must contain positive numbers: %lld",
							(long long) DatumGetInt64(elements[i]))));
	}
	for (int i = 0; i < count; i++)
		lf_present_add(DatumGetInt64(elements[i]), true);
	for (int i = 0; i < count; i++)
	{
		LfWrite		write = {NULL, "present()", NULL, NULL};
		LfResource	resource;
		LfVerdict	verdict;

		CHECK_FOR_INTERRUPTS();
		require_epoch();
		lf_check_token(DatumGetInt64(elements[i]), &verdict, &resource);
		if (verdict.kind != LF_VERDICT_ACCEPTED)
			lf_reject_raise(&write, resource.length > 0 ? &resource : NULL, NULL, &verdict);
	}
	PG_RETURN_VOID();
}

Datum
lf_renew(PG_FUNCTION_ARGS)
{
	int64		token = lf_argument_token(fcinfo, 0, "token");
	int64		ttl = lf_argument_ttl(fcinfo, 1);
	LfResource	resource;
	LfGrantState state;

	LF_POINT("renew-begun");
	if (!lf_manage_find_grant("renew()", token, &resource, &state) ||
		!lf_prolong(&resource, token, ttl, &state))
		raise_for("renew()", token, &resource, reason_of(token, &state), &state);
	LF_POINT("renew-done");
	PG_RETURN_DATUM(lf_interval_datum(state.deadline - lf_clock_now()));
}

Datum
lf_remaining(PG_FUNCTION_ARGS)
{
	int64		token = lf_argument_token(fcinfo, 0, "token");
	LfResource	resource;
	LfGrantState state;
	LfClock		now = lf_clock_now();

	if (!lf_manage_find_grant("remaining()", token, &resource, &state) ||
		!lf_grant_is_live(&state, now))
		PG_RETURN_NULL();
	PG_RETURN_DATUM(lf_interval_datum(state.deadline - now));
}

Datum
lf_release(PG_FUNCTION_ARGS)
{
	int64		token = lf_argument_token(fcinfo, 0, "token");
	LfResource	resource;
	LfGrantState state;
	bool		last = true;
	bool		current = lf_manage_find_grant("release()", token, &resource, &state);
	bool		live = current && lf_grant_is_live(&state, lf_clock_now());

	if (lf_held_release(token, &last) && !last)
		PG_RETURN_BOOL(live);
	LF_POINT("release-begun");
	if (!current || !lf_entry_end(&resource, token, LF_OVER_RELEASED))
		PG_RETURN_BOOL(false);
	LF_POINT("release-ended");
	lf_database_want(lf_database_mine());
	PG_RETURN_BOOL(true);
}

static void
copy_reason(FunctionCallInfo fcinfo, int number, LfRequest *request)
{
	char	   *reason = lf_argument_text(fcinfo, number);

	if (reason == NULL)
		return;
	if (strlen(reason) >= sizeof(request->reason))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"reason\" is too long: %d bytes", (int) strlen(reason)),
				 errhint("It has at most %d.", (int) sizeof(request->reason) - 1)));
	strlcpy(request->reason, reason, sizeof(request->reason));
}

Datum
lf_revoke(PG_FUNCTION_ARGS)
{
	LfRequest	request;

	memset(&request, 0, sizeof(request));
	request.kind = LF_REQUEST_REVOKE;
	request.count = 1;
	lf_argument_resource(fcinfo, 0, "resource", &request.resource);
	copy_reason(fcinfo, 1, &request);
	if (!lf_ask_worker(&request, lf_clock_after(lf_clock_now(), LF_ASK_DRAIN_LIMIT)))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("writers under the lease of resource \"%.*s\" have not ended in time",
						request.resource.length, request.resource.name),
				 errdetail("The lease is revoked all the same: nothing new can be written under it."),
				 errhint("%s", lf_ask_who_is_in_the_way(&request))));
	PG_RETURN_BOOL(request.answer == LF_ANSWER_GRANTED);
}

Datum
lf_begin_epoch(PG_FUNCTION_ARGS)
{
	LfRequest	request;

	memset(&request, 0, sizeof(request));
	request.kind = LF_REQUEST_EPOCH;
	request.count = 1;
	copy_reason(fcinfo, 0, &request);
	if (request.reason[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"reason\" must say why a new epoch begins")));
	if (!lf_ask_worker(&request, lf_clock_after(lf_clock_now(), LF_ASK_DRAIN_LIMIT)))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("no new epoch could begin in time"),
				 errhint("A grant that waits for its synchronous standby is in the way.")));
	PG_RETURN_INT64(request.token);
}
