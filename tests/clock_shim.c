/*
 * clock_shim.c
 *		A wall clock that a test can move while a program runs.
 *
 * Preloaded into redis-server (LD_PRELOAD): the file that CLOCK_SHIM_FILE names
 * has the seconds to add, as a 64-bit integer.  The monotonic clocks stay as they
 * are.  It asks the kernel itself: looking up the original functions allocates
 * memory, and redis-server's allocator asks for the time while it starts.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long long *seconds_to_add;

__attribute__((constructor)) static void
map_file(void)
{
	const char *name = getenv("CLOCK_SHIM_FILE");
	int			fd = name ? open(name, O_RDONLY) : -1;
	void	   *page = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(long long), PROT_READ, MAP_SHARED, fd, 0);

	if (page != MAP_FAILED)
		seconds_to_add = page;
}

int
clock_gettime(clockid_t clock, struct timespec *at)
{
	int			result = syscall(SYS_clock_gettime, clock, at);

	if (result == 0 && seconds_to_add &&
		(clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		at->tv_sec += *seconds_to_add;
	return result;
}

int
gettimeofday(struct timeval *restrict at, void *restrict zone)
{
	struct timespec now;

	(void) zone;
	clock_gettime(CLOCK_REALTIME, &now);
	at->tv_sec = now.tv_sec;
	at->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *at)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (at)
		*at = now.tv_sec;
	return now.tv_sec;
}
