/*-------------------------------------------------------------------------
 *
 * lease_xact.c
 *	  What a transaction owes when it changed a lease: a durable commit, and
 *	  none in two phases.
 *
 * A token that was acknowledged must be there after a crash, and on the
 * synchronous standby where there is one, whatever synchronous_commit says in
 * the session: a lost grant would be granted again, to another.  Raising the
 * setting for this transaction covers both; ForceSyncCommit() makes the local
 * flush sure but does not wait for a standby.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/guc.h"

#include "leader_lease.h"

/*
 * The subtransaction that answers for the change.  A change below an open one
 * that has already changed something needs no mark of its own: it cannot
 * outlive that one.  A mark of a closed subtransaction has moved to its parent
 * or is gone.
 */
static SubTransactionId changed_in = InvalidSubTransactionId;

/*
 * Notes that the present subtransaction changed a lease.
 */
void
lease_xact_changed(void)
{
	if (changed_in == InvalidSubTransactionId)
		changed_in = GetCurrentSubTransactionId();
}

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (changed_in != InvalidSubTransactionId &&
				synchronous_commit < SYNCHRONOUS_COMMIT_ON)
				(void) set_config_option("synchronous_commit", "on",
										 PGC_USERSET, PGC_S_SESSION,
										 GUC_ACTION_LOCAL, true, 0, false);
			break;
		case XACT_EVENT_PRE_PREPARE:
			if (changed_in != InvalidSubTransactionId)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that has changed a lease"),
						 errhint("Acquire, renew and release in transactions of their own; a prepared transaction may hold a fence.")));
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			changed_in = InvalidSubTransactionId;
			break;
		default:
			break;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId subid,
				 SubTransactionId parent, void *arg)
{
	if (changed_in != subid)
		return;
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		changed_in = parent;
	else if (event == SUBXACT_EVENT_ABORT_SUB)
		changed_in = InvalidSubTransactionId;
}

void
lease_xact_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
