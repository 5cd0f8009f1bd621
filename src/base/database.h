/*
 * database.h
 *		One shared place per database that has, or wants, a worker.
 *
 * Who writes what:
 *	- sessions: want, wake, hold (DDL on the database);
 *	- the launcher: starting, failure counts;
 *	- the database's worker: attach, detach, state, heartbeat, retire.
 *
 * An index is only good while its place belongs to the same database: places
 * are given back by lf_database_forget (DROP DATABASE) alone.
 */
#ifndef LF_BASE_DATABASE_H
#define LF_BASE_DATABASE_H

#include "datatype/timestamp.h"

#include "base/clock.h"

#define LF_MAX_DATABASES 256

typedef enum LfWorkerState
{
	LF_WORKER_STOPPED,			/* none, and nobody needs one */
	LF_WORKER_WANTED,			/* none yet: the launcher's turn */
	LF_WORKER_STARTING,			/* registered, not attached yet */
	LF_WORKER_RUNNING
} LfWorkerState;

/* A copy for whoever looks: launcher, worker_status. */
typedef struct LfDatabaseView
{
	Oid			oid;			/* InvalidOid: the place is free */
	LfWorkerState state;
	bool		held;			/* DDL on the database: worker stays away */
	int			worker_pid;		/* 0: none attached */
	TimestampTz worker_since;
	int			failures;		/* starts that ended badly, in a row */
	LfClock		retry_at;		/* no start before that */
} LfDatabaseView;

extern Size lf_database_shmem_size(void);
extern void lf_database_shmem_init(bool found);

/*
 * This database's index, made if it is new; -1 when all places are taken.
 * Any process connected to a database.
 */
extern int	lf_database_mine(void);

/* Index of a database's place, or -1; any process. */
extern int	lf_database_find(Oid database);
extern bool lf_database_look(int index, LfDatabaseView *view);

/* Sessions: make sure that a worker runs or will, and wake it. */
extern void lf_database_want(int index);
extern void lf_database_wake(int index);

/*
 * Sessions: keep the worker away while a DDL command needs the database to
 * itself; holds nest.  resume: let it come back.  forget: the database is gone.
 */
extern void lf_database_hold(int index);
extern void lf_database_resume(int index);
extern void lf_database_forget(int index);

/* Launcher: its latch, and the starts it makes. */
extern void lf_database_launcher_attach(void);
extern bool lf_database_begin_start(int index);
extern void lf_database_start_failed(int index, const LfClock retry_at);

/*
 * Worker.  attach: false if another one is attached or the database is held.
 * detach: at exit; retired says that nobody needs a successor.
 * beat: sign of life, each pass.
 */
extern bool lf_database_attach(int index);
extern void lf_database_detach(int index, bool retired);
extern bool lf_database_is_held(int index);
extern void lf_database_beat(int index);
extern uint64 lf_database_heartbeat(int index);

#endif							/* LF_BASE_DATABASE_H */
