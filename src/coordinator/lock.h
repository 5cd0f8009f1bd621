/*
 * lock.h
 *		A lock as its lock service knows it: where, under which key, in what shape.
 */
#ifndef LF_COORDINATOR_LOCK_H
#define LF_COORDINATOR_LOCK_H

#include "base/resource.h"

typedef enum LfShape
{
	LF_SHAPE_STRING,			/* a string, the holder */
	LF_SHAPE_REDISSON			/* a hash: field holder, value count */
} LfShape;

#define LF_LOCK_KEY_MAX 1024

/*
 * Ends with its key: may be allocated only as far as that goes
 * (lf_lock_size), so it is never assigned as a whole.
 */
typedef struct LfLock
{
	Oid			server;			/* invalid: no lock service has it */
	LfShape		shape;
	bool		watch;			/* listen to events about it */
	uint16		key_length;
	char		key[LF_LOCK_KEY_MAX];	/* bytes, not terminated */
} LfLock;

#define LF_LOCK_VALUE_MAX (LF_HOLDER_MAX + 18)

/*
 * The holder's bytes, and for a lock of our own a nonce.  May be allocated only as
 * far as these go, so it is never assigned as a whole, but by lf_lock_value_copy.
 */

typedef struct LfLockValue
{
	uint16		length;
	char		bytes[LF_LOCK_VALUE_MAX];
} LfLockValue;

static inline Size
lf_lock_size(const LfLock *lock)
{
	return offsetof(LfLock, key) + lock->key_length;
}

static inline LfLock *
lf_lock_copy(MemoryContext context, const LfLock *lock)
{
	return memcpy(MemoryContextAlloc(context, lf_lock_size(lock)), lock, lf_lock_size(lock));
}

static inline bool
lf_lock_equal(const LfLock *a, const LfLock *b)
{
	return a->server == b->server && a->shape == b->shape &&
		a->key_length == b->key_length && memcmp(a->key, b->key, a->key_length) == 0;
}

static inline bool
lf_lock_value_equal(const LfLockValue *a, const LfLockValue *b)
{
	return a->length == b->length && memcmp(a->bytes, b->bytes, a->length) == 0;
}

static inline Size
lf_lock_value_size(const LfLockValue *value)
{
	return offsetof(LfLockValue, bytes) + value->length;
}

static inline void
lf_lock_value_copy(LfLockValue *to, const LfLockValue *from)
{
	memcpy(to, from, lf_lock_value_size(from));
}

/*
 * The value of a lock of our own is unique per acquisition: a release that is
 * stuck in a broken connection must not delete the same holder's next lease.
 * nonce 0: a lock that others took, its value is the holder.
 */
static inline void
lf_lock_value(LfLockValue *value, const LfHolder *holder, uint64 nonce)
{
	memcpy(value->bytes, holder->bytes, holder->length);
	value->length = holder->length;
	if (nonce == 0)
		return;
	snprintf(value->bytes + value->length, 18, ":%016llx", (unsigned long long) nonce);
	value->length += 17;
}

#endif							/* LF_COORDINATOR_LOCK_H */
