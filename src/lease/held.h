/*
 * held.h
 *		The leases of scope transaction and session that this backend holds.
 */
#ifndef LF_LEASE_HELD_H
#define LF_LEASE_HELD_H

#include "fence/entry.h"

/* Installs the callbacks at the end of transactions; once, in _PG_init. */
extern void lf_held_install(void);

/* This session's name as a holder; different for every session ever. */
extern void lf_held_identity(LfHolder *holder);

/*
 * A lease that this session has already, under that holder and a role that the
 * present one is a member of, and still live: it is counted once more, its scope
 * may become wider, ttl (0: leave it) may prolong it.  Its token, or 0.
 */
extern int64 lf_held_reenter(const LfResource *resource, const LfHolder *holder,
							 LfScope scope, int64 ttl);

/* A new grant of scope transaction or session. */
extern void lf_held_add(const LfResource *resource, const LfHolder *holder,
						int64 token, LfScope scope);

/* The resource of a token that this session holds, and the role that took it. */
extern bool lf_held_resource(int64 token, LfResource *resource, Oid *role);

/*
 * One count less; *last says that none is left.  False: not held here.
 */
extern bool lf_held_release(int64 token, bool *last);

/*
 * Undoes one lf_held_reenter of that scope: of a call that takes nothing after
 * all.  The count from before it is left.
 */
extern void lf_held_give_back(int64 token, LfScope scope);

/* DISCARD ALL, and the end of the session. */
extern void lf_held_discard(void);

#endif							/* LF_LEASE_HELD_H */
