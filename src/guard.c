/*-------------------------------------------------------------------------
 *
 * guard.c
 *	  The trigger lease_fence: a protected table is written only by a
 *	  transaction that holds the fence of its lease.
 *
 * The arguments are the lease's name and options in words, since dumps keep
 * them for ever:
 *
 *	token_column=NAME	bigint column that is stamped with the token
 *	proof=fence|row		row: a write may also carry the token itself
 *	mode=enforce|log	log: let through what would be refused, and log it
 *
 * It fires BEFORE each row of INSERT, UPDATE and DELETE, named to sort after
 * ordinary triggers so that it sees what is really written, and BEFORE
 * TRUNCATE.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "leader_lease.h"

PG_FUNCTION_INFO_V1(lease_fence);

/* nobody's token: the value of a column that knows no NULL, for none */
#define NO_TOKEN	INT64CONST(0)

/* a trigger's arguments, read once a statement */
typedef struct Guard
{
	LeaseName	role;
	AttrNumber	token_column;	/* 0: none */
	bool		proof_row;
	bool		log_only;
	bool		logged;			/* once a statement is enough */
	Fence	   *fence;			/* good while the generation is this: */
	uint64		generation;
} Guard;

/* the token that the row about to be written brings along */
typedef struct CarriedToken
{
	bool		shown;			/* there is one, assigned by the statement */
	int64		value;
} CarriedToken;

static const char *
option_value(const char *option, const char *name)
{
	size_t		len = strlen(name);

	return strncmp(option, name, len) == 0 && option[len] == '=' ?
		option + len + 1 : NULL;
}

static void
protocol_error(const char *message)
{
	ereport(ERROR,
			(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
			 errmsg_internal("function \"lease_fence\" %s", message)));
}

/*
 * The token column's number.  Where it is not there any more, or no place for
 * a token, that is an error; in mode 'log', which lets everything through, a
 * line in the log.
 */
static AttrNumber
find_token_column(Relation rel, const char *name, bool log_only)
{
	TupleDesc	desc = RelationGetDescr(rel);
	int			att = SPI_fnumber(desc, name);

	/* what is generated is computed after us, and would take no stamp */
	if (att > 0 && TupleDescAttr(desc, att - 1)->atttypid == INT8OID &&
		TupleDescAttr(desc, att - 1)->attgenerated == '\0')
		return att;
	ereport(log_only ? LOG : ERROR,
			(errcode(ERRCODE_UNDEFINED_COLUMN),
			 errmsg("token column \"%s\" of \"%s\" is not an ordinary bigint column",
					name, RelationGetRelationName(rel)),
			 errhint("Call lease_protect again.")));
	return 0;
}

/*
 * The guard that the trigger's arguments describe.  It lives with the
 * trigger's FmgrInfo, that is for one statement and one table.
 */
static Guard *
get_guard(FunctionCallInfo fcinfo)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;
	Trigger    *trigger = trigdata->tg_trigger;
	Guard	   *guard = fcinfo->flinfo->fn_extra;
	const char *column = NULL;

	if (guard != NULL)
		return guard;

	if (trigger->tgnargs < 1 || trigger->tgargs[0][0] == '\0')
		protocol_error("must be given the name of a lease");
	guard = MemoryContextAllocZero(fcinfo->flinfo->fn_mcxt, sizeof(Guard));
	guard->role.data = trigger->tgargs[0];
	guard->role.len = strlen(trigger->tgargs[0]);
	for (int i = 1; i < trigger->tgnargs; i++)
	{
		const char *option = trigger->tgargs[i];
		const char *value;

		if ((value = option_value(option, "token_column")) != NULL)
			column = value;
		else if (strcmp(option, "proof=row") == 0)
			guard->proof_row = true;
		else if (strcmp(option, "proof=fence") == 0)
			guard->proof_row = false;
		else if (strcmp(option, "mode=log") == 0)
			guard->log_only = true;
		else if (strcmp(option, "mode=enforce") == 0)
			guard->log_only = false;
		else
			ereport(ERROR,
					(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
					 errmsg("function \"lease_fence\" does not know the option \"%s\"",
							option)));
	}
	if (guard->proof_row && column == NULL)
		protocol_error("needs token_column with proof=row");
	if (column != NULL)
		guard->token_column = find_token_column(trigdata->tg_relation, column,
												guard->log_only);
	fcinfo->flinfo->fn_extra = guard;
	return guard;
}

/*
 * Whose right counts when the guard itself takes the fence: the current
 * user's, as with the functions.  A foreign key's cascade runs as the owner of
 * the table it writes, for whoever caused it; there it is the session's outer
 * user.  In a security-restricted operation it is nobody's: code of strangers
 * runs there.
 */
static Oid
guard_user(void)
{
	if (InSecurityRestrictedOperation())
		return InvalidOid;
	/* a SECURITY DEFINER function sets the first, a cascade both */
	if (InLocalUserIdChange() && InNoForceRLSOperation())
		return GetOuterUserId();
	return GetUserId();
}

static CarriedToken
carried_token(TriggerData *trigdata, const Guard *guard)
{
	CarriedToken carried = {false, 0};
	TupleDesc	desc = RelationGetDescr(trigdata->tg_relation);
	HeapTuple	tuple = trigdata->tg_trigtuple;
	bool		isnull;

	if (guard->token_column == 0 || TRIGGER_FIRED_FOR_STATEMENT(trigdata->tg_event) ||
		TRIGGER_FIRED_BY_DELETE(trigdata->tg_event))
		return carried;
	if (TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event))
	{
		/* a stamp that was left where it is shows nothing */
		if (!bms_is_member(guard->token_column - FirstLowInvalidHeapAttributeNumber,
						   trigdata->tg_updatedcols))
			return carried;
		tuple = trigdata->tg_newtuple;
	}
	carried.value = DatumGetInt64(heap_getattr(tuple, guard->token_column,
											   desc, &isnull));
	carried.shown = !isnull && carried.value != NO_TOKEN;
	return carried;
}

