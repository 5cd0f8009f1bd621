/*
 * mint.h
 *		Minting: making a token durable and current, by the one worker.
 *
 * The steps of one grant of a resource (DESIGN: "over" and "draining", drain,
 * commit, publish) are driven by whoever collects the requests; this is what a
 * step does.  All functions run in the worker.
 */
#ifndef LF_FENCE_MINT_H
#define LF_FENCE_MINT_H

#include "access/xlogdefs.h"
#include "fence/entry.h"

typedef enum LfDrainState
{
	LF_DRAIN_DONE,				/* the old token's lock is ours */
	LF_DRAIN_BLOCKED,			/* writers are in the way */
	LF_DRAIN_OWN_WAY			/* so is the asker itself */
} LfDrainState;

/* Who is in the way of a drain, for the asker's message. */
typedef struct LfBlocker
{
	int			pid;			/* 0: none, or a prepared transaction */
	TransactionId prepared;		/* its xid; invalid: none */
} LfBlocker;

/* One resource on its way to a new grant. */
typedef struct LfMint
{
	LfGrant		grant;			/* the new one; its token is set by the commit */
	LfClock		until;			/* its deadline; 0: its ttl from when it is published */
	LfGrantState old;			/* as it was at step 1 */
	bool		old_end_written;
	bool		begun;			/* step 1 is done */
	bool		locked;			/* the drain is done */
	LfClock		terminate_at;	/* writers in the way are terminated then */
	LfBlocker	blocker;
	struct LfTermination *terminations; /* to be written into the audit */
	int			termination_count;
} LfMint;

typedef enum LfLoad
{
	LF_LOAD_DONE,
	LF_LOAD_LATER,				/* the table is locked by somebody */
	LF_LOAD_NO_ROOM				/* every entry is in use */
} LfLoad;

/*
 * Loads the resource's entry if it is not in memory.  Outside a transaction.
 */
extern LfLoad lf_mint_load(const LfResource *resource, LfGrantState *state);

/*
 * Step 1.  how: what the old grant is over by, if it is still live.  False: a
 * mint that was interrupted is not settled yet, try later.
 */
extern bool lf_mint_begin(LfMint *mint, LfOver how);

/*
 * Step 2, one try.  asker: backend slot of who asks.  Terminates writers in the
 * way when their time has come.
 */
extern LfDrainState lf_mint_drain(LfMint *mint, int asker);

/*
 * Step 3: one transaction for all of them.  False: nothing was minted, *problem
 * says why (NULL: the table is locked by somebody, try later).  *end is where
 * the commit record ends: publish when the standbys have passed it.
 */
extern bool lf_mint_commit(LfMint **mints, int count, XLogRecPtr *end, char **problem);

/* Step 4.  grant.state.over says whether it is over already. */
extern void lf_mint_publish(LfMint *mint);

/* Gives up between step 1 and step 3; the old grant stays over. */
extern void lf_mint_abandon(LfMint *mint);

/*
 * A new worker: what the one before it left draining is settled by the table.
 * False while a mint that it committed must wait for the standbys to pass
 * position.  Before the first lf_mint_begin.
 */
extern bool lf_mint_recover(XLogRecPtr position);

/* Raises 54000 at the end of the range of tokens. */
extern void lf_mint_check_range(int64 token);

#endif							/* LF_FENCE_MINT_H */
