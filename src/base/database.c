/*
 * database.c
 *		One shared place per database that has, or wants, a worker.
 *
 * Sessions say that they want a worker, the launcher starts it, the worker
 * attaches to the place and detaches at its exit.  Whatever should be is
 * written in the place and latches are only hints: who comes late, or comes
 * back, finds all there is to know.
 *
 * What must end well:
 *	- a session wants a worker that is just retiring: the worker retires only if
 *	  the count of wants has not moved since it last looked for work, and what
 *	  arrives between that and its exit makes it WANTED again;
 *	- the launcher is dead, or does not exist yet: WANTED stays, it reads it;
 *	- a start that comes to nothing: STARTING has an end (see launcher.c);
 *	- a worker that starts while its database is held: it must not attach, and
 *	  its place is WANTED again, for when the hold ends;
 *	- two workers for one database: only one attaches;
 *	- a place is given back and gets another database: those who are not
 *	  connected to the database go by its OID.
 * A crash of the server makes all places new.
 *
 * Processes are known by pid and backend slot.  Latches are set after our lock
 * was released.
 */
#include "postgres.h"

#include "base/database.h"
#include "base/shmem.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "postmaster/bgworker.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#define NO_SLOT (-1)

/* A life shorter than this, or without a pass, was not a healthy one. */
#define HEALTHY_AFTER	(60 * INT64CONST(1000000))
#define BACKOFF_FIRST	INT64CONST(1000000)
#define BACKOFF_MAX		(60 * INT64CONST(1000000))

/* In microseconds; well below what a session waits for a worker to start. */
#define LONGEST_AFTER_LIFE INT64CONST(4000000)

typedef struct LfPlace
{
	Oid			oid;			/* InvalidOid: free */
	LfWorkerState state;
	LfClock		state_since;
	int			holds;
	int			worker_pid;		/* 0: none attached */
	int			worker_slot;
	TimestampTz worker_since;
	uint64		heartbeat_before;	/* heartbeat when it attached */
	bool		retiring;		/* decided, and on its way out */
	int			failures;
	LfClock		retry_at;
	char		named[NAMEDATALEN]; /* the name it was started by, or "" */
	pg_atomic_uint64 heartbeat; /* read without the lock */
	pg_atomic_uint64 wants;		/* moves under the lock, shared or not */
} LfPlace;

typedef struct LfDatabases
{
	int			launcher_pid;	/* 0: none */
	int			launcher_slot;
	LfPlace		places[LF_MAX_DATABASES];
} LfDatabases;

static LfDatabases *databases = NULL;

/* The worker's own: the count of wants when it last began to look for work. */
static uint64 wants_seen = 0;

Size
lf_database_shmem_size(void)
{
	return sizeof(LfDatabases);
}

void
lf_database_shmem_init(void)
{
	bool		found;
	int			i;

	databases = ShmemInitStruct("lease_fence databases",
								lf_database_shmem_size(), &found);
	if (found)
		return;

	memset(databases, 0, sizeof(*databases));
	databases->launcher_slot = NO_SLOT;
	for (i = 0; i < LF_MAX_DATABASES; i++)
	{
		databases->places[i].worker_slot = NO_SLOT;
		pg_atomic_init_u64(&databases->places[i].heartbeat, 0);
		pg_atomic_init_u64(&databases->places[i].wants, 0);
	}
}

static LfPlace *
place_at(int index)
{
	Assert(index >= 0 && index < LF_MAX_DATABASES);
	return &databases->places[index];
}

static void
lock_places(LWLockMode mode)
{
	LWLockAcquire(lf_lwlock(LF_LOCK_DATABASES), mode);
}

static void
unlock_places(void)
{
	LWLockRelease(lf_lwlock(LF_LOCK_DATABASES));
}

/* The first place with that OID (InvalidOid: a free one); with our lock. */
static LfPlace *
place_with(Oid database)
{
	int			i;

	for (i = 0; i < LF_MAX_DATABASES; i++)
	{
		if (databases->places[i].oid == database)
			return &databases->places[i];
	}
	return NULL;
}

static LfPlace *
place_of(Oid database)
{
	return OidIsValid(database) ? place_with(database) : NULL;
}

static int
index_of(const LfPlace *place)
{
	return place == NULL ? -1 : (int) (place - databases->places);
}

static void
set_state(LfPlace *place, LfWorkerState state)
{
	place->state = state;
	place->state_since = lf_clock_now();
}

/* Back to what a place is without a database; heartbeat and wants go on. */
static void
clear_place(LfPlace *place)
{
	place->oid = InvalidOid;
	set_state(place, LF_WORKER_STOPPED);
	place->holds = 0;
	place->worker_pid = 0;
	place->worker_slot = NO_SLOT;
	place->worker_since = 0;
	place->retiring = false;
	place->failures = 0;
	place->retry_at = 0;
	place->named[0] = '\0';
}

int64
lf_database_backoff(int failures)
{
	if (failures <= 0)
		return 0;
	if (failures > 6)
		return BACKOFF_MAX;
	return Min(BACKOFF_FIRST << (failures - 1), BACKOFF_MAX);
}

