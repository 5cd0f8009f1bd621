/*
 * stat.h
 *		Counters of each database since the server's start, for the view stat.
 */
#ifndef LF_BASE_STAT_H
#define LF_BASE_STAT_H

typedef enum LfStat
{
	LF_STAT_GRANTED,
	LF_STAT_MINTS,				/* commits that granted them */
	LF_STAT_RELEASED,
	LF_STAT_LAPSED,
	LF_STAT_REVOKED,
	LF_STAT_TAKEN_OVER,
	LF_STAT_TERMINATED,
	LF_STAT_REJECTED,
	LF_STAT_DEADLOCKS,
	LF_STAT_NOTIFICATIONS,
	LF_STAT_NOTIFICATIONS_DROPPED,
	LF_STAT_PURGED,
	LF_STAT_COUNT
} LfStat;

extern Size lf_stat_shmem_size(void);
extern void lf_stat_shmem_init(void);

/* Any process; database is an index, -1 is ignored. */
extern void lf_stat_add(int database, LfStat counter, uint64 count);
extern uint64 lf_stat_read(int database, LfStat counter);

#endif							/* LF_BASE_STAT_H */
