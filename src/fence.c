/*-------------------------------------------------------------------------
 *
 * fence.c
 *	  The fence: a transaction's proof that its token is current, good until
 *	  that (sub)transaction ends.
 *
 * A fence is ShareLock on the lease, taken before the row is read: any number
 * of the leader's transactions hold it at once, and no takeover, which needs
 * ExclusiveLock, commits until they have ended.  Nothing is written.
 *
 * What a transaction holds is remembered in fence_memory.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"

#include "leader_lease.h"

PG_FUNCTION_INFO_V1(lease_check_fence);
PG_FUNCTION_INFO_V1(lease_require_fence);

static FenceVerdict
stale(FenceFailure *failure, LeaseVerdict why, const LeaseRow *row)
{
	failure->why = why;
	failure->current = row != NULL ? row->token : 0;
	return FENCE_STALE;
}

/*
 * Takes the fence for (role, holder, token), or finds that it is held, and
 * says what came of it; raises nothing for what a caller may do wrong.  A
 * holder without data is proof by the token alone.  userid is whose right
 * counts.  *fence is set for FENCE_HELD.
 *
 * Lock, then look, then read the clock, then decide.  The lock is asked for
 * without waiting: when a takeover is under way, a stale caller gets his "no"
 * from the row at once, and only one who looks current waits for it, at most
 * takeover_timeout.  When the check fails the lock is given back.  The number
 * to lock comes from a hint, and so does the owner, who is asked first; the
 * row read under the lock tells whether the hint was right.
 */
FenceVerdict
fence_take(Oid relid, LeaseName role, LeaseName holder, int64 token,
		   Oid userid, Fence **result, FenceFailure *failure)
{
	LeaseTable	table;
	FenceVerdict verdict;

	failure->role = role;
	failure->token = token;
	*result = fence_find_own(relid, role, holder, token, userid);
	if (*result != NULL)
		return fence_seen(*result);

	lease_table_open(&table, relid);
	for (;;)
	{
		uint32		number;
		LeaseName	owner;
		LeaseMoment now;
		LeaseVerdict term;

		if (!lease_hint_find(relid, role, &number, &owner))
		{
			if (!lease_table_find(&table, role))
			{
				verdict = stale(failure, TERM_NO_LEASE, NULL);
				break;
			}
			lease_hint_remember(relid, &table.row);
			continue;
		}
		if (!lease_access_allowed(owner, userid))
		{
			verdict = FENCE_DENIED;
			/* perhaps the hint is of before the owner changed */
			if (lease_table_find(&table, role) &&
				lease_access_allowed(table.row.owner, userid))
			{
				lease_hint_remember(relid, &table.row);
				continue;
			}
			break;
		}

		if (!lease_lock(relid, number, ShareLock, 0))
		{
			if (lease_table_find(&table, role))
			{
				lease_clock_read(&now);
				term = lease_term_judge(relid, &table.row, holder, token,
										&now);
				if (term != TERM_CURRENT)
				{
					verdict = stale(failure, term, &table.row);
					break;
				}
			}
			lease_table_unpin(&table);
			if (!lease_lock(relid, number, ShareLock,
							failure->nowait ? 0 : lease_takeover_limit()))
			{
				verdict = FENCE_BUSY;
				break;
			}
		}

		/* from here on no takeover commits until we let go */
		if (!lease_table_find(&table, role) || table.row.number != number ||
			!lease_name_equal(table.row.owner, owner))
		{
			lease_unlock(relid, number, ShareLock);
			lease_hint_forget(role);
			continue;
		}
		lease_clock_read(&now);
		term = lease_term_judge(relid, &table.row, holder, token, &now);

		/*
		 * A statement of our own may be ending the term right now, by hand:
		 * it has the lock, and its row is not to be seen yet.
		 */
		if (term == TERM_CURRENT &&
			lease_lock_held(relid, number, ExclusiveLock) &&
			!FullTransactionIdEquals(table.row.granted_xid,
									 GetTopFullTransactionIdIfAny()))
			term = TERM_ENDED;
		if (term != TERM_CURRENT)
		{
			lease_unlock(relid, number, ShareLock);
			verdict = stale(failure, term, &table.row);
			break;
		}
		*result = fence_remember(relid, &table.row, userid);
		verdict = fence_seen(*result);
		break;
	}
	lease_table_close(&table);
	return verdict;
}

/*
 * Why a write has no fence, where nothing that it shows could take one: its
 * transaction has ended the term itself, or the token it carries (if shown)
 * is not the current one; or it shows nothing that counts.  Takes no lock.
 */
FenceVerdict
fence_explain(Oid relid, LeaseName role, bool shown, int64 token, Oid userid,
			  FenceFailure *failure)
{
	FenceVerdict verdict = FENCE_REQUIRED;
	LeaseTable	table;

	failure->token = token;
	if (fence_was_ended(relid, role))
		return stale(failure, TERM_ENDED, NULL);
	if (!shown)
		return FENCE_REQUIRED;

	lease_table_open(&table, relid);
	if (OidIsValid(userid) && lease_table_find(&table, role) &&
		lease_access_allowed(table.row.owner, userid) &&
		table.row.token != token)
		verdict = stale(failure, TERM_OTHER_TOKEN, &table.row);
	lease_table_close(&table);
	return verdict;
}

