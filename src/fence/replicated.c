/*
 * replicated.c
 *		SQL: drop_replicated, the trigger of our own tables.
 *
 * Runs in whatever applies a subscription, and in backends in the replica role.
 *
 * What must end well: what another database knows of its own leases never
 * becomes this one's, while what a superuser restores does.
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"
#include "replication/logicalworker.h"

PG_FUNCTION_INFO_V1(lf_drop_replicated);

/*
 * Our own tables are in every FOR ALL TABLES publication; what a subscription
 * brings of another database's grants and epochs is dropped.  The trigger fires
 * only in the replica role, where superusers may come by as well.
 */
Datum
lf_drop_replicated(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("lease_fence.drop_replicated() can only be called as a trigger")));
	if (IsLogicalWorker())
		return PointerGetDatum(NULL);
	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ?
						   trigger->tg_newtuple : trigger->tg_trigtuple);
}
