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
 * What a transaction holds it remembers here, so that the next check and each
 * guarded row is a look into memory.  An entry lives as long as its lock: it
 * goes with its own subtransaction's abort or an ancestor's, and passes to the
 * parent at commit.  Rolling back to a later savepoint leaves it, else drivers
 * that set a savepoint around each statement would lose their fence.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "leader_lease.h"

PG_FUNCTION_INFO_V1(lease_check_fence);
PG_FUNCTION_INFO_V1(lease_require_fence);

struct Fence
{
	Oid			relid;
	uint32		number;
	LeaseName	role;
	LeaseName	holder;
	int64		token;
	FullTransactionId xid;		/* granted the term .. */
	CommandId	cid;			/* .. with this command */
	Oid			userid;			/* who was allowed to take it */
	SubTransactionId held_in;
	SubTransactionId ended_in;	/* ended the term itself, if valid */
	TransactionId seen_xmin;	/* a snapshot with this xmin saw it begin */
	Fence	   *next;
};

/*
 * The fences of this transaction, newest first, in TopTransactionContext.
 * Pointers to them hold as long as the generation stays the same.
 */
static Fence *fences = NULL;
static uint64 generation = 1;

static LeaseName
copy_name(LeaseName name)
{
	LeaseName	copy = {pnstrdup(name.data, name.len), name.len};

	return copy;
}

static Fence *
remember(Oid relid, const LeaseRow *row, Oid userid)
{
	MemoryContext context = MemoryContextSwitchTo(TopTransactionContext);
	Fence	   *fence = palloc0(sizeof(Fence));

	fence->relid = relid;
	fence->number = row->number;
	fence->role = copy_name(row->role);
	fence->holder = copy_name(row->holder);
	fence->token = row->token;
	fence->xid = row->granted_xid;
	fence->cid = row->granted_cid;
	fence->userid = userid;
	fence->held_in = GetCurrentSubTransactionId();
	fence->next = fences;
	fences = fence;
	generation++;
	MemoryContextSwitchTo(context);
	return fence;
}

/*
 * A transaction may take and lose fences in any number of subtransactions.
 */
static void
forget(Fence *fence)
{
	pfree(unconstify(char *, fence->role.data));
	pfree(unconstify(char *, fence->holder.data));
	pfree(fence);
}

/*
 * This transaction's fence of a lease, or NULL.  One whose term the
 * transaction has ended itself is none.
 */
Fence *
fence_find(Oid relid, LeaseName role)
{
	for (Fence *fence = fences; fence != NULL; fence = fence->next)
		if (fence->ended_in == InvalidSubTransactionId &&
			fence->relid == relid && lease_name_equal(fence->role, role))
			return fence;
	return NULL;
}

int64
fence_token(const Fence *fence)
{
	return fence->token;
}

/*
 * Changes whenever a fence comes, goes or ends.
 */
uint64
fence_generation(void)
{
	return generation;
}

/*
 * The present subtransaction ends the lease's term, by function or by hand:
 * its fences count no longer, unless that is rolled back.
 */
void
fence_end_term(Oid relid, uint32 number)
{
	for (Fence *fence = fences; fence != NULL; fence = fence->next)
		if (fence->relid == relid && fence->number == number &&
			fence->ended_in == InvalidSubTransactionId)
			fence->ended_in = GetCurrentSubTransactionId();
	generation++;
}

static FullTransactionId
widen(TransactionId xid, FullTransactionId next)
{
	uint32		epoch = EpochFromFullTransactionId(next);

	/* a snapshot's xmin is never above the next transaction id */
	if (xid > XidFromFullTransactionId(next))
		epoch--;
	return FullTransactionIdFromEpochAndXid(epoch, xid);
}

/*
 * Has the snapshot that the writes go by seen the fence's term begin?  If not,
 * the rows it shows may be from before the takeover.  Asked at every use: the
 * fence may have been taken in a function whose snapshot is newer than that of
 * the statement around it.
 *
 * READ COMMITTED goes by the active snapshot.  REPEATABLE READ and
 * SERIALIZABLE go by the transaction's, whatever is active: a cascade runs on
 * a newer one.  Transaction ids are compared in 64 bits: a lease may be older
 * than what 32 bits tell apart.
 */
