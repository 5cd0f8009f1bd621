/*
 * notify.c
 *		NOTIFY on channel lease_fence.
 *
 * Runs in workers.  PostgreSQL's queue is shut by one heavyweight lock for all
 * databases, which another session may hold while it waits for its standby, and
 * it raises an error when it is full: so notifications have a transaction of
 * their own, which takes that lock at once or not at all, and leaves a queue
 * alone that is half full.  They are hints: beyond a bound they are dropped, and
 * counted.
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/notify.h"
#include "base/stat.h"
#include "base/transaction.h"
#include "catalog/pg_database.h"
#include "commands/async.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/memutils.h"

#define CHANNEL			"lease_fence"
#define MAX_REMEMBERED	1000
#define QUEUE_FULL		0.5

typedef struct Notification
{
	const char *event;			/* a constant */
	int64		token;
	LfResource	resource;
} Notification;

static Notification *remembered = NULL;
static int	count = 0;
static uint64 dropped = 0;

void
lf_notify_add(const char *event, const LfResource *resource, int64 token)
{
	Notification *one;

	if (remembered == NULL)
		remembered = MemoryContextAlloc(TopMemoryContext,
										MAX_REMEMBERED * sizeof(Notification));
	if (count == MAX_REMEMBERED)
	{
		dropped++;
		return;
	}
	one = &remembered[count++];
	one->event = event;
	one->token = token;
	one->resource = *resource;
}

static void
send_one(const Notification *one)
{
	StringInfoData payload;

	initStringInfo(&payload);
	appendStringInfo(&payload, "{\"event\": \"%s\", \"resource\": ", one->event);
	escape_json(&payload, pnstrdup(one->resource.name, one->resource.length));
	appendStringInfo(&payload, ", \"token\": %lld}", (long long) one->token);
	Async_Notify(CHANNEL, payload.data);
}

/* The lock that PreCommit_Notify takes: "database 0". */
static bool
lock_queue(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, InvalidOid, 0);
	return lf_lock_try(&tag, AccessExclusiveLock, false) != LOCKACQUIRE_NOT_AVAIL;
}

static void
send_all(void *arg)
{
	bool	   *sent = arg;

	*sent = false;
	if (!lock_queue() ||
		DatumGetFloat8(DirectFunctionCall1(pg_notification_queue_usage, (Datum) 0)) > QUEUE_FULL)
		return;
	for (int i = 0; i < count; i++)
		send_one(&remembered[i]);
	*sent = true;
}

bool
lf_notify_send(int database)
{
	XLogRecPtr	end;
	char	   *problem;
	bool		sent = false;

	if (count == 0)
		return true;
	if (!lf_transaction_try("notifying", send_all, &sent, &end, &problem) || !sent)
		return false;
	lf_stat_add(database, LF_STAT_NOTIFICATIONS, count);
	lf_stat_add(database, LF_STAT_NOTIFICATIONS_DROPPED, dropped);
	count = 0;
	dropped = 0;
	return true;
}