/*
 * Takes the fence by what the session or the row shows: the claim in
 * leader_lease.fence, else, with proof=row, the token in the row.
 */
static FenceVerdict
take_shown(Guard *guard, Oid relid, const CarriedToken *carried,
		   FenceFailure *failure)
{
	LeaseName	anybody = {NULL, 0};
	LeaseClaim	claim;
	Oid			userid;

	userid = guard_user();
	switch (lease_claim_find(guard->role, &claim, &failure->detail))
	{
		case CLAIM_FOUND:
			break;
		case CLAIM_BAD:
			return FENCE_REQUIRED;
		case CLAIM_NONE:
			if (!guard->proof_row || !carried->shown)
				return fence_explain(relid, guard->role, carried->shown,
									 carried->value, userid, failure);
			claim.holder = anybody;
			claim.token = carried->value;
	}

	if (!OidIsValid(userid))
		return FENCE_DENIED;
	return fence_take(relid, guard->role, claim.holder, claim.token, userid,
					  &guard->fence, failure);
}

/*
 * Does the transaction hold the fence, or can it have it now?
 */
static FenceVerdict
require_fence(Guard *guard, FunctionCallInfo fcinfo,
			  const CarriedToken *carried, FenceFailure *failure)
{
	Oid			relid = InvalidOid;
	FenceVerdict verdict;

	if (guard->fence == NULL || guard->generation != fence_generation())
	{
		relid = lease_table_oid(fcinfo);
		guard->fence = fence_find(relid, guard->role);
		guard->generation = fence_generation();
	}
	failure->role = guard->role;
	if (guard->fence != NULL)
		return fence_seen(guard->fence);

	verdict = take_shown(guard, lease_table_oid(fcinfo), carried, failure);
	if (verdict != FENCE_HELD)
		guard->fence = NULL;
	guard->generation = fence_generation();
	return verdict;
}

/*
 * The tuple with the current token in its token column.  A token given that
 * is neither the row's old one nor the current one is refused: somebody means
 * another term.
 */
static HeapTuple
stamp(TriggerData *trigdata, const Guard *guard, HeapTuple tuple,
	  FenceVerdict *verdict, FenceFailure *failure)
{
	Relation	rel = trigdata->tg_relation;
	TupleDesc	desc = RelationGetDescr(rel);
	int64		token = fence_token(guard->fence);
	int			att = guard->token_column;
	bool		isnull;
	bool		old_isnull;
	int64		given;
	int64		old = NO_TOKEN;
	Datum		value;

	given = DatumGetInt64(heap_getattr(tuple, att, desc, &isnull));
	if (!isnull && given == token)
		return tuple;
	isnull = isnull || given == NO_TOKEN;
	if (TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event))
	{
		old = DatumGetInt64(heap_getattr(trigdata->tg_trigtuple, att, desc,
										 &old_isnull));
		if (old_isnull)
			old = NO_TOKEN;
	}
	if (!isnull && given != old)
	{
		*verdict = FENCE_STALE;
		failure->role = guard->role;
		failure->why = TERM_OTHER_TOKEN;
		failure->token = given;
		failure->current = token;
		return tuple;
	}
	value = Int64GetDatum(token);
	isnull = false;
	return heap_modify_tuple_by_cols(tuple, desc, 1, &att, &value, &isnull);
}

/*
 * lease_fence(role [, 'option=value' ...]), a trigger.
 *
 * With the fence of its lease the write passes and is stamped.  Without, it is
 * refused: LF001 for a token that is not current, LF002 for none at all; other
 * reasons as for lease_require_fence.
 */
Datum
lease_fence(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;
	FenceFailure failure = {0};
	FenceVerdict verdict;
	CarriedToken carried;
	HeapTuple	tuple;
	Guard	   *guard;

	if (!CALLED_AS_TRIGGER(fcinfo))
		protocol_error("was not called by trigger manager");
	if (!TRIGGER_FIRED_BEFORE(trigdata->tg_event))
		protocol_error("must be fired BEFORE the event");
	if (!TRIGGER_FIRED_FOR_ROW(trigdata->tg_event) &&
		!TRIGGER_FIRED_BY_TRUNCATE(trigdata->tg_event))
		protocol_error("must be fired FOR EACH ROW, or by TRUNCATE");

	guard = get_guard(fcinfo);
	carried = carried_token(trigdata, guard);
	verdict = require_fence(guard, fcinfo, &carried, &failure);

	if (TRIGGER_FIRED_BY_TRUNCATE(trigdata->tg_event))
		tuple = NULL;
	else if (TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event))
		tuple = trigdata->tg_newtuple;
	else
		tuple = trigdata->tg_trigtuple;

	if (verdict == FENCE_HELD && guard->token_column != 0 && tuple != NULL &&
		!TRIGGER_FIRED_BY_DELETE(trigdata->tg_event))
		tuple = stamp(trigdata, guard, tuple, &verdict, &failure);

	if (verdict != FENCE_HELD && !(guard->log_only && guard->logged))
	{
		fence_report(guard->log_only ? LOG : ERROR, verdict, &failure,
					 trigdata->tg_relation);
		guard->logged = true;
	}
	PG_RETURN_POINTER(tuple);
}
