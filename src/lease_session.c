/*-------------------------------------------------------------------------
 *
 * lease_session.c
 *	  Terms that end with a connection.
 *
 * The session takes a lock of its own that the row names; whoever finds it
 * free treats the term as over.  The connection's end, however it comes, and
 * DISCARD ALL free it.  The ttl stays the upper bound.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "leader_lease.h"

PG_FUNCTION_INFO_V1(lease_bind_session);

/*
 * Session locks outlive an abort, and what was bound in it does not: the locks
 * that the present transaction took, newest first, with the subtransaction
 * that answers for each.
 */
typedef struct PendingBond
{
	Oid			relid;
	uint32		key;
	SubTransactionId taken_in;
	struct PendingBond *next;
} PendingBond;

static PendingBond *pending = NULL;

static uint32
draw_key(Oid relid)
{
	Oid			sequence = get_relname_relid("leader_lease_session",
											 get_rel_namespace(relid));

	if (!OidIsValid(sequence))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("sequence \"leader_lease_session\" is missing")));
	return (uint32) nextval_internal(sequence, false);
}

/*
 * Takes the session's lock before the row names it: never does a row name a
 * lock that is still free.
 */
static uint32
bond(Oid relid)
{
	PendingBond *entry = MemoryContextAlloc(TopTransactionContext,
											sizeof(PendingBond));

	entry->relid = relid;
	entry->key = draw_key(relid);
	entry->taken_in = GetCurrentSubTransactionId();
	entry->next = pending;
	lease_session_lock(relid, entry->key);
	pending = entry;
	return entry->key;
}

/*
 * lease_bind_session(role text, holder text, token bigint) -> boolean
 *
 * Ties the live term to this connection: it ends when the connection ends, and
 * at its ttl at the latest.  False when it is not the current term; an ended
 * one is not revived.  Bound again, to the last one that did.  Renewing works
 * from any connection.  Not for transaction pooling.  Locks the row.
 */
Datum
lease_bind_session(PG_FUNCTION_ARGS)
{
	LeaseName	role = lease_arg_name(fcinfo, 0, "lease name");
	LeaseName	holder = lease_arg_name(fcinfo, 1, "holder");
	int64		token = lease_arg_token(fcinfo, 2);
	Oid			relid;
	LeaseTable	table;
	LeaseMoment now;
	bool		bound = false;

	lease_require_writable("lease_bind_session()");
	relid = lease_table_oid(fcinfo);
	lease_table_open(&table, relid);
	while (!bound && lease_table_find(&table, role))
	{
		LeaseRowLock locked;

		CHECK_FOR_INTERRUPTS();
		lease_access_require(&table.row);
		lease_clock_read(&now);
		if (lease_term_judge(relid, &table.row, holder, token,
							 &now) != TERM_CURRENT)
			break;
		lease_table_for_update(&table);
		lease_table_require_unchanged(&table);
		locked = lease_table_lock_row(&table);
		if (locked == LEASE_ROW_BUSY)
			(void) lease_table_await_row(&table, -1);
		if (locked != LEASE_ROW_LOCKED)
			continue;
		lease_clock_read(&now);
		if (lease_term_judge(relid, &table.row, holder, token,
							 &now) != TERM_CURRENT)
			break;
		table.row.session = bond(relid);
		lease_table_update(&table, &table.row);
		bound = true;
	}
	lease_table_close(&table);
	PG_RETURN_BOOL(bound);
}

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_ABORT:
			for (; pending != NULL; pending = pending->next)
				lease_session_unlock(pending->relid, pending->key);
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
			pending = NULL;
			break;
		default:
			break;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId subid,
				 SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		for (; pending != NULL && pending->taken_in == subid;
			 pending = pending->next)
			lease_session_unlock(pending->relid, pending->key);
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
		for (PendingBond *entry = pending;
			 entry != NULL && entry->taken_in == subid; entry = entry->next)
			entry->taken_in = parent;
}

void
lease_session_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
