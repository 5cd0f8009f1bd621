/*
 * wait.h
 *		How a worker sleeps: until its latch is set, a lock service answers, or
 *		the time is over.
 */
#ifndef LF_WORKER_WAIT_H
#define LF_WORKER_WAIT_H

/* Resets the latch afterwards; exits when the postmaster died. */
extern void lf_wait(long milliseconds);

#endif							/* LF_WORKER_WAIT_H */
