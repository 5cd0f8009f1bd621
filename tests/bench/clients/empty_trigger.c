/*
 * empty_trigger.c
 *		A row trigger that does nothing: what PostgreSQL asks of any.
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(empty_trigger);

Datum
empty_trigger(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ?
						   trigger->tg_newtuple : trigger->tg_trigtuple);
}
