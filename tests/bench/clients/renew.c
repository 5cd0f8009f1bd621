/*
 * renew.c
 *		Renews many locks of a Redis as a careful client would: EVALSHA of
 *		compare-and-prolong, pipelined.
 *
 *		renew PORT LOCKS BATCH TTL-MILLISECONDS
 *
 * Takes LOCKS locks, then says "taken".  For each line that it reads it renews
 * all of them once, BATCH commands at a time, and says how many it renewed, and
 * how many seconds that took by the clock and of the processor.
 */
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static const char *script =
	"if redis.call('GET', KEYS[1]) == ARGV[1] then "
	"return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";

static redisContext *redis;
static char sha[41];

static void
fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, redis == NULL ? "" : redis->errstr);
	exit(1);
}

static redisReply *
next_reply(void)
{
	void	   *reply;

	if (redisGetReply(redis, &reply) != REDIS_OK)
		fail("no reply");
	if (((redisReply *) reply)->type == REDIS_REPLY_ERROR)
		fail(((redisReply *) reply)->str);
	return reply;
}

static void
append(int renew, int number, const char *ttl)
{
	char		key[32];
	char		value[32];

	snprintf(key, sizeof(key), "lock:%d", number);
	snprintf(value, sizeof(value), "holder:%016x", number);
	if (renew)
	{
		const char *argv[] = {"EVALSHA", sha, "1", key, value, ttl};

		redisAppendCommandArgv(redis, 6, argv, NULL);
	}
	else
	{
		const char *argv[] = {"SET", key, value, "NX", "PX", ttl};

		redisAppendCommandArgv(redis, 6, argv, NULL);
	}
}

/* How many were taken, or renewed. */
static int
all(int renew, int locks, int batch, const char *ttl)
{
	int			done = 0;

	for (int first = 0; first < locks; first += batch)
	{
		int			end = first + batch < locks ? first + batch : locks;

		for (int i = first; i < end; i++)
			append(renew, i, ttl);
		for (int i = first; i < end; i++)
		{
			redisReply *reply = next_reply();

			if (renew ? reply->integer == 1 : reply->type == REDIS_REPLY_STATUS)
				done++;
			freeReplyObject(reply);
		}
	}
	return done;
}

static double
now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec / 1e9;
}

static double
processor(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
		(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

int
main(int argc, char **argv)
{
	redisReply *reply;
	int			locks;
	int			batch;
	char		line[80];

	if (argc != 5)
		return 2;
	locks = atoi(argv[2]);
	batch = atoi(argv[3]);
	redis = redisConnect("127.0.0.1", atoi(argv[1]));
	if (redis == NULL || redis->err != 0)
		fail("could not connect");
	redisAppendCommand(redis, "SCRIPT LOAD %s", script);
	reply = next_reply();
	snprintf(sha, sizeof(sha), "%s", reply->str);
	freeReplyObject(reply);
	if (all(0, locks, batch, argv[4]) != locks)
		fail("locks are there already");
	printf("taken\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin) != NULL)
	{
		double		began = now();
		double		used = processor();
		int			done = all(1, locks, batch, argv[4]);

		printf("%d %.6f %.6f\n", done, now() - began, processor() - used);
		fflush(stdout);
	}
	redisFree(redis);
	return 0;
}
