/*
 * views.c
 *		SQL: what the views leases and worker_status show.
 *
 * Runs in backends.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "audit/audit.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/database.h"
#include "base/stat.h"
#include "catalog/pg_authid.h"
#include "fence/entry.h"
#include "fence/epoch.h"
#include "fence/present.h"
#include "funcapi.h"
#include "base/arguments.h"
#include "lease/request.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(lf_live_leases);
PG_FUNCTION_INFO_V1(lf_worker_state);
PG_FUNCTION_INFO_V1(lf_counters);

#define LEASE_COLUMNS	12
#define WORKER_COLUMNS	9

static const char *
state_name(const LfGrantState *state, LfClock now)
{
	if (state->draining)
		return "draining";
	if (state->over == LF_OVER_NOT && now >= state->deadline)
		return lf_over_name(LF_OVER_LAPSED);
	return lf_over_name(state->over);
}

static Datum
bytes_datum(const char *bytes, int length)
{
	return PointerGetDatum(cstring_to_text_with_len(bytes, length));
}

static void
put_lease(ReturnSetInfo *result, const LfGrant *grant)
{
	const LfGrantState *state = &grant->state;
	LfClock		now = lf_clock_now();
	char	   *role = GetUserNameFromId(state->role, true);
	NameData	role_name;
	Datum		values[LEASE_COLUMNS];
	bool		nulls[LEASE_COLUMNS] = {false};

	namestrcpy(&role_name, role == NULL ? "" : role);
	values[0] = bytes_datum(grant->resource.name, grant->resource.length);
	values[1] = Int64GetDatum(state->token);
	values[2] = bytes_datum(grant->holder.bytes, grant->holder.length);
	values[3] = CStringGetTextDatum(lf_coordinator_name(state->coordinator));
	values[4] = CStringGetTextDatum(lf_scope_name(state->scope));
	values[5] = CStringGetTextDatum(state_name(state, now));
	values[6] = NameGetDatum(&role_name);
	values[7] = Int32GetDatum(grant->owner_pid);
	nulls[7] = grant->owner_pid == 0;
	values[8] = TimestampTzGetDatum(grant->granted_at);
	nulls[9] = !lf_grant_is_live(state, now);
	values[9] = nulls[9] ? (Datum) 0 : lf_interval_datum(state->deadline - now);
	values[10] = Int64GetDatum(grant->renewals);
	values[11] = Int32GetDatum(lf_request_count(&grant->resource));
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

Datum
lf_live_leases(PG_FUNCTION_ARGS)
{
	bool		all = has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
	LfGrant		grant;
	int			cursor = 0;

	InitMaterializedSRF(fcinfo, 0);
	while (lf_entry_next(MyDatabaseId, &cursor, &grant))
	{
		if (grant.state.token == 0 || grant.state.loading)
			continue;
		if (all || has_privs_of_role(GetUserId(), grant.state.role))
			put_lease((ReturnSetInfo *) fcinfo->resultinfo, &grant);
	}
	PG_RETURN_NULL();
}

static const char *
worker_name(const LfDatabaseView *view)
{
	if (view->held)
		return "held";
	switch (view->state)
	{
		case LF_WORKER_STOPPED:
			return "stopped";
		case LF_WORKER_WANTED:
			return "wanted";
		case LF_WORKER_STARTING:
			return "starting";
		case LF_WORKER_RUNNING:
			return "running";
	}
	return "?";					/* keep the compiler quiet */
}

/* The worker's start; without one, since when it is in this state. */
static TimestampTz
since(const LfDatabaseView *view)
{
	if (view->worker_pid != 0)
		return view->worker_since;
	return GetCurrentTimestamp() - (lf_clock_now() - view->state_since);
}

Datum
lf_worker_state(PG_FUNCTION_ARGS)
{
	int			database = lf_database_mine();
	LfDatabaseView view;
	LfEpochView epoch;
	TupleDesc	desc;
	Datum		values[WORKER_COLUMNS];
	bool		nulls[WORKER_COLUMNS] = {false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	memset(&view, 0, sizeof(view));
	memset(&epoch, 0, sizeof(epoch));
	if (database >= 0)
	{
		lf_database_look(database, &view);
		lf_epoch_look(database, lf_catalog_required()->extension, &epoch);
	}
	values[0] = CStringGetTextDatum(worker_name(&view));
	values[1] = Int32GetDatum(view.worker_pid);
	nulls[1] = view.worker_pid == 0;
	values[2] = TimestampTzGetDatum(since(&view));
	nulls[2] = view.worker_pid == 0 && view.state_since == 0;
	values[3] = Int32GetDatum(view.failures);
	values[4] = Int64GetDatum(epoch.id);
	nulls[4] = epoch.id == 0;
	values[5] = Int64GetDatum(epoch.floor);
	nulls[5] = epoch.id == 0;
	values[6] = BoolGetDatum(epoch.confirmed);
	values[7] = Int64GetDatum(lf_audit_written(database));
	values[8] = Int64GetDatum(lf_audit_logged(database));
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/* One column per counter, in the order of LfStat. */
Datum
lf_counters(PG_FUNCTION_ARGS)
{
	int			database = lf_database_mine();
	TupleDesc	desc;
	Datum		values[LF_STAT_COUNT];
	bool		nulls[LF_STAT_COUNT] = {false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	for (int i = 0; i < LF_STAT_COUNT; i++)
		values[i] = Int64GetDatum((int64) lf_stat_read(database, i));
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
