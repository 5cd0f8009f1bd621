/*
 * audit.h
 *		The record of each rejected write: durable before the client hears of
 *		the rejection, and not undone by its rollback.
 *
 * A backend puts its record into its own shared place and wakes the worker,
 * which writes what it finds in one batch a commit.  A backend has at most one
 * record under way, since it waits for it: so the places are bounded, never
 * full, and need no queue.
 */
#ifndef LF_AUDIT_AUDIT_H
#define LF_AUDIT_AUDIT_H

#include "base/clock.h"
#include "base/errors.h"
#include "base/resource.h"

typedef enum LfAuditAction
{
	LF_ACTION_REJECTED,
	LF_ACTION_OBSERVED,
	LF_ACTION_TERMINATED,
	LF_ACTION_BYPASSED
} LfAuditAction;

/*
 * What is to be recorded.  Who asks (role, application, client, pid, statement)
 * is taken from the calling process.  Strings are truncated to their place, at
 * a character's border; NULL where there is nothing to say.
 */
typedef struct LfRejection
{
	LfAuditAction action;
	LfReason	reason;
	Oid			relation;		/* InvalidOid: none */
	const char *operation;		/* INSERT, UPDATE, DELETE, TRUNCATE or NULL */
	const char *key;			/* primary key of the row, as JSON */
	const LfResource *resource;
	int64		presented_token;	/* 0: none */
	int64		current_token;	/* 0: none */
	const LfHolder *presented_holder;
	const LfHolder *current_holder;
	int64		over_for;		/* microseconds since it was over; -1: not */
	const char *new_row;		/* only with lease_fence.audit_row = full */
} LfRejection;

extern Size lf_audit_shmem_size(void);
extern void lf_audit_shmem_init(void);

/*
 * Backend: record one rejection and wait until it is durable, at most
 * lease_fence.audit_timeout; then it goes to the server log in full, and is
 * counted.  Until the worker's heartbeat moves again after such a time-out it
 * goes straight to the log.  Cancellable (the record may be there all the same).
 * Never raises for a reason of its own.  Holds no lock of ours when called.
 */
extern void lf_audit_reject(const LfRejection *rejection);

/*
 * Backend: one row about a statement past the guards, in its own transaction,
 * with the reason that was given for it.
 */
extern void lf_audit_bypassed(const LfRejection *rejection, const char *reason,
							  const char *statement, int64 rows);

/*
 * Worker, outside a transaction.  Nothing is raised.
 *
 * adopt: once at its start; records that a worker before us had taken are
 * waiting again.
 * write_pending: one batch of the records waiting for this database, committed
 * but not yet answered; false if there was none, or if they could not be
 * written now (the table could not be opened at once).
 * answer: tell the backends of all that is written and that the synchronous
 * standbys have.
 * busy: something of this database is still to be written or answered; the
 * worker does not retire, and comes back within 100 ms though nobody wakes it.
 */
extern void lf_audit_adopt(int database);
extern bool lf_audit_write_pending(int database);
extern void lf_audit_answer(int database);
extern bool lf_audit_busy(int database);

/*
 * Worker: one row about a writer that was terminated, within the caller's
 * transaction and with the table already locked by lf_audit_lock_table(), which
 * only tries: false if the lock is not to be had, or the extension is gone.  A
 * row that cannot be inserted goes to the server log; nothing is raised for it.
 */
extern bool lf_audit_lock_table(void);
typedef struct LfTermination
{
	LfResource	resource;
	int64		old_token;
	int64		new_token;		/* 0: none was minted */
	LfReason	reason;
	int			pid;
} LfTermination;
extern void lf_audit_insert_termination(const LfTermination *termination);

/*
 * Guards in mode observe.  observe: count one write that would have been
 * refused; never waits, never raises, may forget (and count that) when the
 * bounded table is full.  write_observed: the worker's turn, at most once a
 * second: one row per guard, reason, role, application and query id, with a
 * count; false if there was nothing or the table could not be opened at once.
 */
extern Size lf_audit_observe_shmem_size(void);
extern void lf_audit_observe_shmem_init(void);
extern void lf_audit_observe(const LfRejection *rejection);
extern bool lf_audit_write_observed(int database);

/* Observed writes that found no room, in all databases, since start. */
extern uint64 lf_audit_observed_forgotten(void);

/*
 * Rejections that went to the log instead of the table, and rows written, since
 * start.  Database: an index, or -1 for those without one.
 */
extern uint64 lf_audit_logged(int database);
extern uint64 lf_audit_written(int database);

#endif							/* LF_AUDIT_AUDIT_H */
