/*
 * redis_status.h
 *		What is known of each Redis server, in shared memory: for the view
 *		worker_status, and for the next worker.
 *
 * A database's worker alone writes the places of its database.
 */
#ifndef LF_COORDINATOR_REDIS_STATUS_H
#define LF_COORDINATOR_REDIS_STATUS_H

#include "base/clock.h"
#include "datatype/timestamp.h"

#define LF_RUN_ID_LENGTH 64

typedef struct LfRedisStatus
{
	Oid			database;		/* invalid: the place is free */
	Oid			server;
	char		name[NAMEDATALEN];
	bool		connected;
	bool		hints;			/* told of events */
	TimestampTz last_success;	/* the last call that Redis carried out */
	TimestampTz last_error_at;
	char		last_error[256];
	LfClock		retry_at;		/* no connection is tried before that */
	int			queue;			/* calls that have no answer yet */
	char		warning[256];	/* empty: none */

	/* Which server it was: another one knows nothing of our locks. */
	char		run_id[LF_RUN_ID_LENGTH];
} LfRedisStatus;

extern Size lf_redis_status_shmem_size(void);
extern void lf_redis_status_shmem_init(void);

/* The place of a server, made if it is new; -1: all places are taken. */
extern int	lf_redis_status_place(Oid server);
extern void lf_redis_status_read(int place, LfRedisStatus *status);
extern void lf_redis_status_write(int place, const LfRedisStatus *status);

/* The server was dropped. */
extern void lf_redis_status_free(int place);

/* The database's worker is gone, and its connections with it. */
extern void lf_redis_status_disconnected(Oid database);

/* DROP DATABASE. */
extern void lf_redis_status_forget_database(Oid database);

#endif							/* LF_COORDINATOR_REDIS_STATUS_H */
