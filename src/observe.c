/*-------------------------------------------------------------------------
 *
 * observe.c
 *	  A resource that has no lease here but refuses the past: the highest
 *	  token that was seen of it.
 *
 * The lease lives in another database.  Its token comes with each write, and
 * what is lower than the highest one seen is refused.  An observation of that
 * highest token is a fence: ShareLock on the resource, any number of them at
 * once, nothing written.  A raise is a takeover: ExclusiveLock, so that it
 * waits for the open writers of lower tokens, and the row.  Both use the
 * locks, the row and the memory of leases, with the table
 * leader_lease_observed in the place of leader_lease.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "observe.h"

PG_FUNCTION_INFO_V1(lease_observe);

static FenceVerdict
below(FenceFailure *failure, int64 highest)
{
	failure->why = TERM_OTHER_TOKEN;
	failure->current = highest;
	return FENCE_STALE;
}

/*
 * A fence for the row as it is.  What another origin has raised is no
 * transaction of ours, and was there before any of them.
 */
static Fence *
remember(LeaseTable *table, Oid userid)
{
	Oid			relid = RelationGetRelid(table->rel);
	LeaseRow	row = table->row;

	row.holder.data = "";
	row.holder.len = 0;
	if (row.origin != lease_origin(relid) ||
		!FullTransactionIdIsValid(row.granted_xid))
		row.granted_xid = FullTransactionIdFromEpochAndXid(0, FirstNormalTransactionId);
	return fence_remember(relid, &row, userid);
}

/*
 * Makes the row of a resource that nobody has spoken of, or says why not; who
 * comes second waits for the first within limit.
 */
static FenceVerdict
make_row(Oid relid, LeaseName resource, int64 limit, FenceFailure *failure)
{
	lease_require_writable("lease_observe()");
	if (!lease_auto_create)
	{
		failure->detail = "There is no such resource, and leader_lease.auto_create is off.";
		failure->hint = "Insert it into leader_lease_observed.";
		return FENCE_REQUIRED;
	}
	return lease_create_row(relid, resource, lease_access_default_owner(),
							0, limit) != CREATED_NOT ? FENCE_HELD : FENCE_BUSY;
}

/*
 * Raises the token of the resource whose row was just found.  Waits for open
 * writers of lower tokens, and for another's uncommitted raise, at most limit
 * microseconds; a transaction that has an observation itself does not wait,
 * since two such would wait for each other.  As a takeover it waits for no row
 * while it holds the lock.
 *
 * STEP_DONE with *fence set is success; without, the verdict and the failure
 * tell why not.  Otherwise the row has to be found anew.
 */
static LeaseStep
raise_token(LeaseTable *table, LeaseName resource, int64 token, Oid userid,
			int64 limit, Fence **fence, FenceVerdict *verdict,
			FenceFailure *failure)
{
	Oid			relid = RelationGetRelid(table->rel);
	uint32		number = table->row.number;
	LeaseRowLock locked = LEASE_ROW_CHANGED;

	lease_require_writable("lease_observe()");
	lease_table_for_update(table);
	lease_table_unpin(table);
	if (lease_lock_held(relid, number, ShareLock))
		limit = 0;
	if (!lease_lock(relid, number, ExclusiveLock, limit))
	{
		failure->nblockers = lease_lock_holders(relid, number, ExclusiveLock,
												&failure->blockers);
		return STEP_DONE;
	}

	/* no writer of a lower token is open now; was it raised meanwhile? */
	if (lease_table_find(table, resource) && table->row.number == number &&
		table->row.token < token)
	{
		/* the table must not show this transaction two versions of the row */
		if (IsolationUsesXactSnapshot() &&
			!table_tuple_satisfies_snapshot(table->rel, table->slot,
											GetTransactionSnapshot()))
		{
			lease_unlock(relid, number, ExclusiveLock);
			*verdict = FENCE_NOT_SEEN;
			return STEP_DONE;
		}
		locked = lease_table_lock_row(table);
	}
	if (locked != LEASE_ROW_LOCKED)
	{
		lease_unlock(relid, number, ExclusiveLock);
		return locked == LEASE_ROW_BUSY ? STEP_BUSY : STEP_AGAIN;
	}

	table->row.token = token;
	table->row.acquired_at = GetCurrentTimestamp();
	table->row.origin = lease_origin(relid);
	table->row.granted_xid = GetTopFullTransactionId();
	table->row.granted_cid = GetCurrentCommandId(true);
	fence_note_term();
	lease_table_update(table, &table->row);
	*fence = remember(table, userid);
	fence_note_begun_here(*fence);
	return STEP_DONE;
}

