/*
 * present.h
 *		The tokens under which a transaction writes.
 *
 * Three sources add up: what was presented in this transaction (acquire and its
 * kin, present), the setting lease_fence.token when it was set in this
 * transaction, and, unless one of present or the setting was used, the leases
 * of scope session that this session holds.
 */
#ifndef LF_FENCE_PRESENT_H
#define LF_FENCE_PRESENT_H

typedef enum LfMatch
{
	LF_MATCH_NONE,
	LF_MATCH_YES,
	LF_MATCH_WRONG_ROLE
} LfMatch;

/* Defines the setting and installs the transaction callbacks; once, in _PG_init. */
extern void lf_present_install(void);

/*
 * Is that token presented, and may its presenter use a grant made for that
 * role?  Membership of the outer user is looked up once per presentation.
 */
extern LfMatch lf_present_match(int64 token, Oid role);

/* May the outer user use a grant that was made for that role? */
extern bool lf_present_role_allowed(Oid role);

/*
 * For this transaction, undone with its savepoints.  named: by present(), which
 * puts the session's leases out of account.
 */
extern void lf_present_add(int64 token, bool named);

/*
 * A token that counts for one call only, beside the others.  Calls nest:
 * begin_call answers what end_call must put back.  0: none.
 */
extern int64 lf_present_begin_call(int64 token);
extern void lf_present_end_call(int64 before);

/* The leases of scope session that this session holds. */
extern void lf_present_session_add(int64 token);
extern void lf_present_session_remove(int64 token);

/* All that counts now, into a palloc'd array: for the errors' details. */
extern int	lf_present_list(int64 **tokens);

/* Is lease_fence.token set, but by an earlier transaction? */
extern bool lf_present_setting_is_stale(void);

#endif							/* LF_FENCE_PRESENT_H */
