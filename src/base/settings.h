/*
 * settings.h
 *		The settings lease_fence.*, but for those that live in their room
 *		(lease_fence.token: fence/present.c).
 */
#ifndef LF_BASE_SETTINGS_H
#define LF_BASE_SETTINGS_H

typedef enum LfAuditRow
{
	LF_AUDIT_ROW_KEY,
	LF_AUDIT_ROW_FULL
} LfAuditRow;

typedef enum LfEnforce
{
	LF_ENFORCE_ON,
	LF_ENFORCE_OBSERVE
} LfEnforce;

extern bool lf_coordinators;
extern int	lf_enforce;			/* LfEnforce */
extern int	lf_audit_retention; /* seconds */
extern int	lf_grants_retention;	/* seconds */
extern int	lf_operations_retention;	/* seconds */
extern char *lf_databases;		/* names, separated by commas */
extern int	lf_drain_timeout;	/* ms */
extern int	lf_audit_timeout;	/* ms */
extern int	lf_audit_row;		/* LfAuditRow */
extern int	lf_idle_limit;		/* ms */
extern int	lf_max_leases;
extern int	lf_max_resources_per_transaction;

extern void lf_settings_define(void);

#endif							/* LF_BASE_SETTINGS_H */
