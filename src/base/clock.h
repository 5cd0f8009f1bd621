/*
 * clock.h
 *		The clock of deadlines: CLOCK_BOOTTIME of this host, in microseconds.
 *
 * It goes on while the machine sleeps and never jumps.  Wall-clock time
 * (TimestampTz) is for display and for the epoch's floor alone.
 */
#ifndef LF_BASE_CLOCK_H
#define LF_BASE_CLOCK_H

#include <time.h>

typedef int64 LfClock;

#define LF_CLOCK_NEVER PG_INT64_MAX

static inline LfClock
lf_clock_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_BOOTTIME, &ts);
	return (LfClock) ts.tv_sec * INT64CONST(1000000) + ts.tv_nsec / 1000;
}

/* Sum that stays below LF_CLOCK_NEVER however long the duration is. */
static inline LfClock
lf_clock_after(LfClock from, int64 microseconds)
{
	if (microseconds >= LF_CLOCK_NEVER - from)
		return LF_CLOCK_NEVER - 1;
	return from + microseconds;
}

/* Milliseconds until then, rounded up, for WaitLatch: 0 to limit. */
static inline long
lf_clock_milliseconds_until(LfClock then, long limit)
{
	LfClock		left = then - lf_clock_now();

	if (left <= 0)
		return 0;
	if (left / 1000 >= limit)
		return limit;
	return (long) ((left + 999) / 1000);
}

#endif							/* LF_BASE_CLOCK_H */
