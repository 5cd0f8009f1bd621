/*
 * table.h
 *		Writing to our own tables below the level of privileges and triggers,
 *		from a backend, within its transaction.
 */
#ifndef LF_BASE_TABLE_H
#define LF_BASE_TABLE_H

#include "postgres_ext.h"

/* Inserts one row, with its index entries; 23505 as any other. */
extern void lf_table_insert(Oid relation, Datum *values, bool *nulls);

#endif							/* LF_BASE_TABLE_H */
