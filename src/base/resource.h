/*
 * resource.h
 *		The name of a resource: 1 to 512 bytes, within one database.
 */
#ifndef LF_BASE_RESOURCE_H
#define LF_BASE_RESOURCE_H

#include "base/compat.h"
#include "common/hashfn.h"

#define LF_RESOURCE_MAX 512
#define LF_HOLDER_MAX	255

typedef struct LfResource
{
	Oid			database;
	uint16		length;
	char		name[LF_RESOURCE_MAX];	/* not terminated */
} LfResource;

typedef struct LfHolder
{
	uint8		length;
	char		bytes[LF_HOLDER_MAX];
} LfHolder;

static inline uint32
lf_resource_hash(const LfResource *resource)
{
	return hash_bytes((const unsigned char *) resource->name, resource->length)
		^ murmurhash32(resource->database);
}

/* A name as our own tables have it, of the database that we are in. */
static inline void
lf_resource_of_text(LfResource *resource, const text *name)
{
	resource->database = MyDatabaseId;
	resource->length = Min(VARSIZE_ANY_EXHDR(name), LF_RESOURCE_MAX);
	memcpy(resource->name, VARDATA_ANY(name), resource->length);
}

static inline bool
lf_resource_equal(const LfResource *a, const LfResource *b)
{
	return a->database == b->database && a->length == b->length &&
		memcmp(a->name, b->name, a->length) == 0;
}

static inline bool
lf_holder_equal(const LfHolder *a, const LfHolder *b)
{
	return a->length == b->length && memcmp(a->bytes, b->bytes, a->length) == 0;
}

#endif							/* LF_BASE_RESOURCE_H */
