/*
 * queue.h
 *		The worker's side of the requests: who gets which lease, and when.
 */
#ifndef LF_LEASE_QUEUE_H
#define LF_LEASE_QUEUE_H

#include "base/clock.h"

/* A new worker: fails what the one before it left unfinished. */
extern void lf_queue_recover(void);

/*
 * One pass over the requests: takes in new ones, drops withdrawn ones, mints
 * for those whose turn it is, answers.  Returns when to look again though
 * nobody wakes the worker.  Outside a transaction.
 */
extern LfClock lf_queue_pass(int database);

/* Does a session wait for anything? */
extern bool lf_queue_is_asked(void);

/*
 * The extension is another one: what was under way is forgotten, who waits is
 * served anew.
 */
extern void lf_queue_start_over(void);

/* Has a request found every entry in use since this was asked last? */
extern bool lf_queue_wants_room(void);

/* Is anything asked for, or on its way? */
extern bool lf_queue_is_empty(void);

/*
 * Before an epoch begins: what is under way goes back to its beginning.  False:
 * a grant is committed and not published yet.
 */
extern bool lf_queue_quiesce(void);

/* The extension is not there: tells everybody so. */
extern void lf_queue_refuse(void);

#endif							/* LF_LEASE_QUEUE_H */
