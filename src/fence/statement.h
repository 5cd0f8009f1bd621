/*
 * statement.h
 *		The statements of the guarded functions, prepared once per table and
 *		set of columns.
 */
#ifndef LF_FENCE_STATEMENT_H
#define LF_FENCE_STATEMENT_H

#include "executor/spi.h"
#include "fence/columns.h"

typedef enum LfStatementKind
{
	LF_STATEMENT_UPDATE,
	LF_STATEMENT_DECREMENT,
	LF_STATEMENT_INCREMENT,
	LF_STATEMENT_INSERT,
	LF_STATEMENT_DELETE,
	LF_STATEMENT_LOOK			/* is there such a row? */
} LfStatementKind;

typedef struct LfStatement
{
	LfStatementKind kind;
	Relation	relation;
	const LfColumns *key;		/* NULL: none (INSERT) */
	const LfColumns *changes;	/* UPDATE, INSERT */
	const LfColumns *expected;	/* NULL: none */
	AttrNumber	counter;		/* DECREMENT, INCREMENT: the column */
	Datum		amount;			/* of the counter's type */
	Datum		bound;			/* what the counter is compared with before */
	bool		bounded;		/* INCREMENT: is there a ceiling? */
} LfStatement;

/*
 * Runs it, with an SPI connection of the caller's.  How many rows (0 or 1); what
 * it returns is in SPI_tuptable: one column of jsonb (none if the caller may not
 * select any), the counter's value, or (LOOK) the row itself, in *selected NULL
 * then; if the caller may not select all of it, those columns of it which are in
 * *selected, in that order.
 *
 * Raises 22023 when the key's columns are not those of a unique index.
 */
extern uint64 lf_statement_run(const LfStatement *statement, Bitmapset **selected);

#endif							/* LF_FENCE_STATEMENT_H */