static const char *
stale_detail(const FenceFailure *failure)
{
	switch (failure->why)
	{
		case TERM_NO_LEASE:
			return "There is no such lease.";
		case TERM_OTHER_TOKEN:
			return psprintf("Token %lld was shown, token %lld is current.",
							(long long) failure->token,
							(long long) failure->current);
		case TERM_OTHER_HOLDER:
			return "The token belongs to another holder.";
		case TERM_BEFORE_FAILOVER:
			return "The term began before a failover or restore.";
		case TERM_ENDED:
			return "The term was ended.";
		case TERM_EXPIRED:
			return "The term has run out.";
		case TERM_SESSION_ENDED:
			return "The session that the term was bound to has ended.";
		case TERM_CURRENT:
			break;
	}
	return "The term is over.";
}

/*
 * Says why a fence is missing: raises it, or logs it in a guard's mode 'log'.
 * target is the protected table, NULL for a call of a function.
 */
void
fence_report(int elevel, FenceVerdict verdict, const FenceFailure *failure,
			 Relation target)
{
	const char *where = target == NULL ? NULL :
		RelationGetRelationName(target);
	LeaseName	role = failure->role;

#define SUBJECT(text) \
	(where == NULL ? \
	 errmsg(text " lease \"%.*s\"", NAME_ARGS(role)) : \
	 errmsg(text " lease \"%.*s\" in a write to \"%s\"", NAME_ARGS(role), where))

	switch (verdict)
	{
		case FENCE_STALE:
			ereport(elevel,
					(errcode(ERRCODE_STALE_FENCE),
					 SUBJECT("stale fence of"),
					 errdetail_internal("%s", stale_detail(failure)),
					 errhint("Stop leader work and acquire the lease again."),
					 target ? errtable(target) : 0));
			break;
		case FENCE_REQUIRED:
			ereport(elevel,
					(errcode(ERRCODE_FENCE_REQUIRED),
					 SUBJECT("no fence of"),
					 failure->detail ? errdetail_internal("%s", failure->detail) : 0,
					 errhint("%s", failure->hint ? failure->hint :
							 "Call lease_require_fence in the same transaction, or set leader_lease.fence."),
					 target ? errtable(target) : 0));
			break;
		case FENCE_DENIED:
			ereport(elevel,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 SUBJECT("permission denied for"),
					 errhint("Only members of its owner may use a lease."),
					 target ? errtable(target) : 0));
			break;
		case FENCE_BUSY:
			ereport(elevel,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 SUBJECT("a takeover is under way for"),
					 errhint("Retry the transaction."),
					 target ? errtable(target) : 0));
			break;
		case FENCE_NOT_SEEN:
			ereport(elevel,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 SUBJECT("snapshot is older than the term of"),
					 errdetail("Rows read with it may be from before the takeover."),
					 errhint("Retry the transaction."),
					 target ? errtable(target) : 0));
			break;
		case FENCE_TOO_EARLY:
			ereport(elevel,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 SUBJECT("too early for a fence of"),
					 errdetail("The snapshot was taken before this transaction acquired the lease."),
					 errhint("Commit the acquisition first."),
					 target ? errtable(target) : 0));
			break;
		case FENCE_HELD:
			break;
	}
#undef SUBJECT
}

static FenceVerdict
take_by_arguments(FunctionCallInfo fcinfo, const char *command,
				  FenceFailure *failure)
{
	LeaseName	role = lease_arg_name(fcinfo, 0, "lease name");
	LeaseName	holder = lease_arg_name(fcinfo, 1, "holder");
	int64		token = lease_arg_token(fcinfo, 2);
	Fence	   *fence;

	PreventCommandDuringRecovery(command);
	PreventCommandIfParallelMode(command);
	return fence_take(lease_table_oid(fcinfo), role, holder, token,
					  GetUserId(), &fence, failure);
}

/*
 * lease_check_fence(role text, holder text, token bigint) -> boolean
 *
 * True: the term is current and stays so until this (sub)transaction ends.
 * False: stale, expired, unknown; nothing is held.  NULL arguments 22004, not
 * the caller's lease 42501, on a standby 25006, a takeover under way 55P03, a
 * term that the snapshot has not seen begin 40001 or 55000.  Works in a
 * read-only transaction.
 */
Datum
lease_check_fence(PG_FUNCTION_ARGS)
{
	FenceFailure failure = {0};
	FenceVerdict verdict = take_by_arguments(fcinfo, "lease_check_fence()",
											 &failure);

	if (verdict != FENCE_HELD && verdict != FENCE_STALE)
		fence_report(ERROR, verdict, &failure, NULL);
	PG_RETURN_BOOL(verdict == FENCE_HELD);
}

/*
 * lease_require_fence(role text, holder text, token bigint) -> bigint
 *
 * The token, with the fence held, or an error: LF001 where lease_check_fence
 * says false, so that SET completed_by_token = lease_require_fence(...) fences
 * and stamps in one statement.
 */
Datum
lease_require_fence(PG_FUNCTION_ARGS)
{
	FenceFailure failure = {0};
	FenceVerdict verdict = take_by_arguments(fcinfo, "lease_require_fence()",
											 &failure);

	if (verdict != FENCE_HELD)
		fence_report(ERROR, verdict, &failure, NULL);
	PG_RETURN_INT64(PG_GETARG_INT64(2));
}
