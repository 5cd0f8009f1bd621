/*
 * statement_text.h
 *		The statements of the guarded functions: text and parameters.
 */
#ifndef LF_FENCE_STATEMENT_TEXT_H
#define LF_FENCE_STATEMENT_TEXT_H

#include "fence/statement.h"
#include "lib/stringinfo.h"
#include "nodes/bitmapset.h"

/* A statement while its text is written. */
typedef struct LfStatementWriter
{
	const LfStatement *statement;
	const char *alias;			/* of the table: no column's name */
	StringInfoData text;
	Oid		   *types;
	Datum	   *values;
	char	   *nulls;
	int			count;
} LfStatementWriter;

/* All but the text: a plan that is kept needs the parameters only. */
extern void lf_statement_writer_init(LfStatementWriter *writer, const LfStatement *statement);

/*
 * The text.  selectable: the columns that the caller may select, and 0 beside
 * them, so that none at all is not NULL; NULL: he may select the whole row.
 */
extern void lf_statement_write(LfStatementWriter *writer, const Bitmapset *selectable);

#endif							/* LF_FENCE_STATEMENT_TEXT_H */
