/*
 * redis_options.h
 *		Options of servers of lease_fence_redis and of their user mappings.
 */
#ifndef LF_COORDINATOR_REDIS_OPTIONS_H
#define LF_COORDINATOR_REDIS_OPTIONS_H

#define LF_REDIS_OPTION_LENGTH 256

/* No pointers, and zero beyond each text: two can be compared byte by byte. */
typedef struct LfRedisOptions
{
	char		name[NAMEDATALEN];	/* of the server */
	char		host[LF_REDIS_OPTION_LENGTH];
	int			port;
	char		socket[LF_REDIS_OPTION_LENGTH]; /* empty: host and port */
	int			db;
	int			connect_timeout;	/* ms */
	int			command_timeout;	/* ms */
	bool		tls;
	char		ca_file[MAXPGPATH]; /* empty: the system's */
	bool		set_events;		/* turn keyspace events on, if they are off */
	char		username[LF_REDIS_OPTION_LENGTH];
	char		password[LF_REDIS_OPTION_LENGTH * 2];
} LfRedisOptions;

#define LF_REDIS_WRAPPER "lease_fence_redis"

/* In a transaction: is it a server of our foreign data wrapper? */
extern bool lf_redis_options_own(Oid server);

/*
 * In a transaction.  False if there is no such server of lease_fence_redis, or
 * none that this library can use: then it warned.  The user mapping is that of
 * the server's owner, else that of PUBLIC.
 */
extern bool lf_redis_options_read(Oid server, LfRedisOptions *options);

#endif							/* LF_COORDINATOR_REDIS_OPTIONS_H */
