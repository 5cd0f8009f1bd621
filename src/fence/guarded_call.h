/*
 * guarded_call.h
 *		One call of a guarded function, from its arguments to its answer; for
 *		guarded.c and guarded_call.c only.
 */
#ifndef LF_FENCE_GUARDED_CALL_H
#define LF_FENCE_GUARDED_CALL_H

#include "commands/trigger.h"
#include "fence/operation.h"
#include "fence/statement.h"
#include "fmgr.h"

typedef struct LfGuardedCall
{
	FunctionCallInfo fcinfo;
	Relation	relation;
	Trigger    *guard;
	int64		token;			/* 0: none was given */
	LfStatement statement;
	LfColumns	key;
	LfColumns	changes;
	LfColumns	expected;
	bool		impossible;		/* no row can meet the limit */
	LfOperation operation;
	const char *outcome;
	Datum		answer;			/* jsonb, or numeric for the counters */
	bool		has_answer;
} LfGuardedCall;

/* Takes relation, argument 0, which must be a guarded table: opens and locks it. */
extern void lf_guarded_call_begin(LfGuardedCall *call, FunctionCallInfo fcinfo,
								  LfStatementKind kind);

/*
 * Each reads the argument with that number into the call, and raises 22023, or
 * what the value's type raises, when it is no good.  key comes before changes and
 * counter, which must not touch it.  changes: argument is its name.  counter: the
 * numbers of column_name, amount, and floor or ceiling; down: it is decremented.
 */
extern void lf_guarded_call_token(LfGuardedCall *call, int number);
extern void lf_guarded_call_key(LfGuardedCall *call, int number);
extern void lf_guarded_call_expected(LfGuardedCall *call, int number);
extern void lf_guarded_call_changes(LfGuardedCall *call, int number, const char *argument);
extern void lf_guarded_call_counter(LfGuardedCall *call, int column, int amount, int limit,
									bool down);

/* An argument as its type's output function has it, or NULL. */
extern char *lf_guarded_call_text(LfGuardedCall *call, int number, PGFunction output);

#endif							/* LF_FENCE_GUARDED_CALL_H */
