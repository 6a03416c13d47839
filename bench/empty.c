/*-------------------------------------------------------------------------
 *
 * empty.c
 *	  What a C function and a C trigger cost that do nothing.
 *
 * The measurements compare with these: what is left is the extension's own.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(empty_function);
PG_FUNCTION_INFO_V1(empty_trigger);

Datum
empty_function(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(true);
}

/* BEFORE INSERT or UPDATE, FOR EACH ROW: lets the row through as it is. */
Datum
empty_trigger(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;

	PG_RETURN_POINTER(TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event) ?
					  trigdata->tg_newtuple : trigdata->tg_trigtuple);
}
