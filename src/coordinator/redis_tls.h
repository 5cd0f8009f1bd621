/*
 * redis_tls.h
 *		TLS on a connection to Redis, where hiredis has it.
 */
#ifndef LF_COORDINATOR_REDIS_TLS_H
#define LF_COORDINATOR_REDIS_TLS_H

#include <hiredis/hiredis.h>

#include "coordinator/redis_options.h"

/*
 * Starts TLS on a connected context; the handshake goes on while it is read and
 * written.  The server's certificate must be one for the host of the options.
 * NULL, or what is wrong.  *session lives as long as the context.
 */
extern const char *lf_redis_tls_start(redisContext *context, const LfRedisOptions *options,
									  void **session);

/*
 * Before each read and write: what another connection left in the library's list
 * of errors would be taken for this one's.
 */
extern void lf_redis_tls_forget_errors(void);

/* Why a handshake failed; NULL: not for anything that TLS knows of. */
extern const char *lf_redis_tls_problem(void *session);

#endif							/* LF_COORDINATOR_REDIS_TLS_H */
