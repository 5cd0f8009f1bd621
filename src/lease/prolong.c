/*
 * prolong.c
 *		Prolonging a grant, whoever its time is up to.
 *
 * Runs in backends.  A grant of this database is prolonged right here; one that
 * a lock service arbitrates by the worker, which asks the service: one that others
 * took is only looked at.
 */
#include "postgres.h"

#include "base/compat.h"
#include "lease/ask.h"
#include "lease/prolong.h"
#include "utils/timestamp.h"

/* Far beyond the time-outs of any server. */
#define ASK_LIMIT (INT64CONST(60) * USECS_PER_SEC)

static bool
prolong_at_service(const LfResource *resource, int64 token, int64 ttl)
{
	LfRequest	request;

	memset(&request, 0, sizeof(request));
	request.kind = LF_REQUEST_RENEW;
	request.count = 1;
	request.scope = LF_SCOPE_DETACHED;
	request.resource = *resource;
	request.renewed = token;
	request.ttl = ttl;
	if (!lf_ask_worker(&request, lf_clock_after(lf_clock_now(), ASK_LIMIT)))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("the lease of resource \"%.*s\" could not be renewed in time",
						resource->length, resource->name)));
	return request.answer == LF_ANSWER_GRANTED;
}

bool
lf_prolong(const LfResource *resource, int64 token, int64 ttl, LfGrantState *state)
{
	uint32		hash = lf_resource_hash(resource);
	bool		done;

	memset(state, 0, sizeof(*state));
	if (!lf_entry_look(resource, hash, state) || state->token != token ||
		!lf_grant_is_live(state, lf_clock_now()))
		return false;
	if (state->coordinator != LF_COORDINATOR_REDIS)
		return lf_entry_extend(resource, token, ttl, state);
	done = prolong_at_service(resource, token, ttl > 0 ? ttl : state->ttl);
	return lf_entry_look(resource, hash, state) && done && state->token == token;
}
