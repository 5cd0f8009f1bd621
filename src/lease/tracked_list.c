/*
 * tracked_list.c
 *		The list of tracked leases: by token, by key, and by when they are due.
 *
 * Runs in the database's worker, in memory of its own.
 */
#include "postgres.h"

#include "base/compat.h"
#include "common/hashfn.h"
#include "coordinator/coordinator.h"
#include "lease/tracked_list.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

typedef struct TokenEntry
{
	int64		token;
	LfTracked  *tracked;
} TokenEntry;

/* Of locks whose keys have the same hash: told apart by looking. */
typedef struct KeyChain
{
	uint32		hash;
	dlist_head	tracked;
} KeyChain;

static int	compare_due(const pairingheap_node *a, const pairingheap_node *b, void *arg);

static MemoryContext context = NULL;
static HTAB *by_token = NULL;
static HTAB *by_key = NULL;
static pairingheap *due_heap = NULL;

static LfTracked *
of_due_node(pairingheap_node *node)
{
	return pairingheap_container(LfTracked, due_node, node);
}

static int
compare_due(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	LfClock		left = pairingheap_const_container(LfTracked, due_node, a)->due;
	LfClock		right = pairingheap_const_container(LfTracked, due_node, b)->due;

	return left < right ? 1 : left > right ? -1 : 0;
}

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

LfTracked *
lf_tracked_list_find(int64 token)
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

void
lf_tracked_list_set_due(LfTracked *tracked, LfClock due)
{
	if (tracked->queued)
		pairingheap_remove(due_heap, &tracked->due_node);
	tracked->due = due;
	tracked->early = 0;
	tracked->queued = true;
	pairingheap_add(due_heap, &tracked->due_node);
}

void
lf_tracked_list_unqueue(LfTracked *tracked)
{
	if (tracked->queued)
		pairingheap_remove(due_heap, &tracked->due_node);
	tracked->queued = false;
}

void
lf_tracked_list_set_resource(LfTracked *tracked, const LfResource *resource)
{
	tracked->resource = copy(resource, offsetof(LfResource, name) + resource->length);
	tracked->hash = lf_resource_hash(resource);
}

LfTracked *
lf_tracked_list_insert(int64 token, const LfLock *lock, const LfLockValue *value)
{
	uint32		hash = key_hash(lock->server, lock->key, lock->key_length);
	LfTracked  *tracked;
	TokenEntry *entry;
	KeyChain   *chain;
	bool		found;

	prepare();
	tracked = MemoryContextAllocZero(context, sizeof(LfTracked));
	tracked->token = token;
	tracked->lock = copy(lock, lf_lock_size(lock));
	tracked->value = copy(value, lf_lock_value_size(value));
	entry = hash_search(by_token, &token, HASH_ENTER, &found);
	Assert(!found);
	entry->tracked = tracked;
	chain = hash_search(by_key, &hash, HASH_ENTER, &found);
	if (!found)
		dlist_init(&chain->tracked);
	dlist_push_tail(&chain->tracked, &tracked->key_node);
	return tracked;
}

void
lf_tracked_list_forget(LfTracked *tracked)
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

/* ---- walking ---- */

bool
lf_tracked_is_empty(void)
{
	return context == NULL || hash_get_num_entries(by_token) == 0;
}

LfTracked *
lf_tracked_list_first_due(void)
{
	if (context == NULL || pairingheap_is_empty(due_heap))
		return NULL;
	return of_due_node(pairingheap_first(due_heap));
}

/* A scan may meet the removal of the element that it is at, and no other. */
static void
visit_some(Oid server, LfTrackedVisit visit)
{
	HASH_SEQ_STATUS scan;
	TokenEntry *entry;

	if (context == NULL)
		return;
	hash_seq_init(&scan, by_token);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		if (!OidIsValid(server) || entry->tracked->lock->server == server)
			visit(entry->tracked);
	}
}

void
lf_tracked_list_visit(LfTrackedVisit visit)
{
	visit_some(InvalidOid, visit);
}

void
lf_tracked_list_visit_server(Oid server, LfTrackedVisit visit)
{
	visit_some(server, visit);
}

void
lf_tracked_list_visit_key(Oid server, const char *key, int length, LfTrackedVisit visit)
{
	uint32		hash = key_hash(server, key, length);
	KeyChain   *chain = context == NULL ? NULL : hash_search(by_key, &hash, HASH_FIND, NULL);
	dlist_mutable_iter iter;

	if (chain == NULL)
		return;
	dlist_foreach_modify(iter, &chain->tracked)
	{
		LfTracked  *tracked = dlist_container(LfTracked, key_node, iter.cur);

		if (tracked->lock->server == server && tracked->lock->key_length == length &&
			memcmp(tracked->lock->key, key, length) == 0)
			visit(tracked);
	}
}
