/*
 * epoch.h
 *		Epochs: uninterrupted histories of a database.
 *
 * Every token at or below the current epoch's floor is refused, since its
 * successor may be among what was lost.  Guards admit nothing until the epoch
 * is confirmed after a start of the server.
 */
#ifndef LF_FENCE_EPOCH_H
#define LF_FENCE_EPOCH_H

#include "access/xlogdefs.h"

typedef struct LfEpochView
{
	int64		id;				/* 0: none known yet */
	int64		floor;
	bool		confirmed;
} LfEpochView;

extern Size lf_epoch_shmem_size(void);
extern void lf_epoch_shmem_init(void);

/*
 * Any backend, in a transaction: true, and the floor, when this database's
 * epoch is confirmed; before the first epoch no token is good, that is the floor
 * is above them all.  Confirms an unchanged one itself; a changed one waits
 * for the worker, which is woken.
 */
extern bool lf_epoch_confirmed(int64 *floor);

/*
 * Once it is confirmed: is that a token of this epoch?  A restore can bring rows
 * of another history into lease_fence.grants while we run, and their leases are
 * nobody's here.  note_mint: the worker, before the commit of a mint.
 */
extern bool lf_epoch_has_minted(int64 token);
extern void lf_epoch_note_mint(int64 token);

/*
 * A stamp in a guarded table, or a row of lease_fence.grants, that is above
 * every token minted here is the trace of a history that was lost, or of another
 * one: the worker begins a new epoch above it.  Returns at once; at_commit: when
 * this transaction has committed.
 */
extern void lf_epoch_raise_floor(int64 stamp);
extern void lf_epoch_raise_floor_at_commit(int64 stamp);

/* What is known of this database's epoch under that extension. */
extern bool lf_epoch_look(int database, Oid extension, LfEpochView *view);

/* Worker, once need() has said that the epoch is good. */
extern int64 lf_epoch_floor(int database);

typedef enum LfEpochNeed
{
	LF_EPOCH_GOOD,				/* confirmed */
	LF_EPOCH_DUE,				/* a new one must begin */
	LF_EPOCH_FIRST,				/* none ever began, and nobody asks for one */
	LF_EPOCH_LATER				/* somebody has locked our tables */
} LfEpochNeed;

/*
 * Worker.  need: outside a transaction; confirms an unchanged epoch.  A new one
 * is due when the last is not ours, or a stamp asks for it; the first one when
 * somebody asks for it, so that a dump can still be restored into an extension
 * that a worker looks after.  begin: in a
 * transaction of the caller's; ends all open grants in the table; the floor, or
 * 0 if a table is locked; reason NULL: the history has changed.  began: after its commit, publishes it.
 */
extern LfEpochNeed lf_epoch_need(int database, Oid extension);
extern int64 lf_epoch_begin(int database, const char *reason);
extern void lf_epoch_began(int database);

/* Worker, or who has dropped the database: nothing of it is true any more. */
extern void lf_epoch_forget(int database);

/*
 * Worker: what is known is another extension's, or another database's that had
 * the same place; it is forgotten.
 */
extern bool lf_epoch_forget_other(int database, Oid extension);

#endif							/* LF_FENCE_EPOCH_H */
