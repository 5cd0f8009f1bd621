/*
 * protectable.h
 *		What protect() is asked to guard, and whether it can be.
 */
#ifndef LF_FENCE_PROTECTABLE_H
#define LF_FENCE_PROTECTABLE_H

#include "storage/lockdefs.h"

/* What protect() was asked for, and what it found. */
typedef struct LfProtection
{
	Oid			relation;
	const char *table;			/* qualified and quoted */
	const char *resource;
	const char *token_column;
	const char *mode;
	const char *lapsed;
	const char *inserts;

	bool		column_exists;
	bool		column_nullable;
	bool		column_default; /* it has the default 0 */
	char	   *old_trigger;	/* a guard under another name, or NULL */
} LfProtection;

/*
 * Everything that can be wrong, before anything is changed.  Raises what it is;
 * otherwise fills in what was found.  The caller has locked the table in this
 * mode; its partitions are locked alike, until the transaction's end.
 */
extern void lf_protectable_check(LfProtection *protection, LOCKMODE lockmode);

#endif							/* LF_FENCE_PROTECTABLE_H */
