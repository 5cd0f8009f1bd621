/*
 * epoch_table.h
 *		The table lease_fence.epochs: which history each epoch belongs to; for
 *		epoch.c only.
 */
#ifndef LF_FENCE_EPOCH_TABLE_H
#define LF_FENCE_EPOCH_TABLE_H

/* A row of it; the last four are the facts by which a history is known. */
typedef struct LfEpoch
{
	int64		id;
	int64		floor;
	int64		system_identifier;
	int32		timeline;
	Oid			database;
	Oid			extension;
} LfEpoch;

/* The facts of here and now; id and floor are left alone. */
extern void lf_epoch_describe_present(LfEpoch *epoch);
extern bool lf_epoch_is_present(const LfEpoch *epoch);

/* The last one; false, and all zero: none ever began. */
extern bool lf_epoch_read_last(LfEpoch *epoch);

/* In a transaction, with an SPI connection of the caller's. */
extern void lf_epoch_insert(const LfEpoch *epoch, const char *reason);

#endif							/* LF_FENCE_EPOCH_TABLE_H */
