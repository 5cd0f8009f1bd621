/*
 * held.c
 *		The leases of scope transaction and session that this backend holds.
 *
 * Runs in backends.
 *
 * What must end well: COMMIT, ROLLBACK, PREPARE (refused while a lease of scope
 * transaction is held), DISCARD ALL, the session's end by any means, each also
 * in the middle of a wait.  A transaction's leases end after its locks are gone,
 * so that whoever waits for them does not meet these locks.
 */
#include "postgres.h"

#include "access/xact.h"
#include "base/compat.h"
#include "base/database.h"
#include "base/shmem.h"
#include "fence/present.h"
#include "lease/held.h"
#include "lease/prolong.h"
#include "storage/ipc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

typedef struct Held
{
	LfResource	resource;
	LfHolder	holder;
	Oid			role;
	int64		token;
	LfScope		scope;
	int			transaction_count;	/* ends with the transaction */
	int			session_count;
} Held;

static Held *held = NULL;
static int	held_count = 0;
static int	held_room = 0;
static bool exit_callback_registered = false;

void
lf_held_identity(LfHolder *holder)
{
	char		text[64];

	snprintf(text, sizeof(text), "pg:%u:%d:%llx", MyDatabaseId, MyProcPid,
			 (unsigned long long) MyStartTimestamp);
	holder->length = strlen(text);
	memcpy(holder->bytes, text, holder->length);
}

static Held *
find_resource(const LfResource *resource)
{
	for (int i = 0; i < held_count; i++)
	{
		if (lf_resource_equal(&held[i].resource, resource))
			return &held[i];
	}
	return NULL;
}

static Held *
find_token(int64 token)
{
	for (int i = 0; i < held_count; i++)
	{
		if (held[i].token == token)
			return &held[i];
	}
	return NULL;
}

static void
remove_held(Held *one)
{
	lf_present_session_remove(one->token);
	*one = held[--held_count];
}

/* The worker may give it to the next in the queue. */
static void
tell_worker(void)
{
	int			database = lf_database_mine();

	if (database >= 0)
		lf_database_want(database);
}

static void
count_in(Held *one, LfScope scope)
{
	if (scope == LF_SCOPE_TRANSACTION)
	{
		one->transaction_count++;
		return;
	}
	one->session_count++;
	if (one->scope == LF_SCOPE_TRANSACTION)
	{
		one->scope = LF_SCOPE_SESSION;
		lf_entry_set_scope(&one->resource, one->token, LF_SCOPE_SESSION);
		lf_present_session_add(one->token);
	}
}

int64
lf_held_reenter(const LfResource *resource, const LfHolder *holder,
				LfScope scope, int64 ttl)
{
	Held	   *one = find_resource(resource);
	LfGrantState state;

	/* after SET ROLE the same holder is another one, as it is for the worker */
	if (one == NULL || !lf_holder_equal(&one->holder, holder) ||
		!lf_present_role_allowed(one->role))
		return 0;
	if (!lf_entry_look(resource, lf_resource_hash(resource), &state) ||
		state.token != one->token || state.draining ||
		!lf_grant_is_live(&state, lf_clock_now()))
	{
		remove_held(one);
		return 0;
	}
	if (ttl > 0 && !lf_prolong(resource, one->token, ttl, &state))
		return 0;
	count_in(one, scope);
	return one->token;
}

static void
end_at_exit(int code, Datum arg)
{
	lf_held_discard();
}

void
lf_held_add(const LfResource *resource, const LfHolder *holder, int64 token,
			LfScope scope)
{
	Held	   *one = find_resource(resource);

	if (!exit_callback_registered)
	{
		before_shmem_exit(end_at_exit, (Datum) 0);
		exit_callback_registered = true;
	}
	if (one != NULL)
		remove_held(one);
	if (held_count == held_room)
	{
		held_room = Max(8, held_room * 2);
		held = held == NULL ?
			MemoryContextAlloc(TopMemoryContext, held_room * sizeof(Held)) :
			repalloc(held, held_room * sizeof(Held));
	}
	one = &held[held_count++];
	memset(one, 0, sizeof(*one));
	one->resource = *resource;
	one->holder = *holder;
	one->role = GetOuterUserId();
	one->token = token;
	one->scope = scope;
	if (scope == LF_SCOPE_SESSION)
	{
		one->session_count = 1;
		lf_present_session_add(token);
	}
	else
		one->transaction_count = 1;
}

bool
lf_held_resource(int64 token, LfResource *resource, Oid *role)
{
	Held	   *one = find_token(token);

	if (one == NULL)
		return false;
	*resource = one->resource;
	*role = one->role;
	return true;
}

bool
lf_held_release(int64 token, bool *last)
{
	Held	   *one = find_token(token);

	if (one == NULL)
		return false;
	if (one->transaction_count > 0)
		one->transaction_count--;
	else
		one->session_count--;
	*last = one->transaction_count + one->session_count == 0;
	if (*last)
		remove_held(one);
	return true;
}

void
lf_held_give_back(int64 token, LfScope scope)
{
	Held	   *one = find_token(token);

	if (one == NULL)
		return;
	if (scope == LF_SCOPE_TRANSACTION)
		one->transaction_count--;
	else if (--one->session_count == 0 && one->transaction_count > 0)
	{
		one->scope = LF_SCOPE_TRANSACTION;
		lf_entry_set_scope(&one->resource, one->token, LF_SCOPE_TRANSACTION);
		lf_present_session_remove(one->token);
	}
}

void
lf_held_discard(void)
{
	bool		any = held_count > 0;

	while (held_count > 0)
	{
		lf_entry_end(&held[0].resource, held[0].token, LF_OVER_RELEASED);
		remove_held(&held[0]);
	}
	if (any)
		tell_worker();
}

static void
end_transaction_leases(void)
{
	bool		any = false;

	for (int i = held_count - 1; i >= 0; i--)
	{
		Held	   *one = &held[i];

		one->transaction_count = 0;
		if (one->session_count > 0)
			continue;
		lf_entry_end(&one->resource, one->token, LF_OVER_RELEASED);
		remove_held(one);
		any = true;
	}
	if (any)
		tell_worker();
}

static void
after_locks(ResourceReleasePhase phase, bool isCommit, bool isTopLevel, void *arg)
{
	if (phase == RESOURCE_RELEASE_AFTER_LOCKS && isTopLevel && held_count > 0)
		end_transaction_leases();
}

static void
refuse_prepare(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_PRE_PREPARE)
		return;
	for (int i = 0; i < held_count; i++)
	{
		if (held[i].transaction_count > 0)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that holds a lease of scope \"transaction\""),
					 errdetail("The lease of resource \"%.*s\" would be over while the prepared transaction goes on.",
							   held[i].resource.length, held[i].resource.name),
					 errhint("Take it with scope \"session\" or \"detached\".")));
	}
}

void
lf_held_install(void)
{
	RegisterResourceReleaseCallback(after_locks, NULL);
	RegisterXactCallback(refuse_prepare, NULL);
}
