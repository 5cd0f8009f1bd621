/*
 * transaction.h
 *		The worker's transactions: short, as the bootstrap superuser, and
 *		never open while it waits for anything.
 */
#ifndef LF_BASE_TRANSACTION_H
#define LF_BASE_TRANSACTION_H

#include "access/xlogdefs.h"

/* Starts one with a snapshot; activity is what pg_stat_activity shows. */
extern void lf_transaction_begin(const char *activity);

/*
 * Commits, flushed but local.  Returns the end of its commit record: whoever
 * tells somebody about it waits for lf_standbys_passed() first.
 */
extern XLogRecPtr lf_transaction_commit(void);

/*
 * Runs work(arg) in a transaction of its own.  On ERROR it is rolled back and
 * logged, and *problem is a copy of the message in the caller's context.  The
 * error does not go further: one bad item must not stop the rest.
 */
extern bool lf_transaction_try(const char *activity, void (*work) (void *arg),
							   void *arg, XLogRecPtr *end, char **problem);

/* Have the synchronous standbys, if any, flushed up to there? */
extern bool lf_standbys_passed(XLogRecPtr position);

#endif							/* LF_BASE_TRANSACTION_H */
