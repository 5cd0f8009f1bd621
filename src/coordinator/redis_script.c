/*
 * redis_script.c
 *		The scripts that Redis runs for us.
 */
#include "postgres.h"

#include "common/cryptohash.h"
#include "common/sha1.h"
#include "coordinator/redis_script.h"
#include "coordinator/redis_script_text.h"	/* made of src/lua/ by the Makefile */

/* Longer than any lease; far from what overflows a clock or a timestamp. */
#define LONGEST_MS (INT64CONST(365) * 24 * 60 * 60 * 1000)

static LfRedisScript scripts[] = {
	[LF_LOCK_TAKE] = {acquire_lua},
	[LF_LOCK_RENEW] = {renew_lua},
	[LF_LOCK_CHECK] = {check_lua},
	[LF_LOCK_VERIFY] = {check_lua},
	[LF_LOCK_RELEASE] = {release_lua},
};

static void
sha1_of_text(const char *text, char *hexadecimal)
{
	uint8		digest[SHA1_DIGEST_LENGTH];
	pg_cryptohash_ctx *context = pg_cryptohash_create(PG_SHA1);

	if (pg_cryptohash_init(context) < 0 ||
		pg_cryptohash_update(context, (const uint8 *) text, strlen(text)) < 0 ||
		pg_cryptohash_final(context, digest, sizeof(digest)) < 0)
	{
		pg_cryptohash_free(context);
		elog(ERROR, "could not compute the SHA-1 of a script");
	}
	pg_cryptohash_free(context);

	for (int i = 0; i < SHA1_DIGEST_LENGTH; i++)
		snprintf(hexadecimal + 2 * i, 3, "%02x", digest[i]);
}

void
lf_redis_script_prepare(void)
{
	for (int i = 0; i < lengthof(scripts); i++)
	{
		if (scripts[i].sha[0] == '\0')
			sha1_of_text(scripts[i].text, scripts[i].sha);
	}
}

const LfRedisScript *
lf_redis_script(LfLockCall call)
{
	Assert(scripts[call].sha[0] != '\0');
	return &scripts[call];
}

bool
lf_redis_script_answer(long long state, long long left_ms, LfLockAnswer *answer)
{
	if (state < LF_LOCK_HELD || state > LF_LOCK_NO_GRANT || left_ms < -1)
		return false;
	if (state == LF_LOCK_HELD && left_ms < 0)
		return false;

	answer->state = (LfLockState) state;
	answer->left = left_ms < 0 ? -1 : Min(left_ms, LONGEST_MS) * 1000;
	answer->problem[0] = '\0';
	return true;
}
