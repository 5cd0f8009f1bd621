/*
 * stubs.h
 *		What a fuzz target finds in place of a server.
 *
 * A target runs the extension's own files, with sanitizers and assertions, and
 * stubs.c for what these call of PostgreSQL.  What has no stub must not be
 * called: it is linked to the address 0.
 */
#ifndef LF_FUZZ_STUBS_H
#define LF_FUZZ_STUBS_H

#include "postgres.h"

#include "base/compat.h"

/* Says what does not hold, and ends the fuzzer with the input that showed it. */
#define FUZZ_CHECK(condition) \
	((condition) ? (void) 0 : ExceptionalCondition_of_fuzz(#condition, __FILE__, __LINE__))

pg_noreturn extern void ExceptionalCondition_of_fuzz(const char *condition,
													 const char *file, int line);

/* Everything that was palloc'd since the last call is freed. */
extern void fuzz_forget(void);

/* The input as a C string, palloc'd: up to its first zero byte. */
extern char *fuzz_text(const uint8 *data, size_t size);

extern int	LLVMFuzzerTestOneInput(const uint8 *data, size_t size);

#endif							/* LF_FUZZ_STUBS_H */
