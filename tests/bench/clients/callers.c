/*
 * callers.c
 *		Callers that lock and unlock as fast as they can, each a thread with a
 *		connection of its own.
 *
 *		callers CONNECT-INFO CALLERS SECONDS own|one|items DATABASE WAY
 *
 * own: each has a name of its own; one: all want the same; items: each job locks
 * one of 100 items at random, and takes one off its stock in DATABASE.  Prints
 * one line of JSON: jobs a second, how many of the callers did one while the clock
 * ran, latencies in µs, all jobs there were (with those of the warm-up), and how often
 * two were inside at once, or a token was not higher than the one before.
 *
 * Each caller has done a job before any counts, then they run for a moment, and
 * only then the clock starts.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "callers.h"

#define ITEMS		100
#define WARM_UP		200000		/* µs */

typedef struct Caller
{
	pthread_t	thread;
	int			number;
	unsigned int seed;
	atomic_long done;
	long		done_before;	/* the clock started */
	uint32_t   *latencies;		/* µs, of those that the clock saw */
	size_t		count;
	size_t		room;
} Caller;

static const Way *way;
static const char *info;
static const char *database;
static const char *mode;
static atomic_int ready;
static atomic_bool counting;
static atomic_bool stopping;
static atomic_int inside;
static atomic_long last_token;
static atomic_long violations;

void
die(const char *format,...)
{
	va_list		arguments;

	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

static double
now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* Only where all want the same is there one holder at a time. */
void
entered(const Job *job, int64_t token)
{
	if (strcmp(job->name, "one") != 0)
		return;
	if (atomic_fetch_add(&inside, 1) != 0)
		violations++;
	if (token != 0 && token <= atomic_exchange(&last_token, token))
		violations++;
}

void
leaving(const Job *job)
{
	if (strcmp(job->name, "one") == 0)
		atomic_fetch_sub(&inside, 1);
}

static void
note(Caller *caller, double seconds)
{
	if (caller->count == caller->room)
	{
		caller->room = caller->room == 0 ? 1024 : caller->room * 2;
		caller->latencies = realloc(caller->latencies, caller->room * sizeof(uint32_t));
	}
	caller->latencies[caller->count++] = (uint32_t) (seconds * 1e6);
}

static void
do_job(Caller *caller, void *state, const char *name)
{
	char		text[32];
	Job			job = {.caller = caller->number, .name = name};

	if (strcmp(mode, "items") == 0)
	{
		job.item = 1 + rand_r(&caller->seed) % ITEMS;
		snprintf(text, sizeof(text), "item:%d", job.item);
		job.name = text;
	}
	way_run(way, state, &job);
	atomic_fetch_add(&caller->done, job.done);
}

static void *
call(void *argument)
{
	Caller	   *caller = argument;
	void	   *state = way_open(way, info, database, strcmp(mode, "items") == 0, caller->number);
	char		name[32];

	snprintf(name, sizeof(name), "own:%d", caller->number);
	do_job(caller, state, name);
	if (strcmp(mode, "one") == 0)
		strcpy(name, "one");
	ready++;
	while (!stopping)
	{
		double		start = now();

		do_job(caller, state, name);
		if (counting)
			note(caller, now() - start);
	}
	return NULL;
}

static long
sum_done(const Caller *callers, int count)
{
	long		sum = 0;

	for (int i = 0; i < count; i++)
		sum += callers[i].done;
	return sum;
}

/* While the clock ran: how often, and by how many of the callers. */
static long
sum_counted(const Caller *callers, int count, int *served)
{
	long		sum = 0;

	*served = 0;
	for (int i = 0; i < count; i++)
	{
		long		jobs = callers[i].done - callers[i].done_before;

		sum += jobs;
		*served += jobs > 0;
	}
	return sum;
}

static int
compare(const void *a, const void *b)
{
	uint32_t	left = *(const uint32_t *) a;
	uint32_t	right = *(const uint32_t *) b;

	return left < right ? -1 : left > right;
}

static uint32_t *
all_latencies(const Caller *callers, int count, size_t *total)
{
	uint32_t   *all;

	*total = 0;
	for (int i = 0; i < count; i++)
		*total += callers[i].count;
	all = malloc((*total + 1) * sizeof(uint32_t));
	*total = 0;
	for (int i = 0; i < count; i++)
	{
		if (callers[i].count > 0)
			memcpy(all + *total, callers[i].latencies, callers[i].count * sizeof(uint32_t));
		*total += callers[i].count;
	}
	qsort(all, *total, sizeof(uint32_t), compare);
	return all;
}

static void
report(const Caller *callers, int count, double rate, int served)
{
	size_t		total;
	uint32_t   *all = all_latencies(callers, count, &total);

	printf("{\"rate\": %.3f, \"served\": %d, \"p50\": %u, \"p99\": %u, \"jobs\": %ld, \"violations\": %ld}\n",
		   rate, served, total > 0 ? all[total / 2] : 0, total > 0 ? all[total * 99 / 100] : 0,
		   sum_done(callers, count), (long) violations);
}

int
main(int argc, char **argv)
{
	Caller	   *callers;
	int			count;
	int			served;
	long		counted;
	double		start;
	double		end;

	if (argc != 7)
		die("callers CONNECT-INFO CALLERS SECONDS own|one|items DATABASE WAY");
	info = argv[1];
	count = atoi(argv[2]);
	mode = argv[4];
	database = argv[5];
	way = way_find(argv[6]);
	callers = calloc(count, sizeof(Caller));
	for (int i = 0; i < count; i++)
	{
		callers[i].number = i;
		callers[i].seed = (unsigned int) time(NULL) * 1000 + i;
		if (pthread_create(&callers[i].thread, NULL, call, &callers[i]) != 0)
			die("no thread");
	}
	while (ready < count)
		usleep(1000);
	usleep(WARM_UP);
	counting = true;
	start = now();
	for (int i = 0; i < count; i++)
		callers[i].done_before = callers[i].done;
	usleep((useconds_t) (atof(argv[3]) * 1e6));
	end = now();
	counted = sum_counted(callers, count, &served);
	counting = false;
	stopping = true;
	for (int i = 0; i < count; i++)
		pthread_join(callers[i].thread, NULL);
	report(callers, count, counted / (end - start), served);
	return 0;
}
