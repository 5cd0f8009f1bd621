/*
 * lock_key.h
 *		Keys of locks: a template, in which {resource} stands for the resource's
 *		name, and {{ and }} for braces.
 */
#ifndef LF_COORDINATOR_LOCK_KEY_H
#define LF_COORDINATOR_LOCK_KEY_H

#include "coordinator/lock.h"

#define LF_LOCK_KEY_TEMPLATE_MAX 512

/* Raises 22023 unless it is a template that gives each resource a lock of its own. */
extern void lf_lock_key_check(const char *tmpl);

/* The key's length, or -1 if it is longer than LF_LOCK_KEY_MAX. */
extern int	lf_lock_key_render(const char *tmpl, const LfResource *resource, char *key);

/*
 * What libraries keep beside their locks is no lock, though some of it looks
 * like one.  The pattern of such keys that this one has, or NULL.
 */
extern const char *lf_lock_key_is_none(const char *key, int length);

#endif							/* LF_COORDINATOR_LOCK_KEY_H */
