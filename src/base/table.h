/*
 * table.h
 *		Writing rows to our own tables, below the level of privileges.
 */
#ifndef LF_BASE_TABLE_H
#define LF_BASE_TABLE_H

#include "postgres_ext.h"

typedef struct LfTableWriter LfTableWriter;

/*
 * Rows for one table, with their index entries, in the caller's transaction and
 * memory context.  23505 as any other.
 *
 * open: count columns are ours, further ones that a DBA has added have their
 * defaults.  triggers says whether his triggers fire, foreign keys among them (but
 * no transition tables); in a backend they would be run by the writer.  add: false
 * if a trigger would not have the row; what values points to need last only for
 * the call.
 */
extern LfTableWriter *lf_table_open(Oid relation, int count, bool triggers);
extern bool lf_table_add(LfTableWriter *writer, Datum *values, bool *nulls);
extern void lf_table_close(LfTableWriter *writer);

/* One row, without triggers. */
extern void lf_table_insert(Oid relation, int count, Datum *values, bool *nulls);

#endif							/* LF_BASE_TABLE_H */
