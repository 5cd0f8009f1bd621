/*
 * tracked.c
 *		Leases whose time is up to a lock service: renewed, looked at, released.
 *
 * Runs in the database's worker.  A lock that we took for a session is renewed
 * at each third of its ttl; every other one, one that was adopted above all, is
 * looked at when a third of its remaining time has passed, and when a hint says
 * so: after its deadline would be too late for who renews it.  Watching only ever
 * ends a grant, or moves its deadline: a token is minted for who asks.
 *
 * Beside leases there are locks that are only still to be released: their lease
 * has ended, or they may have been granted to somebody who is gone.
 *
 * What must end well: the death of the worker (the next one finds the leases
 * among the entries), a server that is away (nothing is prolonged; what is to be
 * released is tried until it has run out by itself), a profile that is changed
 * or dropped (its leases live until their deadlines).
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/point.h"
#include "base/transaction.h"
#include "common/hashfn.h"
#include "coordinator/profile.h"
#include "fence/ends.h"
#include "lease/remote.h"
#include "lease/tracked.h"
#include "lib/pairingheap.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

/* Microseconds. */
#define LOOK_SOONEST	INT64CONST(20000)
#define RETRY_APART		INT64CONST(1000000)
#define BARRED_APART	INT64CONST(1000000)

/* So many are asked about in one pass: requests must not wait for all of them. */
#define LOOKS_PER_PASS	2000

/* Resource, value and lock are allocated as far as their bytes go. */
typedef struct Tracked
{
	int64		token;			/* below 0: only to be released */
	pairingheap_node due_node;
	dlist_node	key_node;		/* in its key's chain */
	LfClock		due;
	LfClock		looked_at;
	LfClock		release_until;
	int64		left;			/* as the last answer had it */
	bool		queued;			/* in the heap */
	bool		asked;			/* a question is under way */
	bool		look_again;		/* a hint came meanwhile */
	bool		releasing;
	bool		adopted;
	bool		listening;
	LfResource *resource;
	LfLockValue *value;
	LfLock	   *lock;
} Tracked;

typedef struct TokenEntry
{
	int64		token;
	Tracked    *tracked;
} TokenEntry;

/* Of locks whose keys have the same hash: told apart by looking. */
typedef struct KeyChain
{
	uint32		hash;
	dlist_head	tracked;
} KeyChain;

static int	compare_due(const pairingheap_node *a, const pairingheap_node *b, void *arg);
static void answered(const LfLockQuestion *question, const LfLockAnswer *answer);

static MemoryContext context = NULL;
static HTAB *by_token = NULL;
static HTAB *by_key = NULL;
static pairingheap *due_heap = NULL;
static int64 last_orphan = 0;
static bool recovered = false;
static uint64 profiles_seen = 0;

static Tracked *
of_due_node(pairingheap_node *node)
{
	return pairingheap_container(Tracked, due_node, node);
}

static int
compare_due(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	LfClock		left = pairingheap_const_container(Tracked, due_node, a)->due;
	LfClock		right = pairingheap_const_container(Tracked, due_node, b)->due;

	return left < right ? 1 : left > right ? -1 : 0;
}

/* ---- the list ---- */

