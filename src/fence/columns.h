/*
 * columns.h
 *		Values for a table's columns, out of a caller's JSON.
 *
 * Column names are looked up, values go through their type's input function:
 * nothing of a caller's text ever becomes SQL.
 */
#ifndef LF_FENCE_COLUMNS_H
#define LF_FENCE_COLUMNS_H

#include "utils/jsonb.h"
#include "utils/rel.h"

/* In the order of attribute numbers. */
typedef struct LfColumns
{
	int			count;
	AttrNumber *numbers;
	Datum	   *values;
	bool	   *nulls;
} LfColumns;

/*
 * compared: the values are for comparisons only, of the base type where the
 * column has a domain, and not rounded to the column's digits; otherwise they are
 * as an assignment makes them.  Raises 22023 naming argument and column: not an object, no such column, a
 * system or dropped one; and the type's own error for a bad value.
 */
extern void lf_columns_of_json(Relation relation, Jsonb *object,
							   const char *argument, bool compared,
							   LfColumns *columns);

/*
 * A row's key: a JSON object when the text begins with {, else the bare value of
 * a primary key of one column.  No column may be NULL.
 */
extern void lf_columns_of_key(Relation relation, const char *key, LfColumns *columns);

extern bool lf_columns_include(const LfColumns *columns, AttrNumber number);

#endif							/* LF_FENCE_COLUMNS_H */
