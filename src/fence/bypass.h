/*
 * bypass.h
 *		SET LOCAL lease_fence.bypass = 'reason': a transaction that writes past
 *		the guards, and says so in the audit.
 */
#ifndef LF_FENCE_BYPASS_H
#define LF_FENCE_BYPASS_H

/* Defines the setting and installs the transaction callbacks; in _PG_init. */
extern void lf_bypass_install(void);

/* Did this transaction turn it on? */
extern bool lf_bypass_active(void);

/* One row (or one TRUNCATE) was written past the guard of that table. */
extern void lf_bypass_note(Oid relation, const char *operation);

#endif							/* LF_FENCE_BYPASS_H */