static bool
ran_well(LfPlace *place)
{
	return lf_clock_now() - place->state_since >= HEALTHY_AFTER &&
		pg_atomic_read_u64(&place->heartbeat) != place->heartbeat_before;
}

int
lf_database_mine(void)
{
	static int	mine = -1;
	LfPlace    *place;

	Assert(OidIsValid(MyDatabaseId));

	/* No lock: while we are connected nobody can drop our database. */
	if (mine >= 0 && databases->places[mine].oid == MyDatabaseId)
		return mine;

	lock_places(LW_EXCLUSIVE);
	place = place_of(MyDatabaseId);
	if (place == NULL)
	{
		place = place_with(InvalidOid);
		if (place != NULL)
		{
			clear_place(place);
			place->oid = MyDatabaseId;
		}
	}
	mine = index_of(place);
	unlock_places();
	return mine;
}

int
lf_database_find(Oid database)
{
	int			index;

	lock_places(LW_SHARED);
	index = index_of(place_of(database));
	unlock_places();
	return index;
}

int
lf_database_find_named(const char *name)
{
	int			i;
	int			index = -1;

	lock_places(LW_SHARED);
	for (i = 0; i < LF_MAX_DATABASES && index < 0; i++)
	{
		const LfPlace *place = &databases->places[i];

		if (OidIsValid(place->oid) && strcmp(place->named, name) == 0)
			index = i;
	}
	unlock_places();
	return index;
}

bool
lf_database_look(int index, LfDatabaseView *view)
{
	LfPlace    *place = place_at(index);

	lock_places(LW_SHARED);
	view->oid = place->oid;
	view->state = place->state;
	view->state_since = place->state_since;
	view->held = place->holds > 0;
	view->worker_pid = place->worker_pid;
	view->worker_since = place->worker_since;
	view->failures = place->failures;
	view->retry_at = place->retry_at;
	unlock_places();
	return OidIsValid(view->oid);
}

/* Could the launcher start it now?  With our lock. */
static bool
is_due(const LfPlace *place)
{
	return place->state == LF_WORKER_WANTED && place->holds == 0 &&
		place->retry_at <= lf_clock_now();
}

/*
 * The count moves under the lock, shared, and a worker retires under it,
 * exclusive: so either it sees the count, or we see that it stopped.
 */
void
lf_database_want(int index)
{
	LfPlace    *place = place_at(index);
	int			slot = NO_SLOT;
	bool		stopped;

	lock_places(LW_SHARED);
	pg_atomic_fetch_add_u64(&place->wants, 1);
	stopped = place->state == LF_WORKER_STOPPED;
	if (place->state == LF_WORKER_RUNNING)
		slot = place->worker_slot;
	else if (is_due(place))
		slot = databases->launcher_slot;
	unlock_places();

	if (stopped)
	{
		lock_places(LW_EXCLUSIVE);
		if (place->state == LF_WORKER_STOPPED)
			set_state(place, LF_WORKER_WANTED);
		slot = databases->launcher_slot;
		unlock_places();
	}
	lf_backend_wake(slot);
}

void
lf_database_wake(int index)
{
	LfPlace    *place = place_at(index);
	int			slot;

	lock_places(LW_SHARED);
	slot = place->worker_slot;
	unlock_places();
	lf_backend_wake(slot);
}

bool
lf_database_hold(Oid database)
{
	LfPlace    *place;
	int			slot = NO_SLOT;

	lock_places(LW_EXCLUSIVE);
	place = place_of(database);
	if (place != NULL)
	{
		place->holds++;
		slot = place->worker_slot;
	}
	unlock_places();
	lf_backend_wake(slot);
	return place != NULL;
}

/*
 * Another session may have dropped the database, and given the place back,
 * while we held it: then there is nothing to do.
 */
void
lf_database_resume(Oid database)
{
	LfPlace    *place;
	int			slot = NO_SLOT;

	lock_places(LW_EXCLUSIVE);
	place = place_of(database);
	if (place != NULL && place->holds > 0 && --place->holds == 0)
		slot = databases->launcher_slot;
	unlock_places();
	lf_backend_wake(slot);
}

void
lf_database_renamed(Oid database)
{
	LfPlace    *place;

	lock_places(LW_EXCLUSIVE);
	place = place_of(database);
	if (place != NULL)
		place->named[0] = '\0';
	unlock_places();
}

void
lf_database_forget(Oid database)
{
	LfPlace    *place;

	lock_places(LW_EXCLUSIVE);
	place = place_of(database);
	if (place != NULL)
		clear_place(place);
	unlock_places();
}

void
lf_database_launcher_attach(void)
{
	lock_places(LW_EXCLUSIVE);
	databases->launcher_pid = MyProcPid;
	databases->launcher_slot = lf_backend_slot();
	unlock_places();
}

void
lf_database_launcher_detach(void)
{
	lock_places(LW_EXCLUSIVE);
	if (databases->launcher_pid == MyProcPid)
	{
		databases->launcher_pid = 0;
		databases->launcher_slot = NO_SLOT;
	}
	unlock_places();
}

