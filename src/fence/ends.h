/*
 * ends.h
 *		Ends of grants, written into the table by the one worker.
 */
#ifndef LF_FENCE_ENDS_H
#define LF_FENCE_ENDS_H

#include "fence/entry.h"

/*
 * Writes ends, of different tokens; those that the table does not have yet are
 * counted, and told to who listens.  Inside a transaction and SPI, with the table
 * locked.
 */
extern void lf_ends_update(const LfEnd *ends, int count);

/*
 * taken is told of each end before it is written, once at least: one that is
 * written is not found any more.
 */
extern void lf_ends_install(void (*taken) (const LfEnd *end));

/*
 * Writes a batch of ends of grants into the table: how many; -1 if there are
 * some and none could be written now.  Outside a transaction.  write_for: one
 * batch after the other while there are more than one holds, for so many
 * microseconds.
 */
extern int	lf_ends_write(void);
extern int	lf_ends_write_for(int64 longest);

#endif							/* LF_FENCE_ENDS_H */
