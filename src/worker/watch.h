/*
 * watch.h
 *		The worker's own look at check().
 */
#ifndef LF_WORKER_WATCH_H
#define LF_WORKER_WATCH_H

/*
 * Worker, outside a transaction: now and then, or soon, runs
 * lease_fence.check(), and logs what is new in it, and that it is gone, once
 * each.
 */
extern void lf_watch_pass(bool soon);

#endif							/* LF_WORKER_WATCH_H */
