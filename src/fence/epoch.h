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
 * epoch is confirmed.  Confirms an unchanged one itself; a changed one waits
 * for the worker, which is woken.
 */
extern bool lf_epoch_confirmed(int64 *floor);

/*
 * A stamp in a guarded table that is above every token minted here is the trace
 * of a history that was lost: the worker begins a new epoch above it.  Returns
 * at once.
 */
extern void lf_epoch_raise_floor(int64 stamp);

extern bool lf_epoch_look(int database, LfEpochView *view);

/*
 * Worker.  is_due: outside a transaction; true when a new epoch must begin
 * (nothing was confirmed, and the last one is not ours; or a stamp asks for it),
 * confirms an unchanged one.  begin: in a transaction of the caller's; ends all
 * open grants in the table.  began: after its commit, publishes it.
 */
extern bool lf_epoch_is_due(int database);
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