bool
lf_database_begin_start(int index)
{
	LfPlace    *place = place_at(index);
	bool		due;

	lock_places(LW_EXCLUSIVE);
	due = OidIsValid(place->oid) && is_due(place);
	if (due)
		set_state(place, LF_WORKER_STARTING);
	unlock_places();
	return due;
}

void
lf_database_start_failed(int index)
{
	LfPlace    *place = place_at(index);

	lock_places(LW_EXCLUSIVE);
	if (place->state == LF_WORKER_STARTING)
	{
		set_state(place, LF_WORKER_WANTED);
		place->failures++;
		place->retry_at = lf_clock_after(place->state_since,
										 lf_database_backoff(place->failures));
	}
	unlock_places();
}

bool
lf_database_settle(int index)
{
	LfPlace    *place = place_at(index);
	bool		settled;

	lock_places(LW_EXCLUSIVE);
	settled = place->failures > 0 && place->state == LF_WORKER_RUNNING &&
		ran_well(place);
	if (settled)
	{
		place->failures = 0;
		place->retry_at = 0;
	}
	unlock_places();
	return settled;
}

/* The database that this worker was started for. */
static Oid
worker_database(void)
{
	Oid			database = DatumGetObjectId(MyBgworkerEntry->bgw_main_arg);

	return OidIsValid(database) ? database : MyDatabaseId;
}

/*
 * A worker that was started by name leaves it in the place even if it cannot
 * attach: the launcher then knows that the name is seen to, by this place.
 */
bool
lf_database_attach(int index)
{
	LfPlace    *place = place_at(index);
	const char *name = MyBgworkerEntry->bgw_extra;
	bool		attached = false;

	lock_places(LW_EXCLUSIVE);
	if (place->oid == worker_database())
	{
		if (name[0] != '\0')
			strlcpy(place->named, name, NAMEDATALEN);
		if (place->worker_pid == 0 && place->holds == 0)
		{
			set_state(place, LF_WORKER_RUNNING);
			place->worker_pid = MyProcPid;
			place->worker_slot = lf_backend_slot();
			place->worker_since = GetCurrentTimestamp();
			place->heartbeat_before = pg_atomic_read_u64(&place->heartbeat);
			place->retiring = false;
			wants_seen = pg_atomic_read_u64(&place->wants);
			attached = true;
		}
		else if (place->worker_pid == 0)
			set_state(place, LF_WORKER_WANTED);
	}
	unlock_places();
	return attached;
}

/*
 * It ended badly.  The first time, and after a healthy life, start it at once;
 * never so late that who waits for it gives up, as a worker that had come up may
 * have been terminated by somebody.
 */
static void
count_failure(LfPlace *place, bool well)
{
	if (well)
		place->failures = 0;
	place->failures++;
	place->retry_at = lf_clock_after(lf_clock_now(),
									 Min(lf_database_backoff(place->failures - 1),
										 LONGEST_AFTER_LIFE));
}

/*
 * Everything but a retirement that nobody has objected to leaves the place
 * WANTED.  A worker that somebody holds has no fault in its own end.
 */
void
lf_database_detach(int index, bool intended)
{
	LfPlace    *place;
	int			slot = NO_SLOT;

	if (index < 0)
		return;
	place = place_at(index);

	lock_places(LW_EXCLUSIVE);
	if (place->worker_pid == MyProcPid)
	{
		bool		retired = intended && place->retiring &&
			pg_atomic_read_u64(&place->wants) == wants_seen;

		if (!intended && place->holds == 0)
			count_failure(place, ran_well(place));
		set_state(place, retired ? LF_WORKER_STOPPED : LF_WORKER_WANTED);
		place->worker_pid = 0;
		place->worker_slot = NO_SLOT;
		place->worker_since = 0;
		place->retiring = false;
		if (!retired)
			slot = databases->launcher_slot;
	}
	unlock_places();
	lf_backend_wake(slot);
}

bool
lf_database_is_held(int index)
{
	LfPlace    *place = place_at(index);
	bool		held;

	lock_places(LW_SHARED);
	held = place->holds > 0;
	unlock_places();
	return held;
}

/*
 * The add is a full barrier: the count of wants is read before whatever the
 * worker now goes to look at.
 */
void
lf_database_beat(int index)
{
	LfPlace    *place = place_at(index);

	wants_seen = pg_atomic_read_u64(&place->wants);
	pg_atomic_fetch_add_u64(&place->heartbeat, 1);
}

bool
lf_database_try_retire(int index)
{
	LfPlace    *place = place_at(index);
	bool		retiring;

	lock_places(LW_EXCLUSIVE);
	Assert(place->worker_pid == MyProcPid);
	retiring = pg_atomic_read_u64(&place->wants) == wants_seen;
	place->retiring = retiring;
	unlock_places();
	return retiring;
}

uint64
lf_database_heartbeat(int index)
{
	return pg_atomic_read_u64(&place_at(index)->heartbeat);
}
