/*
 * catalog.h
 *		OIDs of the extension and of its own tables, cached per process.
 *
 * Found by way of pg_extension, never by a schema's name alone: a schema
 * lease_fence that somebody else made is nobody.
 */
#ifndef LF_BASE_CATALOG_H
#define LF_BASE_CATALOG_H

#include "utils/relcache.h"

typedef struct LfCatalog
{
	Oid			extension;
	Oid			schema;
	Oid			guard_function;	/* lease_fence.guard() */
	Oid			begin_epoch_function;	/* lease_fence.begin_epoch(text) */
	Oid			grants;
	Oid			grants_token_index;		/* (token) */
	Oid			grants_resource_index;	/* (resource, token) */
	Oid			epochs;
	Oid			epochs_index;	/* (id) */
	Oid			rejected_writes;
	Oid			rejected_writes_index;	/* (id) */
	Oid			operations;
	Oid			operations_index;	/* (key) */
	Oid			profiles;
	Oid			guard_modes;
	Oid			guard_modes_index;	/* (relation) */
} LfCatalog;

/*
 * NULL when the extension is not installed (or being created or dropped) in
 * this database, or of another version than this library.  In a transaction only.  The answer is good until the next
 * invalidation message, that is until the next lock or table access.
 */
extern const LfCatalog *lf_catalog(void);

/* The same, but raises 55000 when the extension is not there. */
extern const LfCatalog *lf_catalog_required(void);

/* Raises 55000 when it is there, in another version than this library. */
extern void lf_catalog_check_version(void);

#endif							/* LF_BASE_CATALOG_H */
