/*
 * notify.h
 *		NOTIFY on channel lease_fence: what happened to which lease.
 */
#ifndef LF_BASE_NOTIFY_H
#define LF_BASE_NOTIFY_H

#include "base/resource.h"

/*
 * Worker.  add: event is lost, superseded, revoked or rejected; remembered, and
 * sent later.  send: what was added, in a transaction of its own; never waits.
 * False: not all is sent, try again later.
 */
extern void lf_notify_add(const char *event, const LfResource *resource, int64 token);
extern bool lf_notify_send(int database);

#endif							/* LF_BASE_NOTIFY_H */
