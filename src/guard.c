/*-------------------------------------------------------------------------
 *
 * guard.c
 *	  The trigger lease_fence: a protected table is written only by a
 *	  transaction that holds the fence of its lease.
 *
 * The lease is the table's, or, with a key column, the row's own; an UPDATE
 * that changes the key takes the row from one lease and gives it to another,
 * and needs the fences of both.
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
#include "commands/trigger.h"
#include "miscadmin.h"
#include "utils/rel.h"

#include "guard.h"
#include "observe.h"

PG_FUNCTION_INFO_V1(lease_fence);

/* the token that the row about to be written brings along */
typedef struct CarriedToken
{
	bool		shown;			/* there is one, assigned by the statement */
	bool		written_back;	/* it is the one that the row had */
	int64		value;
} CarriedToken;

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
	CarriedToken carried = {false, false, 0};
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
	if (carried.shown && guard->proof == PROOF_HIGHEST &&
		TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event))
		carried.written_back = carried.value ==
			DatumGetInt64(heap_getattr(trigdata->tg_trigtuple,
									   guard->token_column, desc, &isnull)) &&
			!isnull;
	return carried;
}

/*
 * Takes the fence by what the session or the row shows: the claim in
 * leader_lease.fence, else, with proof=row, the token in the row.
 */
static FenceVerdict
take_shown(const Guard *guard, GuardLease *lease, Oid relid,
		   const CarriedToken *carried, FenceFailure *failure)
{
	LeaseName	anybody = {NULL, 0};
	LeaseClaim	claim;
	Oid			userid;

	userid = guard_user();
	switch (lease_claim_find(lease->name, &claim, &failure->detail))
	{
		case CLAIM_FOUND:
			break;
		case CLAIM_BAD:
			return FENCE_REQUIRED;
		case CLAIM_NONE:
			if (guard->proof != PROOF_ROW || !carried->shown)
				return fence_explain(relid, lease->name, carried->shown,
									 carried->value, userid, failure);
			claim.holder = anybody;
			claim.token = carried->value;
	}

	if (!OidIsValid(userid))
		return FENCE_DENIED;
	return fence_take(relid, lease->name, claim.holder, claim.token, userid,
					  &lease->fence, failure);
}

/*
 * With proof=highest: has the transaction observed the resource's token, or
 * can it now?  By the claim in leader_lease.fence, whose holder means nothing
 * here, or by the token in the row.  Where the transaction has one already, a
 * token in the row is another only if it is not the old one written back.
 */
static FenceVerdict
require_observed(GuardLease *lease, FunctionCallInfo fcinfo,
				 const CarriedToken *carried, FenceFailure *failure)
{
	Oid			relid = lease_observed_oid(fcinfo);
	Oid			userid = guard_user();
	FenceVerdict verdict = FENCE_REQUIRED;
	LeaseClaim	claim;

	failure->relid = relid;
	if (lease->fence != NULL)
		verdict = fence_seen(lease->fence);
	else
	{
		switch (lease_claim_find(lease->name, &claim, &failure->detail))
		{
			case CLAIM_FOUND:
				if (!OidIsValid(userid))
					return FENCE_DENIED;
				verdict = observe_take(relid, lease->name, claim.token, userid,
									   &lease->fence, failure);
				if (verdict == FENCE_STALE || lease->fence == NULL)
					return verdict;
				break;
			case CLAIM_BAD:
				return FENCE_REQUIRED;
			case CLAIM_NONE:
				if (!carried->shown)
					return FENCE_REQUIRED;
		}
	}
	if (!carried->shown ||
		(lease->fence != NULL &&
		 (carried->value == fence_token(lease->fence) || carried->written_back)))
		return verdict;
	if (!OidIsValid(userid))
		return FENCE_DENIED;
	return observe_take(relid, lease->name, carried->value, userid,
						&lease->fence, failure);
}

/*
 * Takes the fence, of whichever kind, by what is shown.
 */
static pg_noinline FenceVerdict
take_fence(const Guard *guard, GuardLease *lease, FunctionCallInfo fcinfo,
		   bool by_row, FenceFailure *failure)
{
	CarriedToken carried = {false, false, 0};
	FenceVerdict verdict;

	failure->role = lease->name;
	if (by_row)
		carried = carried_token((TriggerData *) fcinfo->context, guard);
	if (guard->proof == PROOF_HIGHEST)
		verdict = require_observed(lease, fcinfo, &carried, failure);
	else
		verdict = take_shown(guard, lease, lease_table_oid(fcinfo), &carried,
							 failure);
	if (verdict != FENCE_HELD)
		lease->fence = NULL;
	lease->generation = fence_generation();
	return verdict;
}

