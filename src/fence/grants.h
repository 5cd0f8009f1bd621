/*
 * grants.h
 *		lease_fence.grants: the durable truth about grants.
 *
 * It is read always by a latest snapshot, never by the transaction's, and whatever the
 * caller may select: the answers decide over writes.  In a transaction.
 */
#ifndef LF_FENCE_GRANTS_H
#define LF_FENCE_GRANTS_H

#include "base/table.h"
#include "fence/entry.h"

/*
 * False if there is no such row.  state.deadline counts from now for a grant
 * that can be live after a restart (detached), and has passed for all others;
 * state.over is set when the row has ended_at.
 */
extern bool lf_grants_by_token(int64 token, LfGrant *grant);
extern bool lf_grants_latest(const LfResource *resource, LfGrant *grant);

/*
 * Worker: locks the table and its indexes for reading, at once or not at all;
 * REINDEX shuts an index alone.
 */
extern bool lf_grants_try_lock(void);

/* The highest token ever minted here, or 0. */
extern int64 lf_grants_last_token(void);

/* Worker: a writer for the table, to be closed as any other, and one more row. */
extern LfTableWriter *lf_grants_open(void);
extern void lf_grants_add(LfTableWriter *writer, const LfGrant *grant);

#endif							/* LF_FENCE_GRANTS_H */
