/*
 * stat.c
 *		Counters of each database.  Runs in every process.
 */
#include "postgres.h"

#include "base/database.h"
#include "base/stat.h"
#include "port/atomics.h"
#include "storage/shmem.h"

static pg_atomic_uint64 *counters = NULL;

Size
lf_stat_shmem_size(void)
{
	return mul_size(LF_MAX_DATABASES * LF_STAT_COUNT, sizeof(pg_atomic_uint64));
}

void
lf_stat_shmem_init(void)
{
	bool		found;

	counters = ShmemInitStruct("lease_fence counters", lf_stat_shmem_size(), &found);
	for (int i = 0; !found && i < LF_MAX_DATABASES * LF_STAT_COUNT; i++)
		pg_atomic_init_u64(&counters[i], 0);
}

void
lf_stat_add(int database, LfStat counter, uint64 count)
{
	if (database >= 0)
		pg_atomic_fetch_add_u64(&counters[database * LF_STAT_COUNT + counter], count);
}

uint64
lf_stat_read(int database, LfStat counter)
{
	return database < 0 ? 0 :
		pg_atomic_read_u64(&counters[database * LF_STAT_COUNT + counter]);
}
