/*
 * cycles.c
 *		Cycles of waits that lead through leases.
 *
 * Runs in the worker.  PostgreSQL's own deadlock detector sees heavyweight
 * locks only; a cycle that leads through a lease at one point is seen here, a
 * cycle of locks alone is left to it.
 */
#include "postgres.h"

#include "base/compat.h"
#include "catalog/pg_type.h"
#include "lease/pending.h"
#include "utils/array.h"
#include "utils/fmgrprotos.h"

#define MAX_VISITED 256

typedef struct Search
{
	dlist_head *pending;
	LfHolders	holders;
	int			start;			/* process id */
	int			visited[MAX_VISITED];
	int			visited_count;
} Search;

static const LfPending *
pending_of(Search *search, int pid)
{
	dlist_iter	iter;

	dlist_foreach(iter, search->pending)
	{
		LfPending  *pending = dlist_container(LfPending, node, iter.cur);

		if (pending->request.pid == pid)
			return pending;
	}
	return NULL;
}

/* True the first time. */
static bool
visit(Search *search, int pid)
{
	for (int i = 0; i < search->visited_count; i++)
	{
		if (search->visited[i] == pid)
			return false;
	}
	if (search->visited_count >= MAX_VISITED)
		return false;
	search->visited[search->visited_count++] = pid;
	return true;
}

static int
lock_holders(int pid, int *pids, int max)
{
	ArrayType  *array = DatumGetArrayTypeP(DirectFunctionCall1(pg_blocking_pids,
															   Int32GetDatum(pid)));
	int			count = Min(max, ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)));

	memcpy(pids, ARR_DATA_PTR(array), count * sizeof(int32));
	pfree(array);
	return count;
}

/* Does a wait of that process lead to the start? */
static bool
leads_to_start(Search *search, int pid)
{
	const LfPending *pending = pending_of(search, pid);
	int			pids[64];
	int			count = 0;

	if (pending != NULL)
		count = search->holders(pending, pids, lengthof(pids));
	count += lock_holders(pid, pids + count, lengthof(pids) - count);
	for (int i = 0; i < count; i++)
	{
		if (pids[i] == search->start)
			return true;
		if (pids[i] != 0 && visit(search, pids[i]) && leads_to_start(search, pids[i]))
			return true;
	}
	return false;
}

bool
lf_cycles_find(dlist_head *pending, const LfPending *start, LfHolders holders)
{
	Search		search;

	memset(&search, 0, sizeof(search));
	search.pending = pending;
	search.holders = holders;
	search.start = start->request.pid;
	return leads_to_start(&search, search.start);
}
