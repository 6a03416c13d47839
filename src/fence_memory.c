/*-------------------------------------------------------------------------
 *
 * fence_memory.c
 *	  What a transaction remembers of the fences it holds, so that the next
 *	  check and each guarded row is a look into memory.
 *
 * An entry lives as long as its lock: it goes with its own subtransaction's
 * abort or an ancestor's, and passes to the parent at commit.  Rolling back to
 * a later savepoint leaves it, else drivers that set a savepoint around each
 * statement would lose their fence.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "leader_lease.h"

/* tells one snapshot of a transaction from another */
typedef struct SnapshotMark
{
	TransactionId xmin;
	TransactionId xmax;
	uint32		xcnt;
	CommandId	curcid;
	bool		complete;		/* shows all that had been committed */
} SnapshotMark;

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
	SnapshotMark begun_in;		/* see fence_note_begun_here; xmin 0: none */
	Fence	   *next;
};

/*
 * The fences of this transaction, newest first, in TopTransactionContext.
 * Pointers to them hold as long as the generation stays the same.
 */
static Fence *fences = NULL;
static uint64 generation = 1;

/* what a snapshot showed when this transaction last began a term */
static TransactionId term_xmax = InvalidTransactionId;
static uint32 term_xcnt = 0;

/*
 * Called when the present command begins a term, after the last wait for the
 * fences of older ones.
 */
void
fence_note_term(void)
{
	Snapshot	latest = GetLatestSnapshot();

	term_xmax = latest->xmax;
	term_xcnt = latest->xcnt;
}

/*
 * Does a snapshot show all that was committed when this transaction last began
 * a term?  Its command id does not tell: the statements that a rule makes of
 * one go by one snapshot, and only the command id moves on.  Of two snapshots
 * with one xmax the older has the more transactions that run.
 */
static bool
shows_term(Snapshot snapshot)
{
	return TransactionIdFollows(snapshot->xmax, term_xmax) ||
		(snapshot->xmax == term_xmax && snapshot->xcnt <= term_xcnt);
}

Fence *
fence_remember(Oid relid, const LeaseRow *row, Oid userid)
{
	MemoryContext context = MemoryContextSwitchTo(TopTransactionContext);
	Fence	   *fence = palloc0(sizeof(Fence));

	fence->relid = relid;
	fence->number = row->number;
	fence->role = lease_name_copy(row->role);
	fence->holder = lease_name_copy(row->holder);
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

/*
 * Did this transaction itself begin the term?
 */
bool
fence_begun_by_us(const Fence *fence)
{
	return FullTransactionIdEquals(fence->xid, GetTopFullTransactionIdIfAny());
}

int64
fence_token(const Fence *fence)
{
	return fence->token;
}

/*
 * Has the transaction held a fence of the lease, and then ended the term?
 */
bool
fence_was_ended(Oid relid, LeaseName role)
{
	for (Fence *fence = fences; fence != NULL; fence = fence->next)
		if (fence->relid == relid && lease_name_equal(fence->role, role))
			return fence->ended_in != InvalidSubTransactionId;
	return false;
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

static bool
is_marked(Snapshot snapshot, const SnapshotMark *mark)
{
	return snapshot->xmin == mark->xmin && snapshot->xmax == mark->xmax &&
		snapshot->xcnt == mark->xcnt && snapshot->curcid == mark->curcid;
}

/*
 * Has a transaction that an older snapshot shows as running committed?
 */
static bool
committed_since(TransactionId xid, Snapshot latest)
{
	return !XidInMVCCSnapshot(xid, latest) && TransactionIdDidCommit(xid);
}

/* no more transaction ids than that are looked at */
#define COMMITS_LOOKED_AT	10000

/*
 * Called when the present command has begun a term, with no fence of an older
 * one open any more.  The statement's snapshot is from before; but where
 * nobody at all has committed since, it shows all that the older terms have
 * written, and the statement may go on to write by the new one.  Otherwise it
 * may be tried again.  That is so for this snapshot alone.
 */
void
fence_note_begun_here(Fence *fence)
{
	Snapshot	snapshot;
	Snapshot	latest;
	TransactionId xid;
	int32		looked = 0;
	bool		any = false;

	if (IsolationUsesXactSnapshot() || !ActiveSnapshotSet())
		return;
	snapshot = GetActiveSnapshot();
	if (snapshot->snapshot_type != SNAPSHOT_MVCC || snapshot->takenDuringRecovery)
		return;
	latest = RegisterSnapshot(GetLatestSnapshot());
	for (uint32 i = 0; i < snapshot->xcnt && !any; i++)
		any = committed_since(snapshot->xip[i], latest);
	for (xid = snapshot->xmax; !any && TransactionIdPrecedes(xid, latest->xmax);)
	{
		any = committed_since(xid, latest) ||
			++looked > COMMITS_LOOKED_AT;
		TransactionIdAdvance(xid);
	}
	UnregisterSnapshot(latest);
	fence->begun_in.complete = !any;
	fence->begun_in.xmin = snapshot->xmin;
	fence->begun_in.xmax = snapshot->xmax;
	fence->begun_in.xcnt = snapshot->xcnt;
	fence->begun_in.curcid = snapshot->curcid;
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
FenceVerdict
fence_seen(Fence *fence)
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
	{
		if (xact_snapshot)
			return FENCE_TOO_EARLY;
		if (fence->cid < snapshot->curcid && shows_term(snapshot))
			return FENCE_HELD;
		if (!is_marked(snapshot, &fence->begun_in))
			return FENCE_TOO_EARLY;
		return fence->begun_in.complete ? FENCE_HELD : FENCE_NOT_SEEN;
	}

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
 * The fence that this very user took before for the same claim.
 */
Fence *
fence_find_own(Oid relid, LeaseName role, LeaseName holder, int64 token, Oid userid)
{
	for (Fence *fence = fences; fence != NULL; fence = fence->next)
		if (fence->token == token && fence->userid == userid &&
			fence->ended_in == InvalidSubTransactionId &&
			fence->relid == relid && lease_name_equal(fence->role, role) &&
			(holder.data == NULL || lease_name_equal(fence->holder, holder)))
			return fence;
	return NULL;
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
