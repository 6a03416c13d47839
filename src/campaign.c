/*-------------------------------------------------------------------------
 *
 * campaign.c
 *	  CALL lease_campaign: waits in turn until it leads.
 *
 * Who waits stands in the lock manager's queue, in order and asleep; only its
 * head watches the lease.  However many wait, that costs what one costs.
 *
 * Waits may be long, so they hold nothing that others suffer from: the caller's
 * transaction is committed first, and the one that waits has no snapshot, not
 * even of the catalogs, nor a lock on a relation between its looks.  For that
 * it must be called where a procedure may commit, outside of a transaction
 * block.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "leader_lease.h"

PG_FUNCTION_INFO_V1(lease_campaign);

/* how long the head sleeps, or waits for fences, at most between two looks */
#define LOOK_EVERY	INT64CONST(25000)

typedef struct Campaign
{
	LeaseName	role;
	LeaseName	holder;
	int64		ttl;
	int64		max_wait;		/* microseconds; negative: no limit */
	int64		start;			/* boot-time clock */
	MemoryContext look_context; /* emptied after each look */
} Campaign;

static int64
waited(const Campaign *campaign)
{
	LeaseMoment now;

	lease_clock_read(&now);
	return now.boottime - campaign->start;
}

/*
 * Microseconds that are left to wait: negative without a limit.  The user's
 * lock_timeout counts for the whole wait, as for one lock, and raises its own
 * error.
 */
static int64
time_left(const Campaign *campaign)
{
	int64		passed = waited(campaign);

	if (LockTimeout > 0 && passed >= LockTimeout * INT64CONST(1000) &&
		(campaign->max_wait < 0 || campaign->max_wait > LockTimeout * INT64CONST(1000)))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("canceling statement due to lock timeout")));
	if (campaign->max_wait < 0)
		return -1;
	return Max(campaign->max_wait - passed, 0);
}

/*
 * A client that went away while it waited must not be given the lease: it
 * would lead, as nobody, until its ttl is over.
 */
static void
require_client(void)
{
	if (MyProcPort != NULL && !pq_check_connection())
		ereport(FATAL,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("connection to client lost while it campaigned for a lease")));
}

/*
 * Lets go of everything that would be held during a wait but the place in the
 * queue.  Statements that a look runs by SPI leave the portal a snapshot.
 */
static void
hold_nothing(void)
{
	ForgetPortalSnapshots();
	InvalidateCatalogSnapshot();
	Assert(!ActiveSnapshotSet());
}

/*
 * One attempt at the lease: the token, or 0.  It waits for nothing: during a
 * wait it would keep the table's lock, which DDL queues for.
 *
 * The client is asked again after the grant, which may have come late: an
 * error then takes the grant back.
 */
static int64
look(FunctionCallInfo fcinfo, const Campaign *campaign, LeaseOutcome *outcome)
{
	MemoryContext caller;

	require_client();
	caller = MemoryContextSwitchTo(campaign->look_context);
	lease_try(lease_table_oid(fcinfo), campaign->role, campaign->holder,
			  campaign->ttl, 0, outcome);
	MemoryContextSwitchTo(caller);
	MemoryContextReset(campaign->look_context);
	if (outcome->token != 0)
		require_client();
	return outcome->token;
}

/*
 * Sleeps until the next look: a while, or until the live term runs out.  False
 * when the time is up.
 */
