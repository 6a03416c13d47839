/*-------------------------------------------------------------------------
 *
 * observe_table.c
 *	  The trigger that keeps statements written by hand safe on the table
 *	  leader_lease_observed: as table_guard.c does for the lease table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "leader_lease.h"

PG_FUNCTION_INFO_V1(lease_observed_guard);

/* how long a transaction that has ended may take to give back its locks */
#define SETTLE_US	INT64CONST(100000)

static void
refuse(const LeaseRow *row, const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_CHECK_VIOLATION),
			 errmsg("resource \"%.*s\": %s", NAME_ARGS(row->role), what)));
}

/*
 * Marks the row's token as raised by the present command.
 */
static void
mark_raised(Oid relid, LeaseRow *row)
{
	row->origin = lease_origin(relid);
	row->granted_xid = GetTopFullTransactionId();
	row->granted_cid = GetCurrentCommandId(true);
	fence_note_term();
}

/*
 * Before INSERT.  No lock: nobody has an observation of what is not there.
 * Where the row will be found to be in conflict with one that exists it draws
 * no number.
 */
static HeapTuple
before_insert(Relation rel, HeapTuple tuple)
{
	Oid			relid = RelationGetRelid(rel);
	LeaseRow	row;
	HeapTuple	conflicting;
	bool		dumped;

	lease_row_require_not_null(rel, tuple);
	lease_row_decode_tuple(rel, tuple, &row);
	lease_check_name(row.role, "resource name");
	if (row.owner.len >= NAMEDATALEN)
		refuse(&row, "owner is not the name of a role");
	if (row.token < 0)
		refuse(&row, "fencing_token must not be negative");

	conflicting = lease_table_conflicting(rel, tuple, &row);
	if (conflicting != NULL)
		return conflicting;

	dumped = row.number != 0 && lease_access_restores(relid);
	if (row.owner.data == NULL)
		row.owner = lease_access_default_owner();
	else
		lease_access_require_grantable(relid, row.owner);
	/* lease_observe makes a row as its owner would, after asking itself */
	if (!lease_auto_create && !InNoForceRLSOperation() &&
		!lease_access_restores(relid))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("resource \"%.*s\" does not exist", NAME_ARGS(row.role)),
				 errhint("leader_lease.auto_create is off.")));
	if (!dumped)
		row.number = lease_number_draw(rel);
	if (row.token > 0 && row.acquired_at == DT_NOBEGIN)
		row.acquired_at = GetCurrentTimestamp();
	mark_raised(relid, &row);
	lease_xact_changed();
	return lease_row_encode(rel, tuple, &row);
}

/*
 * ExclusiveLock for a statement that has the row: asked for without waiting,
 * since who has the lock may want the row.
 */
static void
lock_by_hand(Oid relid, const LeaseRow *row)
{
	LeaseLockHolder *holders;
	int			count;

	if (lease_lock(relid, row->number, ExclusiveLock, 0))
		return;
	count = lease_lock_holders(relid, row->number, ExclusiveLock, &holders);

	/* one that has just ended may be about to give the lock back */
	if (count == 0 && !lease_lock_held(relid, row->number, ShareLock) &&
		lease_lock(relid, row->number, ExclusiveLock, SETTLE_US))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("other transactions go by the observed token of resource \"%.*s\"",
					NAME_ARGS(row->role)),
			 count > 0 ?
			 errdetail("Held back by %s.",
					   lease_holders_text(relid, holders, count)) : 0,
			 errhint("Retry when they have ended.")));
}

/*
 * Before UPDATE.  The row is locked and is the newest one.
 */
static HeapTuple
before_update(Relation rel, HeapTuple old_tuple, HeapTuple new_tuple)
{
	Oid			relid = RelationGetRelid(rel);
	LeaseRow	old;
	LeaseRow	given;
	LeaseRow	new;

	lease_row_require_not_null(rel, new_tuple);
	lease_row_decode_tuple(rel, old_tuple, &old);
	lease_row_decode_tuple(rel, new_tuple, &given);
	if (!lease_access_allowed(old.owner, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for resource \"%.*s\"",
						NAME_ARGS(old.role)),
				 errhint("Only members of its owner may use a resource.")));

	/* what a statement may change; the rest is ours */
	new = old;
	new.token = given.token;
	new.owner = given.owner;
	if (!lease_name_equal(given.role, old.role) || given.number != old.number)
		refuse(&old, "resource and number never change");
	if (new.owner.len >= NAMEDATALEN)
		refuse(&old, "owner is not the name of a role");
	if (new.owner.data != NULL && !lease_name_equal(new.owner, old.owner))
		lease_access_require_grantable(relid, new.owner);
	if (new.token < old.token)
		refuse(&old, "an observed token never falls");

	if (new.token > old.token)
	{
		lock_by_hand(relid, &old);
		new.acquired_at = GetCurrentTimestamp();
		mark_raised(relid, &new);
		fence_end_term(relid, old.number);
	}
	lease_xact_changed();
	return lease_row_encode(rel, new_tuple, &new);
}

/*
 * lease_observed_guard(), the trigger on leader_lease_observed.
 */
Datum
lease_observed_guard(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg_internal("function \"lease_observed_guard\" was not called by trigger manager")));
	if (TRIGGER_FIRED_BY_INSERT(trigdata->tg_event))
		PG_RETURN_POINTER(before_insert(trigdata->tg_relation,
										trigdata->tg_trigtuple));
	if (TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event))
		PG_RETURN_POINTER(before_update(trigdata->tg_relation,
										trigdata->tg_trigtuple,
										trigdata->tg_newtuple));
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("an observed token cannot be deleted"),
			 errdetail("Its row is what keeps older tokens out.")));
	PG_RETURN_NULL();
}