static FenceVerdict
seen(Fence *fence)
{
	bool		xact_snapshot = IsolationUsesXactSnapshot();
	Snapshot	snapshot;
	FullTransactionId own;
	FullTransactionId next;

	if (xact_snapshot)
		snapshot = GetTransactionSnapshot();
	else if (ActiveSnapshotSet())
		snapshot = GetActiveSnapshot();
	else
		return FENCE_NOT_SEEN;
	if (snapshot->snapshot_type != SNAPSHOT_MVCC)
		return FENCE_NOT_SEEN;

	/* the same xmin later on lies even further above the grant */
	if (TransactionIdIsValid(fence->seen_xmin) &&
		fence->seen_xmin == snapshot->xmin)
		return FENCE_HELD;

	own = GetTopFullTransactionIdIfAny();
	if (FullTransactionIdIsValid(own) &&
		FullTransactionIdEquals(own, fence->xid))
		return !xact_snapshot && fence->cid < snapshot->curcid ?
			FENCE_HELD : FENCE_TOO_EARLY;

	next = ReadNextFullTransactionId();
	if (FullTransactionIdPrecedes(fence->xid, widen(snapshot->xmin, next)))
	{
		fence->seen_xmin = snapshot->xmin;
		return FENCE_HELD;
	}
	if (!FullTransactionIdPrecedes(fence->xid, next) ||
		XidInMVCCSnapshot(XidFromFullTransactionId(fence->xid), snapshot))
		return FENCE_NOT_SEEN;
	return FENCE_HELD;
}

/*
 * May a write rely on a fence that is held?
 */
FenceVerdict
fence_use(Fence *fence, FenceFailure *failure)
{
	failure->role = fence->role;
	return seen(fence);
}

/*
 * The fence that this very user took before for the same claim.
 */
static Fence *
find_own(Oid relid, LeaseName role, LeaseName holder, int64 token, Oid userid)
{
	for (Fence *fence = fences; fence != NULL; fence = fence->next)
		if (fence->token == token && fence->userid == userid &&
			fence->ended_in == InvalidSubTransactionId &&
			fence->relid == relid && lease_name_equal(fence->role, role) &&
			(holder.data == NULL || lease_name_equal(fence->holder, holder)))
			return fence;
	return NULL;
}

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
	*result = find_own(relid, role, holder, token, userid);
	if (*result != NULL)
		return seen(*result);

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
				term = lease_term_judge(&table.row, holder, token,
										lease_origin(relid), &now);
				if (term != TERM_CURRENT)
				{
					verdict = stale(failure, term, &table.row);
					break;
				}
			}
			if (!lease_lock(relid, number, ShareLock, lease_takeover_limit()))
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
		term = lease_term_judge(&table.row, holder, token,
								lease_origin(relid), &now);

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
		*result = remember(relid, &table.row, userid);
		verdict = seen(*result);
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
	for (Fence *fence = fences; fence != NULL; fence = fence->next)
		if (fence->relid == relid && lease_name_equal(fence->role, role))
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
					 errhint("Call lease_require_fence in the same transaction, or set leader_lease.fence."),
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

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			/* the memory goes with TopTransactionContext */
			fences = NULL;
			generation++;
			break;
		default:
			break;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId subid,
				 SubTransactionId parent, void *arg)
{
	Fence	  **link = &fences;

	if (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB)
		return;
	if (fences == NULL)
		return;
	generation++;
	while (*link != NULL)
	{
		Fence	   *fence = *link;

		if (event == SUBXACT_EVENT_COMMIT_SUB)
		{
			if (fence->held_in == subid)
				fence->held_in = parent;
			if (fence->ended_in == subid)
				fence->ended_in = parent;
		}
		else
		{
			if (fence->held_in == subid)
			{
				*link = fence->next;
				forget(fence);
				continue;
			}
			if (fence->ended_in == subid)
				fence->ended_in = InvalidSubTransactionId;
		}
		link = &fence->next;
	}
}

void
fence_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