static bool
sleep_between_looks(const Campaign *campaign, const LeaseOutcome *outcome)
{
	int64		left = time_left(campaign);
	int64		sleep = LOOK_EVERY;

	if (left == 0)
		return false;
	if (left > 0)
		sleep = Min(sleep, left);
	if (outcome->retry_after > 0)
		sleep = Min(sleep, outcome->retry_after);
	hold_nothing();
	(void) WaitLatch(MyLatch,
					 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 (long) (sleep / 1000 + 1), PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	return true;
}

/*
 * The lease's number, for the queue; or, without standing in line, the token
 * where nobody can come before us: the lease has yet to be made, or our own
 * term is live, whose end those in the queue wait for.  0 and no number: the
 * time is up.
 */
static int64
look_first(FunctionCallInfo fcinfo, const Campaign *campaign, uint32 *number)
{
	LeaseOutcome outcome;

	do
	{
		LeaseTable	table;
		LeaseMoment now;
		bool		own = false;

		*number = 0;
		lease_table_open(&table, lease_table_oid(fcinfo));
		if (lease_table_find(&table, campaign->role))
		{
			lease_access_require(&table.row);
			lease_clock_read(&now);
			own = lease_name_equal(table.row.holder, campaign->holder) &&
				lease_term_live(RelationGetRelid(table.rel), &table.row, &now);
			*number = table.row.number;
		}
		lease_table_close(&table);
		if (*number != 0 && !own)
			return 0;
		*number = 0;
		if (look(fcinfo, campaign, &outcome) != 0)
			return outcome.token;
	} while (sleep_between_looks(campaign, &outcome));
	return 0;
}

/*
 * Watches the lease as the head of the queue: the token, or 0 when the time
 * is up.
 */
static int64
watch(FunctionCallInfo fcinfo, const Campaign *campaign, uint32 number)
{
	LeaseOutcome outcome;

	do
	{
		if (look(fcinfo, campaign, &outcome) != 0)
			return outcome.token;

		/* the lock manager wakes us when the last fence in the way goes */
		while (outcome.nblockers > 0)
		{
			Oid			relid = lease_table_oid(fcinfo);
			int64		left = time_left(campaign);

			if (left == 0)
				return 0;
			hold_nothing();
			if (lease_lock(relid, number, ExclusiveLock,
						   left < 0 ? LOOK_EVERY : Min(left, LOOK_EVERY)))
				lease_unlock(relid, number, ExclusiveLock);
			CHECK_FOR_INTERRUPTS();
			if (look(fcinfo, campaign, &outcome) != 0)
				return outcome.token;
		}
	} while (sleep_between_looks(campaign, &outcome));
	return 0;
}

/*
 * Waits for its turn, then watches.  In a transaction of its own, READ
 * COMMITTED whatever the default: every look must see what is there now.
 */
static int64
campaign_in_turn(FunctionCallInfo fcinfo, const Campaign *campaign)
{
	uint32		number;
	int64		token = look_first(fcinfo, campaign, &number);

	if (token != 0 || number == 0)
		return token;
	hold_nothing();
	if (!lease_queue_lock(lease_table_oid(fcinfo), number, time_left(campaign)))
		return 0;
	return watch(fcinfo, campaign, number);
}

/*
 * CALL lease_campaign(role text, holder text, ttl interval DEFAULT NULL,
 *					   max_wait interval DEFAULT NULL, INOUT token bigint)
 *
 * Waits until it leads; the token, or NULL after max_wait (NULL: no limit).
 * The grant is committed when the call returns.  25001 in a transaction block.
 * Cancel, terminate, statement_timeout and lock_timeout end it with nothing
 * left behind.  Otherwise as lease_acquire.
 */
Datum
lease_campaign(PG_FUNCTION_ARGS)
{
	Campaign	campaign;
	LeaseMoment now;
	TupleDesc	desc;
	int64		token;
	Datum		value;
	bool		isnull;

	lease_require_writable("lease_campaign()");
	campaign.role = lease_arg_name(fcinfo, 0, "lease name");
	campaign.holder = lease_arg_name(fcinfo, 1, "holder");
	campaign.ttl = lease_arg_ttl(fcinfo, 2);
	campaign.max_wait = -1;
	if (!PG_ARGISNULL(3))
		campaign.max_wait = Max(lease_ttl_from_interval(PG_GETARG_INTERVAL_P(3)), 0);
	if (fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		castNode(CallContext, fcinfo->context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("lease_campaign cannot run inside a transaction block"),
				 errhint("Call it by itself, with autocommit; not from a function or a client's transaction.")));
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	desc = BlessTupleDesc(CreateTupleDescCopy(desc));
	lease_clock_read(&now);
	campaign.start = now.boottime;

	/* SPI's memory of a procedure lives through its commits */
	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	campaign.role = lease_name_copy(campaign.role);
	campaign.holder = lease_name_copy(campaign.holder);
	campaign.look_context = AllocSetContextCreate(CurrentMemoryContext,
												  "lease_campaign",
												  ALLOCSET_DEFAULT_SIZES);

	SPI_commit();
	XactIsoLevel = XACT_READ_COMMITTED;
	token = campaign_in_turn(fcinfo, &campaign);
	SPI_commit();
	SPI_finish();

	value = Int64GetDatum(token);
	isnull = token == 0;
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, &value, &isnull)));
}
