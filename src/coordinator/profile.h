/*
 * profile.h
 *		Profiles: which resources are handed out by whom, and to which roles.
 */
#ifndef LF_COORDINATOR_PROFILE_H
#define LF_COORDINATOR_PROFILE_H

#include "coordinator/lock.h"

typedef enum LfPolicy
{
	LF_POLICY_SINGLE,			/* one server of lease_fence_redis */
	LF_POLICY_EXTERNAL			/* order handed out by others: import_grant */
} LfPolicy;

typedef struct LfProfile
{
	char	   *name;
	char	   *prefix;
	LfPolicy	policy;
	char	   *server_name;	/* of policy single, else NULL */
	Oid			server;			/* of policy single; invalid: it was dropped */
	LfShape		shape;
	bool		watch;
	char	   *lock_key;		/* template of the key */
	int64		ttl;			/* microseconds */
	Oid		   *roles;
	int			role_count;		/* -1: everybody */
	bool		here;			/* added in this very database, not in a copy */
} LfProfile;

/*
 * The profile of a resource: the one with the longest prefix; NULL: embedded.
 * In a transaction; good until the next invalidation message.
 */
extern const LfProfile *lf_profile_of(const LfResource *resource);

/* Another number when profiles, or their servers, may have changed. */
extern uint64 lf_profile_generation(void);

/*
 * The lock of a resource under a profile of policy single.  Raises 54000 if its
 * key is longer than LF_LOCK_KEY_MAX, 22023 if it is what libraries keep beside
 * their locks, LF020 if the profile's server is gone.
 */
extern void lf_profile_lock(const LfProfile *profile, const LfResource *resource,
							LfLock *lock);

/* The same where nobody is to be told why there is none; of any profile. */
extern bool lf_profile_find_lock(const LfProfile *profile, const LfResource *resource,
								 LfLock *lock);

/*
 * Raises LF006 when leases of this profile are reserved to roles that the outer
 * user is no member of, 55000 when it belongs to another system.
 */
extern void lf_profile_check_use(const LfProfile *profile, const LfResource *resource);

#endif							/* LF_COORDINATOR_PROFILE_H */
