/*
 * redis_script.h
 *		The scripts that Redis runs for us: src/lua/, built into the library.
 */
#ifndef LF_COORDINATOR_REDIS_SCRIPT_H
#define LF_COORDINATOR_REDIS_SCRIPT_H

#include "coordinator/coordinator.h"

typedef struct LfRedisScript
{
	const char *text;
	char		sha[41];		/* hexadecimal SHA-1 of the text, for EVALSHA */
} LfRedisScript;

/* In a transaction (hashing needs its resource owner), before lf_redis_script. */
extern void lf_redis_script_prepare(void);

extern const LfRedisScript *lf_redis_script(LfLockCall call);

/*
 * What a script answered, in integers: state and left.  False if that is no
 * answer of a script of ours.
 */
extern bool lf_redis_script_answer(long long state, long long left_ms,
								   LfLockAnswer *answer);

#endif							/* LF_COORDINATOR_REDIS_SCRIPT_H */
