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
 * are given back by lf_database_forget (DROP DATABASE) alone, which a session
 * or a worker of that database keeps from happening.  Everybody else goes by
 * OID.
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
	LfClock		state_since;
	bool		held;			/* DDL on the database: worker stays away */
	int			worker_pid;		/* 0: none attached */
	TimestampTz worker_since;
	int			failures;		/* starts and lives that ended badly, in a row */
	LfClock		retry_at;		/* no start before that */
} LfDatabaseView;

extern Size lf_database_shmem_size(void);
extern void lf_database_shmem_init(void);

/*
 * This database's index, made if it is new; -1 when all places are taken.
 * Any process connected to a database.
 */
extern int	lf_database_mine(void);

/* Index of a database's place, or -1; any process. */
extern int	lf_database_find(Oid database);
extern bool lf_database_look(int index, LfDatabaseView *view);

/*
 * Sessions.  want: a worker runs or will, and looks again after this call; call
 * it after the work was left where the worker finds it, as often as you like.
 * wake: only a hint to a worker that runs; it may be about to retire.
 */
extern void lf_database_want(int index);
extern void lf_database_wake(int index);

/*
 * Sessions: keep the worker away while a DDL command needs the database to
 * itself; holds nest.  hold: false if the database has no place (then there is
 * nothing to resume).  resume: let it come back.  renamed: the name by which it
 * was started is no longer its own.  forget: the database is gone.
 */
extern bool lf_database_hold(Oid database);
extern void lf_database_resume(Oid database);
extern void lf_database_renamed(Oid database);
extern void lf_database_forget(Oid database);

/*
 * Launcher: its latch, and the starts it makes.  begin_start: false if there is
 * nothing to start now.  start_failed: the worker did not attach; no effect if
 * it did.  settle: true if the worker has run well for long enough to forget
 * earlier failures.  find_named: the place whose worker was started by that
 * name, or -1.
 */
extern void lf_database_launcher_attach(void);
extern void lf_database_launcher_detach(void);
extern bool lf_database_begin_start(int index);
extern void lf_database_start_failed(int index);
extern bool lf_database_settle(int index);
extern int	lf_database_find_named(const char *name);

/* Microseconds to wait after so many failures in a row. */
extern int64 lf_database_backoff(int failures);

/*
 * Worker.  attach: false if another one is attached, the database is held, or
 * the place is no longer its database's: exit 0.  beat: sign of life, at the
 * beginning of each pass, before it looks for work.  try_retire: false if
 * somebody wanted the worker since the last beat; if true, exit 0 at once.
 * detach: at exit; intended says that it exits 0 (retired, or held), everything
 * else counts as a failure.  No effect unless this process is attached.
 */
extern bool lf_database_attach(int index);
extern void lf_database_detach(int index, bool intended);
extern bool lf_database_is_held(int index);
extern void lf_database_beat(int index);
extern bool lf_database_try_retire(int index);
extern uint64 lf_database_heartbeat(int index);

#endif							/* LF_BASE_DATABASE_H */
