/*-------------------------------------------------------------------------
 *
 * lease_lock.c
 *	  The heavyweight lock of a lease, and waiting with a limit.
 *
 * A lease's lock has the tag "object": this database, the lease table as
 * class, the lease's number as object, the kind of the lock as sub-object.
 * No one else uses the lease table as a class, so it collides with nobody's
 * locks; pg_locks, pg_blocking_pids() and the deadlock detector know it, and
 * PREPARE TRANSACTION keeps it.
 *
 * A fence is ShareLock, a takeover ExclusiveLock.  Both last until the
 * (sub)transaction ends, so they are charged to its resource owner.  The
 * owner that is current when a function runs belongs to the portal: a lock
 * charged there goes when a cursor fails in a later savepoint, while the
 * writes that relied on it live on.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/twophase.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "leader_lease.h"

#define LEASE_LOCK_TERM		1	/* objsubid: fences and takeovers */

typedef struct LockRequest
{
	LOCKTAG		tag;
	LOCKMODE	mode;
} LockRequest;

static void
set_tag(LOCKTAG *tag, Oid relid, uint32 number)
{
	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, relid, number, LEASE_LOCK_TERM);
}

/*
 * Does work(arg) in a subtransaction, waiting for heavyweight locks at most
 * limit microseconds each (negative: no limit of ours).  The user's own
 * lock_timeout goes on to raise its error where it is the shorter one.
 *
 * With rollback false the subtransaction is released, so that the locks that
 * work took pass to the caller's.  It gets no transaction id unless work
 * writes, so any number of such waits fit into one transaction.  With
 * rollback true it is rolled back whatever came: work was a wait alone.
 *
 * Our limit and a unique violation are results, with everything that work did
 * undone; every other error is thrown on, likewise undone.
 */
LeaseGuarded
lease_guarded(void (*work) (void *), void *arg, int64 limit, bool rollback)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int			user_timeout = LockTimeout;
	bool		ours;
	volatile LeaseGuarded result = GUARDED_DONE;

	ours = limit >= 0 && (user_timeout == 0 ||
						  limit / 1000 < user_timeout);

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		if (ours)
			LockTimeout = Max(1, (int) Min(limit / 1000, PG_INT32_MAX));
		work(arg);
		LockTimeout = user_timeout;

		if (rollback)
			RollbackAndReleaseCurrentSubTransaction();
		else
			ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		LockTimeout = user_timeout;
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;

		if (ours && error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
			result = GUARDED_TIMEOUT;
		else if (error->sqlerrcode == ERRCODE_UNIQUE_VIOLATION)
			result = GUARDED_DUPLICATE;
		else
			ReThrowError(error);
		FreeErrorData(error);
	}
	PG_END_TRY();

	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return result;
}

/*
 * Takes a lock for the present (sub)transaction.
 */
static LockAcquireResult
acquire(const LOCKTAG *tag, LOCKMODE mode, bool nowait)
{
	ResourceOwner owner = CurrentResourceOwner;
	LockAcquireResult result;

	/* on error the abort sets the owner anew */
	CurrentResourceOwner = CurTransactionResourceOwner;
	result = LockAcquire(tag, mode, false, nowait);
	CurrentResourceOwner = owner;
	return result;
}

static void
acquire_waiting(void *arg)
{
	LockRequest *request = arg;

	(void) acquire(&request->tag, request->mode, false);
}

/*
 * Locks a lease until the present (sub)transaction ends: ShareLock for a
 * fence, ExclusiveLock for a takeover.  Waits at most limit microseconds (0:
 * not at all, negative: without limit) and says whether it has the lock.
 * When it has not, nothing is left behind.
 */
bool
lease_lock(Oid relid, uint32 number, LOCKMODE mode, int64 limit)
{
	LockRequest request;

	set_tag(&request.tag, relid, number);
	request.mode = mode;
	if (acquire(&request.tag, mode, true) != LOCKACQUIRE_NOT_AVAIL)
		return true;

	/*
	 * Who holds the stronger lock already is refused above for the sake of
	 * those who wait for it; asked for without that condition he goes first,
	 * and need not wait.
	 */
	if (mode == ShareLock && LEASE_LOCK_HELD(&request.tag, ExclusiveLock))
		return acquire(&request.tag, mode, false) != LOCKACQUIRE_NOT_AVAIL;
	if (limit == 0)
		return false;
	return lease_guarded(acquire_waiting, &request, limit, false) == GUARDED_DONE;
}

/*
 * Gives back one lease_lock of this (sub)transaction, at once.
 */
void
lease_unlock(Oid relid, uint32 number, LOCKMODE mode)
{
	ResourceOwner owner = CurrentResourceOwner;
	LOCKTAG		tag;

	set_tag(&tag, relid, number);
	CurrentResourceOwner = CurTransactionResourceOwner;
	LockRelease(&tag, mode, false);
	CurrentResourceOwner = owner;
}

/*
 * Does this transaction hold the lock in just this mode?
 */
bool
lease_lock_held(Oid relid, uint32 number, LOCKMODE mode)
{
	LOCKTAG		tag;

	set_tag(&tag, relid, number);
	return LEASE_LOCK_HELD(&tag, mode);
}

/*
 * The pids of the other transactions whose lock conflicts with this mode, 0
 * for a prepared one; with ShareLock the takeovers, with ExclusiveLock the
 * fences too.  A snapshot: they may be gone when the caller looks.
 */
int
lease_lock_pids(Oid relid, uint32 number, LOCKMODE mode, int **pids)
{
	LOCKTAG		tag;
	VirtualTransactionId *holders;
	int			count;
	int			found = 0;

	set_tag(&tag, relid, number);
	holders = GetLockConflicts(&tag, mode, &count);
	*pids = palloc(sizeof(int) * Max(count, 1));
	for (int i = 0; i < count; i++)
	{
		PGPROC	   *proc = LEASE_VXID_PROC(holders[i]);
		bool		more;

		/*
		 * A prepared transaction goes by the number of the backend that
		 * prepared it, or by none after a restart; that backend has moved on,
		 * or its place is another's.
		 */
		if (proc != NULL &&
			LEASE_PROC_LXID(proc) == holders[i].localTransactionId)
			(*pids)[found++] = proc->pid;
		else if (proc == NULL ||
				 TransactionIdIsValid(TwoPhaseGetXidByVirtualXID(holders[i],
																 &more)))
			(*pids)[found++] = 0;
	}
	return found;
}
