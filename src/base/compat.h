/*
 * compat.h
 *		Every difference between the supported PostgreSQL versions, once.
 *
 * Nothing outside this header looks at PG_VERSION_NUM.
 */
#ifndef LF_BASE_COMPAT_H
#define LF_BASE_COMPAT_H

#include "access/tupdesc.h"
#include "catalog/pg_class.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_proc.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 190000
#error "lease_fence supports PostgreSQL 15 to 18"
#endif

#ifndef USE_FLOAT8_BYVAL
#error "lease_fence wants 64-bit values that are passed by value"
#endif

#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

#if PG_VERSION_NUM >= 170000

#define LF_MY_LXID				(MyProc->vxid.lxid)
#define LF_PROC_LXID(proc)		((proc)->vxid.lxid)
#define LF_VXID_PROC(vxid)		((vxid).procNumber)

static inline PGPROC *
lf_vxid_proc(VirtualTransactionId vxid)
{
	return ProcNumberGetProc(vxid.procNumber);
}

static inline uint32
lf_wait_event(uint32 *cached, const char *name)
{
	if (*cached == 0)
		*cached = WaitEventExtensionNew(name);
	return *cached;
}

#else

#include "storage/backendid.h"
#include "storage/sinvaladt.h"

#define LF_MY_LXID				(MyProc->lxid)
#define LF_PROC_LXID(proc)		((proc)->lxid)
#define LF_VXID_PROC(vxid)		((vxid).backendId)

static inline PGPROC *
lf_vxid_proc(VirtualTransactionId vxid)
{
	return BackendIdGetProc(vxid.backendId);
}

static inline uint32
lf_wait_event(uint32 *cached, const char *name)
{
	(void) cached;
	(void) name;
	return PG_WAIT_EXTENSION;
}

#endif

#if PG_VERSION_NUM >= 180000
#define LF_MODULE_MAGIC(module, module_version) \
	PG_MODULE_MAGIC_EXT(.name = module, .version = module_version)
#else
#define LF_MODULE_MAGIC(module, module_version) PG_MODULE_MAGIC
#endif

/* Stands before a declaration; older versions had one that stands behind it. */
#if PG_VERSION_NUM < 180000
#define pg_noreturn pg_attribute_noreturn()
#endif

/* For the rest of the process' life, or until it is freed. */
static inline WaitEventSet *
lf_create_wait_set(int events)
{
#if PG_VERSION_NUM >= 170000
	return CreateWaitEventSet(NULL, events);
#else
	return CreateWaitEventSet(TopMemoryContext, events);
#endif
}

/* The n-th backend of the present snapshot of the activity, from 1. */
static inline LocalPgBackendStatus *
lf_backend_status(int number)
{
#if PG_VERSION_NUM >= 160000
	return pgstat_get_local_beentry_by_index(number);
#else
	return pgstat_fetch_stat_local_beentry(number);
#endif
}

#if PG_VERSION_NUM >= 160000
static inline bool
lf_owns_relation(Oid relation, Oid role)
{
	return object_ownercheck(RelationRelationId, relation, role);
}

static inline bool
lf_may_execute(Oid function, Oid role)
{
	return object_aclcheck(ProcedureRelationId, function, role, ACL_EXECUTE) == ACLCHECK_OK;
}

static inline AclResult
lf_may_use_server(Oid server, Oid role)
{
	return object_aclcheck(ForeignServerRelationId, server, role, ACL_USAGE);
}

#define lf_guc_malloc(size)		guc_malloc(LOG, (size))
#else
static inline bool
lf_owns_relation(Oid relation, Oid role)
{
	return pg_class_ownercheck(relation, role);
}

static inline bool
lf_may_execute(Oid function, Oid role)
{
	return pg_proc_aclcheck(function, role, ACL_EXECUTE) == ACLCHECK_OK;
}

static inline AclResult
lf_may_use_server(Oid server, Oid role)
{
	return pg_foreign_server_aclcheck(server, role, ACL_USAGE);
}

/* What a check hook puts into *extra is freed by guc.c with free(). */
#define lf_guc_malloc(size)		malloc(size)
#endif

/* Takes a heavyweight lock or not, at once; a full lock table is "not". */
static inline LockAcquireResult
lf_lock_try(const LOCKTAG *tag, LOCKMODE mode, bool session)
{
#if PG_VERSION_NUM >= 180000
	return LockAcquireExtended(tag, mode, session, true, false, NULL, false);
#else
	return LockAcquireExtended(tag, mode, session, true, false, NULL);
#endif
}

/* Does this process hold the lock, in its transaction? */
static inline bool
lf_lock_held(const LOCKTAG *tag, LOCKMODE mode)
{
#if PG_VERSION_NUM >= 170000
	return LockHeldByMe(tag, mode, false);
#else
	return LockHeldByMe(tag, mode);
#endif
}

/* Offset of a fixed place in every tuple without nulls, or -1. */
static inline int
lf_attribute_offset(TupleDesc desc, int attnum)
{
#if PG_VERSION_NUM >= 180000
	return TupleDescCompactAttr(desc, attnum - 1)->attcacheoff;
#else
	return TupleDescAttr(desc, attnum - 1)->attcacheoff;
#endif
}

#endif							/* LF_BASE_COMPAT_H */
