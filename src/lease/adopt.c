/*
 * adopt.c
 *		SQL: adopt.
 *
 * Runs in backends.  An application has taken a lock in its own way; the worker
 * verifies that it has it, and mints.  Holder bytes do not identify a grant (a
 * thread's id, one name for a whole process), so an adoption is a new grant,
 * unless the caller says which one it has already.
 */
#include "postgres.h"

#include "access/xact.h"
#include "base/arguments.h"
#include "base/compat.h"
#include "base/errors.h"
#include "coordinator/profile.h"
#include "fence/present.h"
#include "lease/acquire.h"
#include "lease/ask.h"
#include "lease/manage.h"
#include "lease/prolong.h"

PG_FUNCTION_INFO_V1(lf_adopt);

static const LfProfile *
service_profile(const LfResource *resource)
{
	const LfProfile *profile = lf_profile_of(resource);

	if (profile == NULL || profile->policy == LF_POLICY_EXTERNAL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("resource \"%.*s\" is not under a profile of a lock service",
						resource->length, resource->name),
				 profile == NULL ?
				 errhint("Add one with lease_fence.add_profile(name => ..., prefix => ..., servers => ...).") :
				 errhint("Profile \"%s\" has policy \"external\": use lease_fence.import_grant().", profile->name)));
	lf_profile_check_use(profile, resource);
	return profile;
}

static void
read_holder(FunctionCallInfo fcinfo, LfHolder *holder)
{
	if (!lf_argument_holder(fcinfo, 1, holder))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"holder\" must not be NULL")));
}

/* ---- a grant that the caller knows ---- */

static void
raise_not_the_same(const LfResource *resource, int64 token, const LfGrantState *state)
{
	ereport(ERROR,
			(errcode(LF_ERRCODE_SUPERSEDED),
			 errmsg("token %lld is not this holder's grant of resource \"%.*s\" any more",
					(long long) token, resource->length, resource->name),
			 state->token == token ?
			 errdetail("Its grant is over, or another holder's.") :
			 errdetail("A newer grant has token %lld.", (long long) state->token),
			 errhint("Nothing can be written under it. Adopt without known_token, and start from the reads.")));
}

static void
extend_known(const LfResource *resource, const LfHolder *holder, int64 token)
{
	LfResource	named;
	LfGrantState state;
	LfGrant		grant;
	bool		current = lf_manage_find_grant("adopt()", token, &named, &state);

	if (!lf_resource_equal(&named, resource))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"known_token\" is not a token of resource \"%.*s\": %lld",
						resource->length, resource->name, (long long) token)));
	if (!current || !state.adopted || !lf_entry_read(resource, &grant) ||
		!lf_holder_equal(&grant.holder, holder) ||
		!lf_prolong(resource, token, 0, &state))
		raise_not_the_same(resource, token, &state);
}

/* ---- a new grant ---- */

static int64
adopt_anew(const LfResource *resource, const LfHolder *holder, const LfProfile *profile)
{
	LfRequest	request;

	memset(&request, 0, sizeof(request));
	request.kind = LF_REQUEST_ADOPT;
	request.scope = LF_SCOPE_DETACHED;
	request.role = GetOuterUserId();
	request.resource = *resource;
	request.holder = *holder;
	request.count = 1;
	lf_profile_lock(profile, resource, &request.lock);
	lf_ask_worker_to_follow(&request);
	if (request.answer == LF_ANSWER_NOT_HOLDER)
		ereport(ERROR,
				(errcode(LF_ERRCODE_NOT_HOLDER),
				 errmsg("the lock of resource \"%.*s\" is not this holder's to adopt",
						resource->length, resource->name),
				 errdetail("%c%s.", pg_toupper((unsigned char) request.message[0]),
						   request.message + 1),
				 errhint("Take the lock again, then adopt it and start from the reads.")));
	return request.token;
}

/* resource, holder (text or bytea), known_token */
Datum
lf_adopt(PG_FUNCTION_ARGS)
{
	const LfProfile *profile;
	LfResource	resource;
	LfHolder	holder;
	int64		token;

	lf_argument_resource(fcinfo, 0, "resource", &resource);
	read_holder(fcinfo, &holder);
	lf_acquire_check_isolation();
	profile = service_profile(&resource);
	if (PG_ARGISNULL(2))
		token = adopt_anew(&resource, &holder, profile);
	else
	{
		token = lf_argument_token(fcinfo, 2, "known_token");
		extend_known(&resource, &holder, token);
	}
	lf_present_add(token, false);
	PG_RETURN_DATUM(lf_acquire_row(fcinfo, &resource, token, NULL));
}
