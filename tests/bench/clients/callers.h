/*
 * callers.h
 *		What the callers (callers.c) and the ways to lock (locks.c) share.
 */
#ifndef CALLERS_H
#define CALLERS_H

#include <stdbool.h>
#include <stdint.h>

/* One job of a caller: lock, do the work if there is any, unlock. */
typedef struct Job
{
	int			caller;
	const char *name;			/* what to lock, without the way's prefix */
	int			item;			/* the row to decrement, 0: nothing to do */
	int			done;			/* out: how often it was done under this lock */
	int64_t		token;			/* of the last time, if the lock has one */
} Job;

typedef struct Way Way;

extern const Way *way_find(const char *name);
extern void *way_open(const Way *way, const char *info, const char *database, bool works, int caller);
extern void way_run(const Way *way, void *state, Job *job);

/* Called with the lock held; token 0: this lock has none. */
extern void entered(const Job *job, int64_t token);
extern void leaving(const Job *job);

extern void die(const char *format,...) __attribute__((noreturn, format(printf, 1, 2)));

#endif
