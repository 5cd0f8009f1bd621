/*
 * redis_address.h
 *		Finding a host's addresses without waiting.
 */
#ifndef LF_COORDINATOR_REDIS_ADDRESS_H
#define LF_COORDINATOR_REDIS_ADDRESS_H

#include <netdb.h>

/* One look-up: zero it once; it may outlive who wanted it. */
typedef struct LfAddressLookup
{
	struct LfAddressQuery *query;	/* under way; NULL: none */
	struct addrinfo *found;
} LfAddressLookup;

typedef enum LfAddressState
{
	LF_ADDRESS_FOUND,			/* in lookup->found */
	LF_ADDRESS_LATER,
	LF_ADDRESS_FAILED
} LfAddressState;

/*
 * Starts a look-up, or looks how it goes; *problem says why it failed.  Found
 * addresses belong to the look-up until its end.
 */
extern LfAddressState lf_address_look(LfAddressLookup *lookup, const char *host,
									  int port, const char **problem);

/* Of no interest any more. */
extern void lf_address_end(LfAddressLookup *lookup);

#endif							/* LF_COORDINATOR_REDIS_ADDRESS_H */
