/*
 * stamp.h
 *		The stamps that guarded tables hold.
 */
#ifndef LF_FENCE_STAMP_H
#define LF_FENCE_STAMP_H

/*
 * No token can be above this for a year to come: a stamp that is was never
 * minted anywhere.
 */
extern int64 lf_stamp_plausible_max(void);

/*
 * The largest stamp up to that one in a guarded table, 0: none, or the table
 * cannot be read now.  Only ever tries its locks.  Reads it as the table's owner
 * with the rights of a security-restricted operation, since whatever the table
 * does when it is read (row security, virtual columns) is its owner's code; what
 * that raises is raised, what it sets is set back.  With an SPI connection of the
 * caller's.
 */
extern int64 lf_stamp_of_table(Oid relation, const char *column, int64 up_to);

/* The largest plausible one of all guarded tables; the same rules. */
extern int64 lf_stamp_largest(void);

#endif							/* LF_FENCE_STAMP_H */