static void
prepare(void)
{
	HASHCTL		tokens = {.keysize = sizeof(int64), .entrysize = sizeof(TokenEntry)};
	HASHCTL		keys = {.keysize = sizeof(uint32), .entrysize = sizeof(KeyChain)};
	MemoryContext saved;

	if (context != NULL)
		return;
	context = AllocSetContextCreate(TopMemoryContext, "lease_fence tracked leases",
									ALLOCSET_DEFAULT_SIZES);
	tokens.hcxt = keys.hcxt = context;
	saved = MemoryContextSwitchTo(context);
	by_token = hash_create("tracked by token", 256, &tokens, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	by_key = hash_create("tracked by key", 256, &keys, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	due_heap = pairingheap_allocate(compare_due, NULL);
	MemoryContextSwitchTo(saved);
}

static uint32
key_hash(Oid server, const char *key, int length)
{
	return hash_bytes((const unsigned char *) key, length) ^ murmurhash32(server);
}

static Tracked *
find(int64 token)
{
	TokenEntry *entry;

	if (context == NULL)
		return NULL;
	entry = hash_search(by_token, &token, HASH_FIND, NULL);
	return entry == NULL ? NULL : entry->tracked;
}

static void *
copy(const void *from, Size size)
{
	return memcpy(MemoryContextAlloc(context, size), from, size);
}

static void
set_due(Tracked *tracked, LfClock due)
{
	if (tracked->queued)
		pairingheap_remove(due_heap, &tracked->due_node);
	tracked->due = due;
	tracked->queued = true;
	pairingheap_add(due_heap, &tracked->due_node);
}

static Tracked *
insert(int64 token, const LfLock *lock, const LfLockValue *value)
{
	uint32		hash = key_hash(lock->server, lock->key, lock->key_length);
	Tracked    *tracked;
	TokenEntry *entry;
	KeyChain   *chain;
	bool		found;

	prepare();
	tracked = MemoryContextAllocZero(context, sizeof(Tracked));
	tracked->token = token;
	tracked->lock = copy(lock, lf_lock_size(lock));
	tracked->value = copy(value, offsetof(LfLockValue, bytes) + value->length);
	entry = hash_search(by_token, &token, HASH_ENTER, &found);
	Assert(!found);
	entry->tracked = tracked;
	chain = hash_search(by_key, &hash, HASH_ENTER, &found);
	if (!found)
		dlist_init(&chain->tracked);
	dlist_push_tail(&chain->tracked, &tracked->key_node);
	return tracked;
}

static void
forget(Tracked *tracked)
{
	uint32		hash = key_hash(tracked->lock->server, tracked->lock->key, tracked->lock->key_length);
	KeyChain   *chain = hash_search(by_key, &hash, HASH_FIND, NULL);

	dlist_delete(&tracked->key_node);
	if (dlist_is_empty(&chain->tracked))
		hash_search(by_key, &hash, HASH_REMOVE, NULL);
	hash_search(by_token, &tracked->token, HASH_REMOVE, NULL);
	if (tracked->queued)
		pairingheap_remove(due_heap, &tracked->due_node);
	if (tracked->listening)
		lf_coordinator_unlisten(tracked->lock);
	if (tracked->resource != NULL)
		pfree(tracked->resource);
	pfree(tracked->value);
	pfree(tracked->lock);
	pfree(tracked);
}

static void
listen_to(Tracked *tracked)
{
	if (!tracked->listening)
		lf_coordinator_listen(tracked->lock);
	tracked->listening = true;
}

/* ---- asking ---- */

static void
ask(Tracked *tracked, LfLockCall call, int64 ttl)
{
	tracked->asked = true;
	tracked->looked_at = lf_clock_now();
	if (tracked->queued)
		pairingheap_remove(due_heap, &tracked->due_node);
	tracked->queued = false;
	lf_coordinator_ask(call, tracked->lock, tracked->value, NULL, ttl,
					   (uint64) tracked->token, answered);
}

/* A lock of ours is let go of; of one that others took nothing is left to do. */
static void
stop_tracking(Tracked *tracked)
{
	if (tracked->releasing)
		return;
	if (tracked->adopted)
	{
		forget(tracked);
		return;
	}
	tracked->releasing = true;
	tracked->release_until = lf_clock_after(lf_clock_now(), tracked->left);
	LF_POINT("release-unasked");
	ask(tracked, LF_LOCK_RELEASE, 0);
}

void
lf_tracked_release(const LfLock *lock, const LfLockValue *value, int64 ttl)
{
	Tracked    *tracked = insert(--last_orphan, lock, value);

	tracked->left = ttl;
	stop_tracking(tracked);
}

/* ---- when to look next ---- */

static void
schedule(Tracked *tracked)
{
	LfClock		now = lf_clock_now();
	LfGrantState state;

	if (tracked->look_again)
	{
		tracked->look_again = false;
		set_due(tracked, now);
		return;
	}
	if (!lf_entry_look(tracked->resource, lf_resource_hash(tracked->resource), &state) ||
		state.token != tracked->token || !lf_grant_is_live(&state, now))
	{
		/* barred, or over: the next look says */
		set_due(tracked, lf_clock_after(now, Min(Max(tracked->left / 3, LOOK_SOONEST), BARRED_APART)));
		return;
	}
	if (state.watchdog && state.deadline - now > state.ttl - state.ttl / 3)
		set_due(tracked, state.deadline - (state.ttl - state.ttl / 3));
	else
		set_due(tracked, now + Max((state.deadline - now) / 3, LOOK_SOONEST));
}

static void
look(Tracked *tracked, LfOwnerCheck alive)
{
	LfGrant		grant;
	bool		there = lf_entry_read(tracked->resource, &grant) &&
		grant.state.token == tracked->token;

	if (there && lf_grant_is_live(&grant.state, lf_clock_now()))
	{
		listen_to(tracked);
		if (grant.state.watchdog && alive(grant.state.owner, grant.owner_pid, grant.state.scope))
			ask(tracked, LF_LOCK_RENEW, grant.state.ttl);
		else
			ask(tracked, LF_LOCK_CHECK, 0);
	}
	else if (there && grant.state.barred)
		ask(tracked, LF_LOCK_CHECK, 0);
	else
		stop_tracking(tracked);
}

/* ---- answers ---- */

/* The lock is not this grant's any more. */
static void
end_lease(Tracked *tracked, LfOver how)
{
	lf_entry_end(tracked->resource, tracked->token, how);
	lf_entry_lift_bar(tracked->resource, tracked->token);
}

bool
lf_tracked_take_answer(int64 token, const LfLockQuestion *question,
					   const LfLockAnswer *answer)
{
	Tracked    *tracked = find(token);

	if (tracked == NULL || tracked->releasing)
		return false;
	switch (answer->state)
	{
		case LF_LOCK_HELD:
			tracked->left = answer->left;
			return lf_entry_set_deadline(tracked->resource, token,
										 lf_clock_after(answer->asked, answer->left));
		case LF_LOCK_OTHER:
		case LF_LOCK_WRONG_TYPE:
			end_lease(tracked, LF_OVER_TAKEN);
			break;
		case LF_LOCK_ABSENT:
		case LF_LOCK_NO_GRANT:
			end_lease(tracked, LF_OVER_RELEASED);
			break;
		case LF_LOCK_NO_EXPIRY: /* still its holder's: until the deadline we know */
		case LF_LOCK_UNKNOWN:
			break;
	}
	return false;
}

/* An answer that is none, or one that did not come, is asked for again. */
static void
take_answer_to_release(Tracked *tracked, const LfLockAnswer *answer)
{
	LF_POINT("release-answered");
	lf_remote_hint(tracked->lock->server, tracked->lock->key, tracked->lock->key_length);
	if (answer->state == LF_LOCK_UNKNOWN && lf_clock_now() < tracked->release_until)
	{
		tracked->asked = tracked->releasing = false;
		set_due(tracked, lf_clock_after(lf_clock_now(), RETRY_APART));
	}
	else
		forget(tracked);
}

static void
answered(const LfLockQuestion *question, const LfLockAnswer *answer)
{
	Tracked    *tracked = find((int64) question->id);

	lf_remote_see(question, answer);
	if (tracked == NULL)
		return;
	if (question->call == LF_LOCK_RELEASE)
	{
		take_answer_to_release(tracked, answer);
		return;
	}
	if (tracked->releasing)
		return;
	tracked->asked = false;
	lf_tracked_take_answer(tracked->token, question, answer);
	if (answer->state == LF_LOCK_UNKNOWN)
		set_due(tracked, lf_clock_after(lf_clock_now(), RETRY_APART));
	else
		schedule(tracked);
}

/* ---- what servers say ---- */

static void
hint(Oid server, const char *key, int length)
{
	uint32		hash = key_hash(server, key, length);
	KeyChain   *chain = context == NULL ? NULL : hash_search(by_key, &hash, HASH_FIND, NULL);
	dlist_iter	iter;

	lf_remote_hint(server, key, length);
	if (chain == NULL)
		return;
	dlist_foreach(iter, &chain->tracked)
	{
		Tracked    *tracked = dlist_container(Tracked, key_node, iter.cur);

		if (tracked->lock->server != server || tracked->lock->key_length != length ||
			memcmp(tracked->lock->key, key, length) != 0 || tracked->releasing)
			continue;
		if (tracked->asked)
			tracked->look_again = true;
		else
			set_due(tracked, lf_clock_now());
	}
}

static void
for_server(Oid server, void (*what) (Tracked *tracked))
{
	HASH_SEQ_STATUS scan;
	TokenEntry *entry;

	if (context == NULL)
		return;
	hash_seq_init(&scan, by_token);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		if (entry->tracked->lock->server == server)
			what(entry->tracked);
	}
}

static void
look_now(Tracked *tracked)
{
	if (!tracked->asked)
		set_due(tracked, lf_clock_now());
}

static void
ready(Oid server)
{
	for_server(server, look_now);
}

/* Who is barred stays so until a look shows another holder, or none. */
static void
lose(Tracked *tracked)
{
	if (tracked->resource != NULL)
		lf_entry_end(tracked->resource, tracked->token, LF_OVER_LAPSED);
	look_now(tracked);
}

static void
lost(Oid server)
{
	for_server(server, lose);
	lf_remote_lost(server);
}

/* Who was revoked is still looked at, if the lock is not ours to release. */
static void
ended(const LfEnd *end)
{
	Tracked    *tracked = find(end->token);

	if (tracked != NULL && !(tracked->adopted && end->how == LF_OVER_REVOKED))
		stop_tracking(tracked);
}

void
lf_tracked_install(void)
{
	static const LfCoordinatorEvents events = {ready, lost, hint};

	lf_coordinator_install(&events);
	lf_ends_install(ended);
}

/* ---- for the queue ---- */

void
lf_tracked_add(const LfGrant *grant, const LfLock *lock)
{
	LfLockValue value;
	Tracked    *tracked;

	if (find(grant->state.token) != NULL)
		return;
	lf_lock_value(&value, &grant->holder, grant->nonce);
	tracked = insert(grant->state.token, lock, &value);
	tracked->adopted = grant->state.adopted;
	tracked->resource = copy(&grant->resource,
							 offsetof(LfResource, name) + grant->resource.length);
	tracked->left = Max(grant->state.deadline - lf_clock_now(), 0);
	if (tracked->adopted)
		listen_to(tracked);
	schedule(tracked);
}

void
lf_tracked_remove(int64 token)
{
	Tracked    *tracked = find(token);

	if (tracked != NULL)
		stop_tracking(tracked);
}

void
lf_tracked_hurry(int64 token, int64 apart)
{
	Tracked    *tracked = find(token);

	if (tracked != NULL && tracked->adopted && tracked->queued &&
		tracked->due > tracked->looked_at + apart)
		set_due(tracked, tracked->looked_at + apart);
}

const LfLock *
lf_tracked_lock(int64 token, LfLockValue *value, bool *adopted)
{
	Tracked    *tracked = find(token);

	if (tracked == NULL || tracked->releasing)
		return NULL;
	memcpy(value, tracked->value, offsetof(LfLockValue, bytes) + tracked->value->length);
	*adopted = tracked->adopted;
	return tracked->lock;
}

void
lf_tracked_release_ended(void)
{
	LfEnd		ends[256];
	int			count;

	if (lf_tracked_is_empty())
		return;
	count = lf_entry_take_ends(MyDatabaseId, ends, lengthof(ends));
	for (int i = 0; i < count; i++)
		ended(&ends[i]);
}

bool
lf_tracked_is_recovered(void)
{
	return recovered;
}

bool
lf_tracked_is_empty(void)
{
	return context == NULL || hash_get_num_entries(by_token) == 0;
}

/* ---- profiles ---- */

/* The lock of a resource, by the profiles as they are now. */
static bool
lock_of(const LfResource *resource, LfLock *lock)
{
	const LfProfile *profile = lf_profile_of(resource);

	if (profile == NULL || profile->policy != LF_POLICY_SINGLE || !profile->here ||
		!OidIsValid(profile->server))
		return false;
	lf_profile_lock(profile, resource, lock);
	return true;
}

/*
 * Is there something to be done about the lock still: renew it, look at it, or
 * release it, which the worker before us may not have come to?
 */
static bool
needs_tracking(const LfGrant *grant)
{
	const LfGrantState *state = &grant->state;
	LfClock		now = lf_clock_now();

	if (state->coordinator != LF_COORDINATOR_REDIS || state->loading || state->token == 0)
		return false;
	if (state->barred || lf_grant_is_live(state, now))
		return true;
	return grant->nonce != 0 &&
		now < lf_clock_after(Max(state->over_since, state->deadline), state->ttl);
}

/* In a transaction: a new worker finds what the one before it tracked. */
static void
recover(void *arg)
{
	int			cursor = 0;
	LfGrant		grant;
	LfLock		lock;

	while (lf_entry_next(MyDatabaseId, &cursor, &grant))
	{
		if (needs_tracking(&grant) && lock_of(&grant.resource, &lock))
		{
			lf_tracked_add(&grant, &lock);
			look_now(find(grant.state.token));
		}
	}
}

/*
 * In a transaction.  Leases whose profile says something else by now are left
 * alone until their deadline: their lock is where nobody looks any more.
 */
static void
compare_profiles(void *arg)
{
	HASH_SEQ_STATUS scan;
	TokenEntry *entry;
	LfLock		lock;
	List	   *other = NIL;
	ListCell   *cell;

	if (context == NULL)
		return;
	hash_seq_init(&scan, by_token);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		Tracked    *tracked = entry->tracked;

		if (tracked->resource != NULL && !tracked->releasing &&
			(!lock_of(tracked->resource, &lock) || !lf_lock_equal(&lock, tracked->lock)))
			other = lappend(other, tracked);
	}
	foreach(cell, other)
		forget(lfirst(cell));
}

void
lf_tracked_begin_pass(void)
{
	XLogRecPtr	end;
	char	   *problem;
	uint64		generation = lf_profile_generation();

	if (!recovered)
		recovered = lf_transaction_try("finding leases of lock services", recover, NULL, &end, &problem);
	if (generation != profiles_seen && !lf_tracked_is_empty() &&
		lf_transaction_try("comparing profiles", compare_profiles, NULL, &end, &problem))
		profiles_seen = generation;
}

/* ---- a pass ---- */

void
lf_tracked_pass(LfOwnerCheck alive, LfClock *next)
{
	if (lf_tracked_is_empty())
		return;
	for (int i = 0; i < LOOKS_PER_PASS && !pairingheap_is_empty(due_heap); i++)
	{
		Tracked    *tracked = of_due_node(pairingheap_first(due_heap));

		if (tracked->due > lf_clock_now())
			break;
		if (tracked->resource == NULL)
			stop_tracking(tracked);
		else
			look(tracked, alive);
	}
	if (!pairingheap_is_empty(due_heap))
		*next = Min(*next, of_due_node(pairingheap_first(due_heap))->due);
}
