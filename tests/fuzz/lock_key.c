/*
 * lock_key.c
 *		Templates of lock keys, and the keys made of them.
 *
 * The input: a byte with the length of a resource's name, the name, a template.
 */
#include "postgres.h"

#include "coordinator/lock_key.h"
#include "stubs.h"

static void
check_keys(const char *tmpl, const LfResource *resource)
{
	char	   *key = palloc(LF_LOCK_KEY_MAX);
	char	   *other_key = palloc(LF_LOCK_KEY_MAX);
	LfResource	other = *resource;
	int			length = lf_lock_key_render(tmpl, resource, key);
	int			other_length;

	FUZZ_CHECK(length >= -1 && length <= LF_LOCK_KEY_MAX);
	if (length < 0)
		return;
	FUZZ_CHECK(length >= resource->length);
	(void) lf_lock_key_is_none(key, length);

	/* another resource, another lock */
	other.name[other.length / 2] ^= 1;
	other_length = lf_lock_key_render(tmpl, &other, other_key);
	FUZZ_CHECK(other_length == length);
	FUZZ_CHECK(memcmp(key, other_key, length) != 0);
}

int
LLVMFuzzerTestOneInput(const uint8 *data, size_t size)
{
	LfResource	resource = {.database = 1};
	char	   *volatile tmpl;

	if (size < 2)
		return 0;
	resource.length = Min(Max(data[0], 1), size - 1);
	memcpy(resource.name, data + 1, resource.length);
	tmpl = fuzz_text(data + 1 + resource.length, size - 1 - resource.length);

	PG_TRY();
	{
		lf_lock_key_check(tmpl);
		check_keys(tmpl, &resource);
	}
	PG_CATCH();
	{
		/* refused: also when it is rendered, unless it is only not wanted */
	}
	PG_END_TRY();
	fuzz_forget();
	return 0;
}
