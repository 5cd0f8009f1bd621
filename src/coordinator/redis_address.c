/*
 * redis_address.c
 *		Finding a host's addresses without waiting.
 *
 * Runs in workers.  A name server that is dead keeps getaddrinfo() for longer
 * than anybody should wait for audits and mints, so the C library looks names
 * up in a thread of its own (getaddrinfo_a), which takes no signals and knows
 * nothing of PostgreSQL.
 *
 * What must end well: a look-up that nobody waits for any more, and that cannot
 * be cancelled.  It is left alone until it ends, and its memory with it.  As the
 * library has only so many threads for look-ups, one per host is enough.
 */
#include "postgres.h"

#include "coordinator/redis_address.h"
#include "lib/ilist.h"

/* What getaddrinfo_a works on, in malloc'd memory: threads and palloc do not mix. */
typedef struct LfAddressQuery
{
	dlist_node	node;			/* when abandoned */
	struct gaicb request;
	struct addrinfo hints;
	char		port[8];
	char		host[FLEXIBLE_ARRAY_MEMBER];
} LfAddressQuery;

static dlist_head abandoned = DLIST_STATIC_INIT(abandoned);

static void
free_query(LfAddressQuery *query)
{
	if (query->request.ar_result != NULL)
		freeaddrinfo(query->request.ar_result);
	free(query);
}

/* Those that have ended meanwhile; one that looks for this host may go on. */
static LfAddressQuery *
reap_abandoned(const char *host, const char *port)
{
	LfAddressQuery *same = NULL;
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &abandoned)
	{
		LfAddressQuery *query = dlist_container(LfAddressQuery, node, iter.cur);
		bool		is_same = same == NULL && strcmp(query->host, host) == 0 &&
			strcmp(query->port, port) == 0;

		if (is_same)
			same = query;
		else if (gai_error(&query->request) == EAI_INPROGRESS)
			continue;
		dlist_delete(iter.cur);
		if (!is_same)
			free_query(query);
	}
	return same;
}

static LfAddressQuery *
start_query(const char *host, const char *port)
{
	LfAddressQuery *query = calloc(1, offsetof(LfAddressQuery, host) + strlen(host) + 1);
	struct gaicb *requests[1];

	if (query == NULL)
		return NULL;
	strcpy(query->host, host);
	strcpy(query->port, port);
	query->hints.ai_socktype = SOCK_STREAM;
	query->request.ar_name = query->host;
	query->request.ar_service = query->port;
	query->request.ar_request = &query->hints;
	requests[0] = &query->request;
	if (getaddrinfo_a(GAI_NOWAIT, requests, 1, NULL) == 0)
		return query;
	free_query(query);
	return NULL;
}

/* An address is none to look up. */
static bool
is_address(const char *host, const char *port, struct addrinfo **found)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};

	return getaddrinfo(host, port, &hints, found) == 0;
}

LfAddressState
lf_address_look(LfAddressLookup *lookup, const char *host, int port, const char **problem)
{
	char		service[8];
	int			result;

	if (lookup->found != NULL)
		return LF_ADDRESS_FOUND;
	snprintf(service, sizeof(service), "%d", port);
	if (lookup->query == NULL && is_address(host, service, &lookup->found))
		return LF_ADDRESS_FOUND;
	if (lookup->query == NULL)
		lookup->query = reap_abandoned(host, service);
	if (lookup->query == NULL)
		lookup->query = start_query(host, service);
	if (lookup->query == NULL)
	{
		*problem = "out of memory";
		return LF_ADDRESS_FAILED;
	}
	result = gai_error(&lookup->query->request);
	if (result == EAI_INPROGRESS)
		return LF_ADDRESS_LATER;
	if (result == 0)
	{
		lookup->found = lookup->query->request.ar_result;
		lookup->query->request.ar_result = NULL;
	}
	else
		*problem = gai_strerror(result);
	free_query(lookup->query);
	lookup->query = NULL;
	return lookup->found != NULL ? LF_ADDRESS_FOUND : LF_ADDRESS_FAILED;
}

void
lf_address_end(LfAddressLookup *lookup)
{
	if (lookup->query != NULL)
		dlist_push_tail(&abandoned, &lookup->query->node);
	if (lookup->found != NULL)
		freeaddrinfo(lookup->found);
	memset(lookup, 0, sizeof(*lookup));
}
