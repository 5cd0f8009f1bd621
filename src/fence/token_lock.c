/*
 * token_lock.c
 *		The heavyweight lock of a token.
 *
 * Runs in backends (share) and in workers (exclusive).
 *
 * The share lock is booked on CurTransactionResourceOwner.  Inside a trigger
 * the current owner is the portal's: a cursor that fails inside a savepoint
 * would lose the lock while rows that it wrote before stay.
 */
#include "postgres.h"

#include "access/xact.h"
#include "base/compat.h"
#include "base/settings.h"
#include "fence/token_lock.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#define FIELD4_TOKEN	17990	/* "FF": any value that SQL does not use */
#define FIELD4_MINTER	17991

/*
 * How many token locks this transaction has taken; a rolled-back savepoint
 * gives its own back.  Levels deeper than a savepoint stack of sane size share
 * the count of their parent, which only makes the limit come earlier.
 */
#define COUNTED_LEVELS 64

static int	locks_taken = 0;
static int	locks_at_level[COUNTED_LEVELS];

/*
 * A lock that is shared for sure, so that a statement of many rows does not ask
 * the table of locks for each; 0: none is known.  It is forgotten before the lock
 * can go: by our own unlock, a savepoint that is rolled back, the transaction's end.
 */
static int64 known_shared = 0;

void
lf_token_lock_tag(LOCKTAG *tag, int64 token)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId,
						 (uint32) ((uint64) token >> 32), (uint32) token,
						 FIELD4_TOKEN);
}

static void
refuse_too_many(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("this transaction writes under more than %d leases",
					lf_max_resources_per_transaction),
			 errhint("Write in several transactions, or name rows that belong together by one resource. The limit is lease_fence.max_resources_per_transaction.")));
}

bool
lf_token_lock_share(int64 token)
{
	LOCKTAG		tag;
	ResourceOwner saved = CurrentResourceOwner;
	LockAcquireResult result;

	lf_token_lock_tag(&tag, token);
	CurrentResourceOwner = CurTransactionResourceOwner;
	result = lf_lock_try(&tag, ShareLock, false);
	CurrentResourceOwner = saved;

	if (result == LOCKACQUIRE_NOT_AVAIL)
		return false;
	if (result == LOCKACQUIRE_OK && ++locks_taken > lf_max_resources_per_transaction)
	{
		lf_token_unlock_share(token);
		refuse_too_many();
	}
	return true;
}

bool
lf_token_lock_is_shared(int64 token)
{
	LOCKTAG		tag;

	if (token == known_shared)
		return true;
	lf_token_lock_tag(&tag, token);
	if (!lf_lock_held(&tag, ShareLock))
		return false;
	known_shared = token;
	return true;
}

void
lf_token_unlock_share(int64 token)
{
	LOCKTAG		tag;
	ResourceOwner saved = CurrentResourceOwner;

	known_shared = 0;
	lf_token_lock_tag(&tag, token);
	CurrentResourceOwner = CurTransactionResourceOwner;
	LockRelease(&tag, ShareLock, false);
	CurrentResourceOwner = saved;
	if (!lf_token_lock_is_shared(token))
		locks_taken--;
}

bool
lf_token_lock_exclusive(int64 token)
{
	LOCKTAG		tag;

	lf_token_lock_tag(&tag, token);
	return lf_lock_try(&tag, ExclusiveLock, true) != LOCKACQUIRE_NOT_AVAIL;
}

void
lf_token_unlock_exclusive(int64 token)
{
	LOCKTAG		tag;

	lf_token_lock_tag(&tag, token);
	LockRelease(&tag, ExclusiveLock, true);
}

bool
lf_token_lock_minter(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, 0, FIELD4_MINTER);
	return lf_lock_try(&tag, ExclusiveLock, true) != LOCKACQUIRE_NOT_AVAIL;
}

static void
forget_locks(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT ||
		event == XACT_EVENT_PREPARE)
	{
		locks_taken = 0;
		known_shared = 0;
	}
}

static void
follow_savepoint(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (event == SUBXACT_EVENT_ABORT_SUB)
		known_shared = 0;
	if (level >= COUNTED_LEVELS)
		return;
	if (event == SUBXACT_EVENT_START_SUB)
		locks_at_level[level] = locks_taken;
	else if (event == SUBXACT_EVENT_ABORT_SUB)
		locks_taken = locks_at_level[level];
}

void
lf_token_lock_install(void)
{
	RegisterXactCallback(forget_locks, NULL);
	RegisterSubXactCallback(follow_savepoint, NULL);
}
