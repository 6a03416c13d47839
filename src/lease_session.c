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

#include "leader_lease.h"

PG_FUNCTION_INFO_V1(lease_bind_session);

/*
 * This session's lock: one for all terms that are bound to it, since a session
 * that lives long may bind any number of them.  It is lost where somebody
 * frees all of the session's locks (DISCARD ALL, pg_advisory_unlock_all); what
 * was bound is over then, so the key is never taken again.
 *
 * Session locks outlive an abort, and a lock that was taken for a bond must
 * not: taken_in is the subtransaction of the present transaction that answers
 * for it, invalid when that has committed.
 */
static struct
{
	Oid			relid;
	uint32		key;			/* 0: none */
	SubTransactionId taken_in;
}			own;

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
 * The key of this session's lock, which is taken before a row names it: never
 * does a row name a lock that is still free.
 */
static uint32
bond(Oid relid)
{
	uint32		key;

	if (own.key != 0 && own.relid == relid &&
		lease_session_lock_held(relid, own.key))
		return own.key;

	key = draw_key(relid);
	lease_session_lock(relid, key);
	own.relid = relid;
	own.key = key;
	own.taken_in = GetCurrentSubTransactionId();
	return key;
}

/*
 * Gives up the lock that an aborted (sub)transaction took.
 */
static void
undo(void)
{
	if (lease_session_lock_held(own.relid, own.key))
		lease_session_unlock(own.relid, own.key);
	own.key = 0;
	own.taken_in = InvalidSubTransactionId;
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
		CHECK_FOR_INTERRUPTS();
		lease_access_require(&table.row);
		lease_clock_read(&now);
		if (lease_term_judge(relid, &table.row, holder, token,
							 &now) != TERM_CURRENT)
			break;
		if (!lease_table_hold_row(&table))
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
			if (own.taken_in != InvalidSubTransactionId)
				undo();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
			own.taken_in = InvalidSubTransactionId;
			break;
		default:
			break;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId subid,
				 SubTransactionId parent, void *arg)
{
	if (own.taken_in != subid)
		return;
	if (event == SUBXACT_EVENT_ABORT_SUB)
		undo();
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
		own.taken_in = parent;
}

void
lease_session_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
