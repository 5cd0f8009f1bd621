/*
 * lock_key.c
 *		Keys of locks: their templates, and how these are rendered.
 *
 * Runs in backends.  A Redis hash tag is written {{{resource}}}.
 */
#include "postgres.h"

#include "coordinator/lock_key.h"

#define RESOURCE "{resource}"

typedef enum Piece
{
	PIECE_END,
	PIECE_BYTE,
	PIECE_RESOURCE,
	PIECE_BAD					/* a brace that is neither */
} Piece;

/* The next piece of a template; *cursor then stands behind it. */
static Piece
next_piece(const char **cursor, char *byte)
{
	const char *in = *cursor;

	*byte = *in;
	if (*in == '\0')
		return PIECE_END;
	if (*in != '{' && *in != '}')
	{
		*cursor = in + 1;
		return PIECE_BYTE;
	}
	if (in[1] == *in)
	{
		*cursor = in + 2;
		return PIECE_BYTE;
	}
	if (strncmp(in, RESOURCE, strlen(RESOURCE)) != 0)
		return PIECE_BAD;
	*cursor = in + strlen(RESOURCE);
	return PIECE_RESOURCE;
}

static int
count_resources(const char *tmpl)
{
	const char *cursor = tmpl;
	int			count = 0;
	char		byte;
	Piece		piece;

	while ((piece = next_piece(&cursor, &byte)) != PIECE_END)
	{
		if (piece == PIECE_BAD)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("argument \"lock_key\" is not allowed: \"%s\"", tmpl),
					 errdetail("It has a brace that is not understood: \"%s\".", cursor),
					 errhint("Write {resource} where the resource's name stands, and a brace that is text as {{ or }}.")));
		if (piece == PIECE_RESOURCE)
			count++;
	}
	return count;
}

/* Whatever the resource: one of a single byte stands for all. */
static void
refuse_no_lock(const char *tmpl)
{
	LfResource	any;
	char		key[LF_LOCK_KEY_MAX];
	const char *pattern;

	any.length = 1;
	any.name[0] = '\001';
	pattern = lf_lock_key_is_none(key, lf_lock_key_render(tmpl, &any, key));
	if (pattern != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"lock_key\" is not allowed: \"%s\"", tmpl),
				 errdetail("Keys like \"%s\" are what libraries keep beside their locks.", pattern),
				 errhint("Name the key of the lock itself.")));
}

void
lf_lock_key_check(const char *tmpl)
{
	if (tmpl[0] == '\0' || strlen(tmpl) > LF_LOCK_KEY_TEMPLATE_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"lock_key\" has %zu bytes", strlen(tmpl)),
				 errhint("It has 1 to %d.", LF_LOCK_KEY_TEMPLATE_MAX)));
	if (count_resources(tmpl) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"lock_key\" is not allowed: \"%s\"", tmpl),
				 errdetail("All resources would share one lock."),
				 errhint("Write {resource} where the resource's name stands.")));
	refuse_no_lock(tmpl);
}

int
lf_lock_key_render(const char *tmpl, const LfResource *resource, char *key)
{
	const char *cursor = tmpl;
	int			length = 0;
	char		byte;
	Piece		piece;

	while ((piece = next_piece(&cursor, &byte)) != PIECE_END)
	{
		const char *bytes = piece == PIECE_RESOURCE ? resource->name : &byte;
		int			more = piece == PIECE_RESOURCE ? resource->length : 1;

		if (piece == PIECE_BAD)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the lock key \"%s\" of a profile is not a template", tmpl),
					 errhint("Drop the profile, and add it again.")));
		if (length + more > LF_LOCK_KEY_MAX)
			return -1;
		memcpy(key + length, bytes, more);
		length += more;
	}
	return length;
}

static bool
contains(const char *key, int length, const char *part)
{
	int			part_length = strlen(part);

	for (int i = 0; i + part_length <= length; i++)
	{
		if (memcmp(key + i, part, part_length) == 0)
			return true;
	}
	return false;
}

const char *
lf_lock_key_is_none(const char *key, int length)
{
	static const char *const prefixes[] = {
		"redisson_lock_token:", "redisson_unlock_latch:", "redisson_lock_queue:",
		"redisson_lock_timeout:", "lock-signal:"
	};

	for (int i = 0; i < lengthof(prefixes); i++)
	{
		if (length >= (int) strlen(prefixes[i]) &&
			memcmp(key, prefixes[i], strlen(prefixes[i])) == 0)
			return prefixes[i];
	}
	return contains(key, length, ":rwlock_timeout:") ? ":rwlock_timeout:" : NULL;
}
