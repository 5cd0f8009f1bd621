/*
 * point.h
 *		Named points in the code where a test can stop or kill a process.
 *
 * Exist only in a build for tests (-DLF_TEST_HOOKS); nowhere else do they cost
 * or mean anything.  There, the setting lease_fence.test_point is a list, with
 * commas and no spaces, of 'point=action': action wait (until the setting says
 * otherwise), error, exit or kill.  'point/number=action' is about the process of
 * that pid, or those in the database of that OID, alone.
 */
#ifndef LF_BASE_POINT_H
#define LF_BASE_POINT_H

#ifdef LF_TEST_HOOKS
extern void lf_point_define_setting(void);
extern void lf_point_reached(const char *name);

#define LF_POINT(name) lf_point_reached(name)
#else
#define lf_point_define_setting() ((void) 0)
#define LF_POINT(name) ((void) 0)
#endif

#endif							/* LF_BASE_POINT_H */
