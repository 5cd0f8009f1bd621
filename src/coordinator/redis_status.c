/*
 * redis_status.c
 *		What is known of each Redis server, in shared memory.
 *
 * Runs in workers, which write, and in backends, which read it for the view
 * worker_status.
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/shmem.h"
#include "coordinator/redis_status.h"
#include "fmgr.h"
#include "funcapi.h"
#include "base/arguments.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(lf_server_states);

#define PLACES	256
#define COLUMNS 9

static LfRedisStatus *places = NULL;

Size
lf_redis_status_shmem_size(void)
{
	return mul_size(PLACES, sizeof(LfRedisStatus));
}

void
lf_redis_status_shmem_init(void)
{
	bool		there;

	places = ShmemInitStruct("lease_fence servers", lf_redis_status_shmem_size(), &there);
	if (!there)
		memset(places, 0, lf_redis_status_shmem_size());
}

int
lf_redis_status_place(Oid server)
{
	int			found = -1;

	LWLockAcquire(lf_lwlock(LF_LOCK_REDIS), LW_EXCLUSIVE);
	for (int i = 0; i < PLACES; i++)
	{
		if (places[i].database == MyDatabaseId && places[i].server == server)
		{
			found = i;
			break;
		}
		if (found < 0 && !OidIsValid(places[i].database))
			found = i;
	}
	if (found >= 0 && places[found].server != server)
	{
		memset(&places[found], 0, sizeof(LfRedisStatus));
		places[found].database = MyDatabaseId;
		places[found].server = server;
	}
	LWLockRelease(lf_lwlock(LF_LOCK_REDIS));
	return found;
}

void
lf_redis_status_read(int place, LfRedisStatus *status)
{
	LWLockAcquire(lf_lwlock(LF_LOCK_REDIS), LW_SHARED);
	*status = places[place];
	LWLockRelease(lf_lwlock(LF_LOCK_REDIS));
}

void
lf_redis_status_write(int place, const LfRedisStatus *status)
{
	LWLockAcquire(lf_lwlock(LF_LOCK_REDIS), LW_EXCLUSIVE);
	places[place] = *status;
	LWLockRelease(lf_lwlock(LF_LOCK_REDIS));
}

void
lf_redis_status_free(int place)
{
	LWLockAcquire(lf_lwlock(LF_LOCK_REDIS), LW_EXCLUSIVE);
	memset(&places[place], 0, sizeof(LfRedisStatus));
	LWLockRelease(lf_lwlock(LF_LOCK_REDIS));
}

void
lf_redis_status_disconnected(Oid database)
{
	LWLockAcquire(lf_lwlock(LF_LOCK_REDIS), LW_EXCLUSIVE);
	for (int i = 0; i < PLACES; i++)
	{
		if (places[i].database != database)
			continue;
		places[i].connected = places[i].hints = false;
		places[i].queue = 0;
	}
	LWLockRelease(lf_lwlock(LF_LOCK_REDIS));
}

void
lf_redis_status_forget_database(Oid database)
{
	LWLockAcquire(lf_lwlock(LF_LOCK_REDIS), LW_EXCLUSIVE);
	for (int i = 0; i < PLACES; i++)
	{
		if (places[i].database == database)
			memset(&places[i], 0, sizeof(LfRedisStatus));
	}
	LWLockRelease(lf_lwlock(LF_LOCK_REDIS));
}

/* ---- SQL ---- */

static void
put_server(ReturnSetInfo *result, const LfRedisStatus *status)
{
	LfClock		now = lf_clock_now();
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS] = {false};
	NameData	name;

	namestrcpy(&name, status->name);
	values[0] = NameGetDatum(&name);
	values[1] = BoolGetDatum(status->connected);
	values[2] = BoolGetDatum(status->hints);
	values[3] = TimestampTzGetDatum(status->last_success);
	nulls[3] = status->last_success == 0;
	values[4] = CStringGetTextDatum(status->last_error);
	values[5] = TimestampTzGetDatum(status->last_error_at);
	nulls[4] = nulls[5] = status->last_error_at == 0;
	nulls[6] = status->retry_at <= now;
	values[6] = nulls[6] ? (Datum) 0 : lf_interval_datum(status->retry_at - now);
	values[7] = Int32GetDatum(status->queue);
	values[8] = CStringGetTextDatum(status->warning);
	nulls[8] = status->warning[0] == '\0';
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

Datum
lf_server_states(PG_FUNCTION_ARGS)
{
	lf_shmem_require();
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < PLACES; i++)
	{
		LfRedisStatus status;

		lf_redis_status_read(i, &status);
		if (status.database == MyDatabaseId && status.name[0] != '\0')
			put_server((ReturnSetInfo *) fcinfo->resultinfo, &status);
	}
	PG_RETURN_NULL();
}
