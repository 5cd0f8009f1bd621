/*
 * remote_events.c
 *		What becomes known of locks that requests are about, without their asking.
 *
 * Runs in the database's worker.  Calls about one server are answered in the
 * order in which it carried them out, so the newest answer about a lock is the
 * truth, whoever asked.
 */
#include "postgres.h"

#include "lease/remote.h"

typedef void (*Visit) (LfRemote *remote, void *arg);

static void
visit_all(Visit visit, void *arg)
{
	dlist_iter	iter;

	dlist_foreach(iter, lf_pending_all())
	{
		LfPending  *pending = lf_pending_of(iter.cur);

		for (int i = 0; i < pending->request.count; i++)
		{
			if (pending->remotes[i].lock != NULL)
				visit(&pending->remotes[i], arg);
		}
	}
}

/* ---- answers to others ---- */

typedef struct Seen
{
	const LfLockQuestion *question;
	const LfLockAnswer *answer;
} Seen;

/*
 * Does the answer show that this value has the lock no more?  A lock that a
 * release has found is nobody's any more.
 */
static bool
contradicts(const LfRemote *remote, const Seen *seen)
{
	bool		same = lf_lock_value_equal(&remote->value, seen->question->value);

	switch (seen->answer->state)
	{
		case LF_LOCK_UNKNOWN:
			return false;
		case LF_LOCK_HELD:
			return seen->question->call == LF_LOCK_RELEASE || !same;
		case LF_LOCK_NO_EXPIRY:
			return !same;
		case LF_LOCK_OTHER:
		case LF_LOCK_NO_GRANT:
			return same;
		case LF_LOCK_ABSENT:
		case LF_LOCK_WRONG_TYPE:
			return true;
	}
	return false;				/* keep the compiler quiet */
}

static void
see(LfRemote *remote, void *arg)
{
	const Seen *seen = arg;

	if (remote->state != LF_REMOTE_GRANTED ||
		!lf_lock_equal(remote->lock, seen->question->lock) || !contradicts(remote, seen))
		return;
	remote->state = LF_REMOTE_LOST;
	remote->found = seen->answer->state == LF_LOCK_ABSENT ? LF_LOCK_ABSENT : LF_LOCK_OTHER;
}

void
lf_remote_see(const LfLockQuestion *question, const LfLockAnswer *answer)
{
	Seen		seen = {question, answer};

	visit_all(see, &seen);
}

/* ---- hints ---- */

typedef struct Hint
{
	Oid			server;
	const char *key;
	int			length;
} Hint;

static void
look_soon(LfRemote *remote, void *arg)
{
	const Hint *hint = arg;

	if ((remote->state == LF_REMOTE_BUSY || remote->state == LF_REMOTE_GRANTED) &&
		remote->lock->server == hint->server && remote->lock->key_length == hint->length &&
		memcmp(remote->lock->key, hint->key, hint->length) == 0)
		remote->look_at = 0;
}

void
lf_remote_hint(Oid server, const char *key, int length)
{
	Hint		hint = {server, key, length};

	visit_all(look_soon, &hint);
}

/* ---- servers that are others ---- */

static void
lose(LfRemote *remote, void *arg)
{
	if (remote->state != LF_REMOTE_GRANTED || remote->lock->server != *(const Oid *) arg)
		return;
	remote->state = LF_REMOTE_LOST;
	remote->found = LF_LOCK_ABSENT;
}

void
lf_remote_lost(Oid server)
{
	visit_all(lose, &server);
}
