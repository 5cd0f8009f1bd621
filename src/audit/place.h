/*
 * place.h
 *		The shared places that record.c owns and writer.c empties, and the
 *		record that one of them holds.  Nobody outside audit/ includes this.
 *
 * A place's state and the index of its database are one atomic word, so that
 * a worker can never take a record of another database: between its look and
 * its compare-and-swap the backend may have gone and another have come.
 *
 *	from		to			by
 *	EMPTY		PENDING		the place's backend, after it filled the record
 *	PENDING		EMPTY		the place's backend, out of time: it logs the record
 *	PENDING		TAKEN		the worker, in its transaction
 *	TAKEN		PENDING		the worker after an error, or its successor
 *	TAKEN		EMPTY		the worker: impossible to insert, it is in the log
 *	TAKEN		COMMITTED	the worker, after commit
 *	COMMITTED	PENDING		the worker's successor
 *	COMMITTED	EMPTY		the worker: the standbys have it; backend answered
 *
 * The backend writes the record while EMPTY alone, and nobody reads it then.
 */
#ifndef LF_AUDIT_PLACE_H
#define LF_AUDIT_PLACE_H

#include "access/xlogdefs.h"
#include "audit/audit.h"
#include "datatype/timestamp.h"
#include "port/atomics.h"

#define LF_RECORD_RELATION	(2 * NAMEDATALEN + 8)
#define LF_RECORD_OPERATION 16
#define LF_RECORD_KEY		512
#define LF_RECORD_CLIENT	128
#define LF_RECORD_STATEMENT 1024
#define LF_RECORD_ROW		2048

/* One row of rejected_writes.  Empty strings and zero lengths are NULL. */
typedef struct LfRecord
{
	int64		id;
	TimestampTz at;
	Oid			database;
	LfAuditAction action;
	LfReason	reason;
	bool		retaken;		/* worker: its id may be in the table already */
	int			pid;			/* 0: several */
	int64		presented_token;	/* 0: none */
	int64		current_token;	/* 0: none */
	int64		over_for;		/* microseconds; -1: not over */
	int64		rows;
	LfResource	resource;
	LfHolder	presented_holder;
	LfHolder	current_holder;
	char		relation[LF_RECORD_RELATION];
	char		operation[LF_RECORD_OPERATION];
	char		role[NAMEDATALEN];
	char		application[NAMEDATALEN];
	char		client[LF_RECORD_CLIENT];
	char		key[LF_RECORD_KEY + 1];
	char		statement[LF_RECORD_STATEMENT + 1];
	char		new_row[LF_RECORD_ROW + 1];
} LfRecord;

typedef struct LfAuditPlace
{
	LfRecord	record;
	bool		logged;			/* backend: out of time while it was taken */
	XLogRecPtr	committed;		/* worker: its commit is not beyond this */
} LfAuditPlace;

#define LF_PLACE_EMPTY		0	/* the whole word, of no database */
#define LF_PLACE_PENDING	1
#define LF_PLACE_TAKEN		2
#define LF_PLACE_COMMITTED	3

#define LF_PLACE_WORD(database, state)	(((uint32) (database) << 8) | (state))
#define LF_PLACE_STATE(word)			((word) & 0xff)
#define LF_PLACE_DATABASE(word)			((int) ((word) >> 8))

/* record.c: one word and one place per possible backend. */
extern pg_atomic_uint32 *lf_audit_words;
extern LfAuditPlace *lf_audit_places;

/* Counters per database; the last element is for those without an index. */
typedef struct LfAuditCounts
{
	Oid			database;		/* set by its worker alone */
	pg_atomic_uint64 logged;
	pg_atomic_uint64 written;
	pg_atomic_uint64 stalled_at;	/* heartbeat at the last time-out */
} LfAuditCounts;

#define LF_NEVER_STALLED PG_UINT64_MAX

extern LfAuditCounts *lf_audit_counts(int database);

/* Worker, at its start: an index that changed its database counts anew. */
extern void lf_audit_counts_begin(int database);

extern int64 lf_audit_record_id(void);
extern void lf_audit_record_fill(LfRecord *record, const LfRejection *rejection);
extern const char *lf_audit_action_name(LfAuditAction action);

/* The record as one line of the server log; error: NULL when out of time. */
extern void lf_audit_log(const LfRecord *record, const char *error);

/*
 * writer.c.  Inserts in the caller's transaction, with the table locked.  What
 * cannot be inserted goes to the server log and is marked in failed[]; a record
 * that cannot be inserted raises nothing.
 */
extern void lf_audit_insert(LfRecord *const *records, int count, bool *failed);

/* The record as a row of rejected_writes. */
#define LF_AUDIT_COLUMNS		20
#define LF_AUDIT_COLUMN_REASON	3	/* from 0 */

extern void lf_audit_record_values(const LfRecord *record, Datum *values, bool *nulls);

/* observe.c: is there something of this database to be written? */
extern bool lf_audit_observed_any(void);

static inline uint32
lf_audit_word(int slot)
{
	return pg_atomic_read_u32(&lf_audit_words[slot]);
}

/* A step that another process may prevent; a full barrier. */
static inline bool
lf_audit_try_step(int slot, uint32 from, uint32 to)
{
	return pg_atomic_compare_exchange_u32(&lf_audit_words[slot], &from, to);
}

/* A step that is ours alone. */
static inline void
lf_audit_step(int slot, uint32 from, uint32 to)
{
	bool		done PG_USED_FOR_ASSERTS_ONLY = lf_audit_try_step(slot, from, to);

	Assert(done);
}

#endif							/* LF_AUDIT_PLACE_H */
