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
#include "access/xlog.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "leader_lease.h"

/* the kind of a lock: objsubid in pg_locks, and told by the view lease_locks */
#define LEASE_LOCK_TERM		1	/* fences and takeovers */
#define LEASE_LOCK_QUEUE	2	/* who waits in lease_campaign */
#define LEASE_LOCK_SESSION	3	/* a session that a term is tied to */
#define LEASE_LOCK_CREATION	4	/* making a row; objid is the name's hash */

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
 * The lock of a session is a user lock: the default method's session locks go
 * at the first error.
 */
static void
set_session_tag(LOCKTAG *tag, Oid relid, uint32 key)
{
	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, relid, key, LEASE_LOCK_SESSION);
	tag->locktag_lockmethodid = USER_LOCKMETHOD;
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
 * Our limit is a result, with everything that work did undone; every error is
 * thrown on, likewise undone.
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

	/* a wait without a snapshot is none with one of the catalogs */
	InvalidateCatalogSnapshot();
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
release(const LOCKTAG *tag, LOCKMODE mode)
{
	ResourceOwner owner = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	LockRelease(tag, mode, false);
	CurrentResourceOwner = owner;
}

static void
acquire_waiting(void *arg)
{
	LockRequest *request = arg;

	(void) acquire(&request->tag, request->mode, false);
}

/*
 * Takes a lock within limit microseconds; without a subtransaction where it is
 * to be had at once.
 */
static bool
request_lock(LockRequest *request, int64 limit)
{
	if (acquire(&request->tag, request->mode, true) != LOCKACQUIRE_NOT_AVAIL)
		return true;
	if (limit == 0)
		return false;
	return lease_guarded(acquire_waiting, request, limit, false) == GUARDED_DONE;
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

	/*
	 * Who holds the stronger lock already would be refused for the sake of
	 * those who wait for it; asked for without the condition that he does not
	 * wait, he goes first, and need not.
	 */
	if (mode == ShareLock && LEASE_LOCK_HELD(&request.tag, ExclusiveLock))
		return acquire(&request.tag, mode, false) != LOCKACQUIRE_NOT_AVAIL;
	return request_lock(&request, limit);
}

/*
 * Gives back one lease_lock of this (sub)transaction, at once.
 */
void
lease_unlock(Oid relid, uint32 number, LOCKMODE mode)
{
	LOCKTAG		tag;

	set_tag(&tag, relid, number);
	release(&tag, mode);
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

static void
set_creation_tag(LOCKTAG *tag, Oid relid, LeaseName role)
{
	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, relid,
					   hash_bytes((const unsigned char *) role.data, role.len),
					   LEASE_LOCK_CREATION);
}

/*
 * Lets one at a time make the row of a name (or of another with its hash),
 * until the transaction ends.
 */
bool
lease_creation_lock(Oid relid, LeaseName role, int64 limit)
{
	LockRequest request;

	set_creation_tag(&request.tag, relid, role);
	request.mode = ExclusiveLock;
	return request_lock(&request, limit);
}

void
lease_creation_unlock(Oid relid, LeaseName role)
{
	LOCKTAG		tag;

	set_creation_tag(&tag, relid, role);
	release(&tag, ExclusiveLock);
}

/*
 * Joins the queue of those who campaign for a lease, and waits to be its head,
 * at most limit microseconds (negative: without limit).  The lock manager
 * keeps the others in order and asleep.  Until the transaction ends.
 */
bool
lease_queue_lock(Oid relid, uint32 number, int64 limit)
{
	LockRequest request;

	SET_LOCKTAG_OBJECT(request.tag, MyDatabaseId, relid, number,
					   LEASE_LOCK_QUEUE);
	request.mode = ExclusiveLock;
	return request_lock(&request, limit);
}

/*
 * Locks a key that is this session's alone, until the session ends, DISCARD
 * ALL, or lease_session_unlock: neither an error nor PREPARE TRANSACTION ends
 * it.
 */
void
lease_session_lock(Oid relid, uint32 key)
{
	LOCKTAG		tag;

	set_session_tag(&tag, relid, key);
	if (LockAcquire(&tag, ExclusiveLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
		elog(ERROR, "session lock %u is taken", key);
}

void
lease_session_unlock(Oid relid, uint32 key)
{
	LOCKTAG		tag;

	set_session_tag(&tag, relid, key);
	LockRelease(&tag, ExclusiveLock, true);
}

/*
 * Does this session have the lock of that key?
 */
bool
lease_session_lock_held(Oid relid, uint32 key)
{
	LOCKTAG		tag;

	set_session_tag(&tag, relid, key);
	return LEASE_LOCK_HELD(&tag, ExclusiveLock);
}

/*
 * Does the session that has this key live?  Found out by trying for a lock
 * that its lock excludes and that excludes no other who tries; the list of
 * conflicts that the lock manager gives leaves out idle sessions.  A standby
 * does not know its primary's sessions, and takes them to live.
 */
bool
lease_session_lives(Oid relid, uint32 key)
{
	LOCKTAG		tag;

	if (RecoveryInProgress())
		return true;
	if (lease_session_lock_held(relid, key))
		return true;
	set_session_tag(&tag, relid, key);
	if (acquire(&tag, RowShareLock, true) == LOCKACQUIRE_NOT_AVAIL)
		return true;
	release(&tag, RowShareLock);
	return false;
}

/*
 * The other transactions whose lock conflicts with this mode: with ShareLock
 * the takeovers, with ExclusiveLock the fences too.  A snapshot: they may be
 * gone when the caller looks.
 */
int
lease_lock_holders(Oid relid, uint32 number, LOCKMODE mode,
				   LeaseLockHolder **holders)
{
	LOCKTAG		tag;
	VirtualTransactionId *vxids;
	int			count;
	int			found = 0;

	set_tag(&tag, relid, number);
	vxids = GetLockConflicts(&tag, mode, &count);
	*holders = palloc0(sizeof(LeaseLockHolder) * Max(count, 1));
	for (int i = 0; i < count; i++)
	{
		LeaseLockHolder *holder = &(*holders)[found];
		PGPROC	   *proc = LEASE_VXID_PROC(vxids[i]);
		bool		more;

		/*
		 * A prepared transaction goes by the number of the backend that
		 * prepared it; that backend has moved on, or has gone, or its place is
		 * another's.  After a restart it goes by its own transaction id.
		 */
		holder->vxid = vxids[i];
		if (proc != NULL && LEASE_PROC_LXID(proc) == vxids[i].localTransactionId)
			holder->pid = proc->pid;
		else if (VirtualTransactionIdIsRecoveredPreparedXact(vxids[i]))
			holder->prepared = vxids[i].localTransactionId;
		else
			holder->prepared = TwoPhaseGetXidByVirtualXID(vxids[i], &more);
		if (holder->pid != 0 || TransactionIdIsValid(holder->prepared))
			found++;
	}
	return found;
}