/*
 * Does the transaction hold the fence of a lease, or can it have it now?
 * by_row: the token in the row is of this lease.
 */
static FenceVerdict
require_fence(const Guard *guard, GuardLease *lease, FunctionCallInfo fcinfo,
			  bool by_row, FenceFailure *failure)
{
	if (lease->fence == NULL || lease->generation != fence_generation())
	{
		lease->fence = fence_find(guard->proof == PROOF_HIGHEST ?
								  lease_observed_oid(fcinfo) :
								  lease_table_oid(fcinfo), lease->name);
		lease->generation = fence_generation();
	}
	if (lease->fence == NULL || guard->proof == PROOF_HIGHEST)
		return take_fence(guard, lease, fcinfo, by_row, failure);
	failure->role = lease->name;
	return fence_seen(lease->fence);
}

/*
 * The same where each row has its lease by its key.  The token that an UPDATE
 * assigns is of the new key's lease; it proves nothing for the old one's.
 *
 * The old key is looked at first, so that the new one's fence is the last to
 * come and the one to stamp by.
 */
static FenceVerdict
require_fences_by_key(Guard *guard, FunctionCallInfo fcinfo,
					  FenceFailure *failure)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;
	Relation	rel = trigdata->tg_relation;
	FenceVerdict verdict;

	failure->role = guard->role;
	if (guard->unusable)
		return FENCE_REQUIRED;
	if (TRIGGER_FIRED_BY_TRUNCATE(trigdata->tg_event))
	{
		failure->detail = "TRUNCATE empties a table that holds the rows of many leases, and no fence covers them all.";
		failure->hint = "Delete the rows of one lease, or call lease_protect again without the event truncate.";
		return FENCE_REQUIRED;
	}
	if (!TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event))
	{
		if (!guard_name_lease(guard, &guard->lease, rel,
							  trigdata->tg_trigtuple, failure))
			return FENCE_REQUIRED;
		return require_fence(guard, &guard->lease, fcinfo, true, failure);
	}

	if (!guard_name_lease(guard, &guard->former, rel,
						  trigdata->tg_trigtuple, failure) ||
		!guard_name_lease(guard, &guard->lease, rel,
						  trigdata->tg_newtuple, failure))
		return FENCE_REQUIRED;
	if (!lease_name_equal(guard->former.name, guard->lease.name))
	{
		verdict = require_fence(guard, &guard->former, fcinfo, false,
								failure);
		if (verdict != FENCE_HELD)
			return verdict;
	}
	return require_fence(guard, &guard->lease, fcinfo, true, failure);
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
	int64		token = fence_token(guard->lease.fence);
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
		failure->role = guard->lease.name;
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
	HeapTuple	tuple;
	Guard	   *guard;

	if (!CALLED_AS_TRIGGER(fcinfo))
		guard_protocol_error("was not called by trigger manager");
	if (!TRIGGER_FIRED_BEFORE(trigdata->tg_event))
		guard_protocol_error("must be fired BEFORE the event");
	if (!TRIGGER_FIRED_FOR_ROW(trigdata->tg_event) &&
		!TRIGGER_FIRED_BY_TRUNCATE(trigdata->tg_event))
		guard_protocol_error("must be fired FOR EACH ROW, or by TRUNCATE");

	guard = fcinfo->flinfo->fn_extra;
	if (guard == NULL)
		fcinfo->flinfo->fn_extra = guard = guard_read_options(fcinfo);
	/* in mode 'log' nothing may fail, and a wait can: by the user's timeout */
	failure.nowait = guard->log_only;
	if (guard->key_column == 0 && !guard->unusable)
		verdict = require_fence(guard, &guard->lease, fcinfo, true, &failure);
	else
		verdict = require_fences_by_key(guard, fcinfo, &failure);

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
		(guard->proof == PROOF_HIGHEST ? observe_report : fence_report)
			(guard->log_only ? LOG : ERROR, verdict, &failure,
			 trigdata->tg_relation);
		guard->logged = true;
	}
	PG_RETURN_POINTER(tuple);
}
