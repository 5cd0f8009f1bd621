/*
 * lease_fence.c
 *		Wiring only: settings, shared memory, hooks, the launcher.
 */
#include "postgres.h"

#include "audit/audit.h"
#include "base/compat.h"
#include "base/database.h"
#include "base/point.h"
#include "base/settings.h"
#include "base/shmem.h"
#include "base/stat.h"
#include "coordinator/redis_status.h"
#include "fence/bypass.h"
#include "fence/entry.h"
#include "fence/epoch.h"
#include "fence/present.h"
#include "fence/token_lock.h"
#include "fence/truncate.h"
#include "fmgr.h"
#include "lease/held.h"
#include "lease/request.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "worker/launcher.h"
#include "worker/utility.h"

LF_MODULE_MAGIC("lease_fence", LF_VERSION);

static shmem_request_hook_type previous_shmem_request = NULL;
static shmem_startup_hook_type previous_shmem_startup = NULL;

static void
request_shmem(void)
{
	if (previous_shmem_request != NULL)
		previous_shmem_request();
	RequestAddinShmemSpace(lf_database_shmem_size());
	RequestAddinShmemSpace(lf_stat_shmem_size());
	RequestAddinShmemSpace(lf_entry_shmem_size());
	RequestAddinShmemSpace(lf_epoch_shmem_size());
	RequestAddinShmemSpace(lf_request_shmem_size());
	RequestAddinShmemSpace(lf_redis_status_shmem_size());
	RequestAddinShmemSpace(lf_audit_shmem_size());
	RequestAddinShmemSpace(lf_audit_observe_shmem_size());
	lf_lwlock_request();
}

static void
startup_shmem(void)
{
	if (previous_shmem_startup != NULL)
		previous_shmem_startup();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	lf_database_shmem_init();
	lf_stat_shmem_init();
	lf_entry_shmem_init();
	lf_epoch_shmem_init();
	lf_request_shmem_init();
	lf_redis_status_shmem_init();
	lf_audit_shmem_init();
	lf_audit_observe_shmem_init();
	LWLockRelease(AddinShmemInitLock);
}

static void
refuse_late_loading(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("lease_fence must be loaded at server start"),
			 errhint("Put this into postgresql.conf and restart: shared_preload_libraries = 'lease_fence'")));
}

void		_PG_init(void);

/*
 * Under pg_upgrade the settings exist, so that ALTER ... SET in the dump works,
 * and nothing else is done; it loads the library without preloading it.
 */
void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress && !IsBinaryUpgrade)
		refuse_late_loading();
	lf_settings_define();
	lf_point_define_setting();
	lf_present_install();
	lf_bypass_install();
	MarkGUCPrefixReserved("lease_fence");
	if (IsBinaryUpgrade)
		return;

	previous_shmem_request = shmem_request_hook;
	shmem_request_hook = request_shmem;
	previous_shmem_startup = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;
	lf_token_lock_install();
	lf_held_install();
	lf_truncate_install_hook();
	lf_utility_install_hook();
	lf_launcher_register();
}
