/*
 * value.h
 *		A column's value as part of a resource's name.
 */
#ifndef LF_FENCE_VALUE_H
#define LF_FENCE_VALUE_H

#include "base/resource.h"

/* How a value is rendered. */
typedef enum LfValueKind
{
	LF_VALUE_NONE,				/* not at all */
	LF_VALUE_INT2,
	LF_VALUE_INT4,
	LF_VALUE_INT8,
	LF_VALUE_OID,
	LF_VALUE_BOOL,
	LF_VALUE_UUID,
	LF_VALUE_ENUM,
	LF_VALUE_TEXT,
	LF_VALUE_NAME,
	LF_VALUE_DATE,
	LF_VALUE_TIMESTAMP,
	LF_VALUE_TIMESTAMPTZ
} LfValueKind;

/* LF_VALUE_NONE when the type is not allowed in names. */
extern LfValueKind lf_value_kind(Oid type);

/* Adds a value to a name; false when it is too long. */
extern bool lf_value_append(LfResource *out, LfValueKind kind, Datum value);

/* The same of bytes as they are. */
static inline bool
lf_value_append_bytes(LfResource *out, const char *bytes, Size length)
{
	if (length > (Size) (LF_RESOURCE_MAX - out->length))
		return false;
	memcpy(out->name + out->length, bytes, length);
	out->length += (uint16) length;
	return true;
}

#endif							/* LF_FENCE_VALUE_H */