/*
 * An observation of the highest token, once the number to lock is known: the
 * lock first, then the row.  Without waiting at first: under a raise, only who
 * has the highest committed token waits for how it ends.
 */
static LeaseStep
share_token(LeaseTable *table, LeaseName resource, int64 token, Oid userid,
			uint32 number, LeaseName owner, int64 limit, Fence **fence)
{
	Oid			relid = RelationGetRelid(table->rel);
	bool		locked = lease_lock(relid, number, ShareLock, 0);

	if (!locked && lease_table_find(table, resource) &&
		table->row.number == number && table->row.token == token)
	{
		lease_table_unpin(table);
		if (!lease_lock(relid, number, ShareLock, limit))
			return STEP_BUSY;
		locked = true;
	}
	if (!lease_table_find(table, resource) || table->row.number != number ||
		!lease_name_equal(table->row.owner, owner))
	{
		/* the hint was wrong */
		if (locked)
			lease_unlock(relid, number, ShareLock);
		lease_hint_forget(resource);
		return STEP_AGAIN;
	}

	/* a statement of our own, by hand, may be raising it right now */
	if (locked && table->row.token == token &&
		(!lease_lock_held(relid, number, ExclusiveLock) ||
		 FullTransactionIdEquals(table->row.granted_xid,
								 GetTopFullTransactionIdIfAny())))
	{
		*fence = remember(table, userid);
		return STEP_DONE;
	}
	if (locked)
		lease_unlock(relid, number, ShareLock);
	return table->row.token == token && !locked ? STEP_AGAIN : STEP_DONE;
}

/*
 * Observes a token of a resource, or finds that the transaction has, and says
 * what came of it: FENCE_HELD (or FENCE_NOT_SEEN, FENCE_TOO_EARLY, also with
 * the lock held) when none higher was seen, FENCE_STALE when one was.  userid
 * is whose right counts.  A token that is not positive is nobody's.
 *
 * The right is asked before any lock, by a hint of who owns the resource.
 */
FenceVerdict
observe_take(Oid relid, LeaseName resource, int64 token, Oid userid,
			 Fence **result, FenceFailure *failure)
{
	LeaseName	anybody = {NULL, 0};
	int64		limit = failure->nowait ? 0 : lease_takeover_limit();
	FenceVerdict verdict = FENCE_BUSY;
	LeaseTable	table;

	failure->role = resource;
	failure->token = token;
	*result = fence_find_own(relid, resource, anybody, token, userid);
	if (*result != NULL && *result == fence_find(relid, resource))
		return fence_seen(*result);
	*result = NULL;

	lease_table_open(&table, relid);
	for (;;)
	{
		LeaseMoment start;
		LeaseMoment now;
		uint32		number;
		LeaseName	owner;
		LeaseStep	step;

		CHECK_FOR_INTERRUPTS();
		lease_clock_read(&start);
		if (!lease_hint_find(relid, resource, &number, &owner))
		{
			if (lease_table_find(&table, resource))
				lease_hint_remember(relid, &table.row);
			else if (token <= 0)
			{
				verdict = below(failure, 0);
				break;
			}
			else
			{
				verdict = make_row(relid, resource, limit, failure);
				if (verdict != FENCE_HELD)
					break;
				verdict = FENCE_BUSY;
			}
			continue;
		}
		if (!lease_access_allowed(owner, userid))
		{
			/* perhaps the hint is of before the owner changed */
			if (lease_table_find(&table, resource) &&
				lease_access_allowed(table.row.owner, userid))
			{
				lease_hint_remember(relid, &table.row);
				continue;
			}
			verdict = FENCE_DENIED;
			break;
		}

		step = share_token(&table, resource, token, userid, number, owner,
						   limit, result);
		if (step == STEP_BUSY)
			failure->nblockers = lease_lock_holders(relid, number, ShareLock,
													&failure->blockers);
		else if (step == STEP_DONE && *result == NULL)
		{
			if (token <= 0 || token <= table.row.token)
			{
				verdict = below(failure, table.row.token);
				break;
			}
			step = raise_token(&table, resource, token, userid, limit, result,
							   &verdict, failure);
			if (step == STEP_BUSY && limit != 0 &&
				lease_table_await_row(&table, limit))
				step = STEP_AGAIN;
		}
		if (*result != NULL)
		{
			verdict = fence_seen(*result);
			break;
		}
		if (step != STEP_AGAIN)
			break;
		lease_clock_read(&now);
		if (limit > 0)
			limit = Max(limit - (now.boottime - start.boottime), 0);
	}
	lease_table_close(&table);
	return verdict;
}

