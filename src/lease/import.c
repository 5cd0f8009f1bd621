/*
 * import.c
 *		SQL: import_grant.
 *
 * Runs in backends.  Others (etcd, ZooKeeper, Consul, Hazelcast) hand out the
 * lease and a number that orders its grants; the database mints a token of its
 * own for each higher number, through the same drain.
 */
#include "postgres.h"

#include "access/xact.h"
#include "base/compat.h"
#include "base/errors.h"
#include "coordinator/profile.h"
#include "fence/present.h"
#include "fence/reject.h"
#include "funcapi.h"
#include "lease/acquire.h"
#include "base/arguments.h"
#include "lease/ask.h"

PG_FUNCTION_INFO_V1(lf_import_grant);

static const LfProfile *
external_profile(const LfResource *resource)
{
	const LfProfile *profile = lf_profile_of(resource);

	if (profile == NULL || profile->policy != LF_POLICY_EXTERNAL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("resource \"%.*s\" is not under a profile of policy \"external\"",
						resource->length, resource->name),
				 errhint("Add one with lease_fence.add_profile(name => ..., prefix => ..., policy => 'external').")));
	lf_profile_check_use(profile, resource);
	return profile;
}

static int64
read_number(FunctionCallInfo fcinfo)
{
	int64		number;

	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"number\" must not be NULL")));
	number = PG_GETARG_INT64(1);
	if (number < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"number\" must not be negative: %lld", (long long) number)));
	return number;
}

/* The worker found an older number, or the same one whose grant is over. */
static void
raise_refused(const LfRequest *request, int64 number)
{
	if (request->answer == LF_ANSWER_OLDER)
		ereport(ERROR,
				(errcode(LF_ERRCODE_SUPERSEDED),
				 errmsg("number %lld of resource \"%.*s\" is superseded",
						(long long) number, request->resource.length, request->resource.name),
				 errdetail("A grant with a higher number has been imported, as token %lld.",
						   (long long) request->token),
				 errhint("Stop: nothing can be written under this grant. Take the lease again and start from the reads.")));
	if (request->answer == LF_ANSWER_OTHER_ROLE)
		ereport(ERROR,
				(errcode(LF_ERRCODE_WRONG_ROLE),
				 errmsg("the grant with number %lld of resource \"%.*s\" was imported by another role",
						(long long) number, request->resource.length, request->resource.name),
				 errdetail("Its token is %lld.", (long long) request->token),
				 errhint("Present that token as a member of that role, or take the lease again, with a new number.")));
	if (request->answer == LF_ANSWER_OVER)
		ereport(ERROR,
				(errcode(LF_ERRCODE_OVER),
				 errmsg("the grant with number %lld of resource \"%.*s\" is over",
						(long long) number, request->resource.length, request->resource.name),
				 errdetail("Its token was %lld.", (long long) request->token),
				 errhint("Take the lease again, with a new number, and start from the reads.")));
}

/* resource, number, holder, ttl */
Datum
lf_import_grant(PG_FUNCTION_ARGS)
{
	const LfProfile *profile;
	LfRequest	request;
	LfHolder	holder;
	int64		ttl;

	memset(&request, 0, sizeof(request));
	lf_argument_resource(fcinfo, 0, "resource", &request.resource);
	request.number = read_number(fcinfo);
	if (!lf_argument_holder(fcinfo, 2, &holder))
		lf_acquire_random_holder(&holder);
	ttl = lf_argument_ttl(fcinfo, 3);
	lf_acquire_check_isolation();
	profile = external_profile(&request.resource);

	request.kind = LF_REQUEST_IMPORT;
	request.scope = LF_SCOPE_DETACHED;
	request.ttl = ttl > 0 ? ttl : profile->ttl;
	request.role = GetOuterUserId();
	request.holder = holder;
	request.count = 1;
	lf_ask_worker_to_follow(&request);
	raise_refused(&request, request.number);
	lf_present_add(request.token, false);
	PG_RETURN_DATUM(lf_acquire_row(fcinfo, &request.resource, request.token, NULL));
}