/*
 * Says why an observation is missing: raises it, or logs it in a guard's mode
 * 'log'.  target is the protected table, NULL for a call of the function.
 */
void
observe_report(int elevel, FenceVerdict verdict, const FenceFailure *failure,
			   Relation target)
{
	const char *where = target == NULL ? NULL :
		RelationGetRelationName(target);
	LeaseName	resource = failure->role;

#define SUBJECT(text) \
	(where == NULL ? \
	 errmsg(text " resource \"%.*s\"", NAME_ARGS(resource)) : \
	 errmsg(text " resource \"%.*s\" in a write to \"%s\"", NAME_ARGS(resource), where))

	switch (verdict)
	{
		case FENCE_STALE:
			ereport(elevel,
					(errcode(ERRCODE_STALE_FENCE),
					 SUBJECT("stale token of"),
					 errdetail("Token %lld was shown, token %lld has been seen.",
							   (long long) failure->token,
							   (long long) failure->current),
					 errhint("Stop leader work and acquire the lease again."),
					 target ? errtable(target) : 0));
			break;
		case FENCE_REQUIRED:
			ereport(elevel,
					(errcode(ERRCODE_FENCE_REQUIRED),
					 SUBJECT("no token of"),
					 failure->detail ? errdetail_internal("%s", failure->detail) : 0,
					 errhint("%s", failure->hint ? failure->hint :
							 "Call lease_observe in the same transaction, write the token into the row, or set leader_lease.fence."),
					 target ? errtable(target) : 0));
			break;
		case FENCE_DENIED:
			ereport(elevel,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 SUBJECT("permission denied for"),
					 errhint("Only members of its owner may use a resource."),
					 target ? errtable(target) : 0));
			break;
		case FENCE_BUSY:
			ereport(elevel,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 SUBJECT("could not observe in time a token of"),
					 failure->nblockers > 0 ?
					 errdetail("Held back by %s.",
							   lease_holders_text(failure->relid,
												  failure->blockers,
												  failure->nblockers)) : 0,
					 errhint("Retry when other transactions have ended."),
					 target ? errtable(target) : 0));
			break;
		case FENCE_NOT_SEEN:
			ereport(elevel,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 SUBJECT("snapshot is older than the token of"),
					 errdetail("Rows read with it may be from before the takeover."),
					 errhint("Retry the transaction."),
					 target ? errtable(target) : 0));
			break;
		case FENCE_TOO_EARLY:
			ereport(elevel,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 SUBJECT("too early for a write by the token of"),
					 errdetail("The snapshot was taken before this transaction observed it."),
					 errhint("Commit the first observation of a token before you write."),
					 target ? errtable(target) : 0));
			break;
		case FENCE_HELD:
			break;
	}
#undef SUBJECT
}

/*
 * lease_observe(resource text, token bigint) -> boolean
 *
 * True when no higher token of the resource was seen, and none will be until
 * this (sub)transaction ends; false when one was, and nothing is held then.
 * The first to show a higher token writes it: he waits for open transactions
 * that observed a lower one, 55P03 after takeover_timeout.  A resource that
 * nobody has spoken of is made, with an owner as a lease is.
 *
 * True also for who has just raised it with a snapshot that is older: what he
 * reads before is his affair, and guards ask anew.  40001 where another's
 * raise is newer than the snapshot.  NULL 22004, not the caller's 42501, on a
 * standby 25006; a raise in a read-only transaction, too.
 */
Datum
lease_observe(PG_FUNCTION_ARGS)
{
	LeaseName	resource = lease_arg_name(fcinfo, 0, "resource name");
	int64		token = lease_arg_token(fcinfo, 1);
	FenceFailure failure = {0};
	FenceVerdict verdict;
	Fence	   *fence;

	PreventCommandDuringRecovery("lease_observe()");
	PreventCommandIfParallelMode("lease_observe()");
	failure.relid = lease_observed_oid(fcinfo);
	verdict = observe_take(failure.relid, resource, token, GetUserId(),
						   &fence, &failure);
	if (verdict == FENCE_STALE)
		PG_RETURN_BOOL(false);
	if (verdict == FENCE_REQUIRED)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("resource \"%.*s\" does not exist", NAME_ARGS(resource)),
				 errhint("leader_lease.auto_create is off: insert it into leader_lease_observed.")));
	if (verdict != FENCE_HELD && (fence == NULL || !fence_begun_by_us(fence)))
		observe_report(ERROR, verdict, &failure, NULL);
	PG_RETURN_BOOL(true);
}
