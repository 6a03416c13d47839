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
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "leader_lease.h"

PG_FUNCTION_INFO_V1(lease_campaign);

/* how long the head sleeps at most between two looks at a live lease */
#define LOOK_EVERY	INT64CONST(25000)

typedef struct Campaign
{
	LeaseName	role;
	LeaseName	holder;
	int64		ttl;
	int64		max_wait;		/* microseconds; negative: no limit */
	int64		start;			/* boot-time clock */
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
 * The lease's number, made when it is not there.
 */
static uint32
find_number(FunctionCallInfo fcinfo, const Campaign *campaign)
{
	LeaseOutcome outcome;
	LeaseTable	table;
	uint32		number;
	bool		found;

	lease_table_open(&table, lease_table_oid(fcinfo));
	found = lease_table_find(&table, campaign->role);
	if (found)
	{
		lease_access_require(&table.row);
		number = table.row.number;
	}
	lease_table_close(&table);
	if (found)
		return number;

	/* who makes it may as well lead; the next look tells */
	lease_try(lease_table_oid(fcinfo), campaign->role, campaign->holder,
			  campaign->ttl, lease_takeover_limit(), &outcome);
	return 0;
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
 * queue.
 */
static void
hold_nothing(void)
{
	InvalidateCatalogSnapshot();
	Assert(!ActiveSnapshotSet());
}

/*
 * Watches the lease as the head of the queue: the token, or 0 when the time
 * is up.
 */
static int64
watch(FunctionCallInfo fcinfo, const Campaign *campaign)
{
	for (;;)
	{
		LeaseOutcome outcome;
		int64		left = time_left(campaign);
		int64		limit = lease_takeover_limit();
		int64		sleep;

		require_client();
		if (left >= 0 && (limit < 0 || limit > left))
			limit = left;
		lease_try(lease_table_oid(fcinfo), campaign->role, campaign->holder,
				  campaign->ttl, limit, &outcome);
		if (outcome.token != 0)
			return outcome.token;

		left = time_left(campaign);
		if (left == 0)
			return 0;
		sleep = outcome.retry_after > 0 ?
			Min(outcome.retry_after, LOOK_EVERY) : LOOK_EVERY;
		if (left > 0)
			sleep = Min(sleep, left);
		hold_nothing();
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) (sleep / 1000 + 1), PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Waits for its turn, then watches.  In a transaction of its own, READ
 * COMMITTED whatever the default: every look must see what is there now.
 */
static int64
campaign_in_turn(FunctionCallInfo fcinfo, const Campaign *campaign)
{
	Oid			relid = lease_table_oid(fcinfo);
	uint32		number = find_number(fcinfo, campaign);

	if (number == 0)
	{
		/* commit what was made or won, and look again */
		SPI_commit();
		XactIsoLevel = XACT_READ_COMMITTED;
		relid = lease_table_oid(fcinfo);
		number = find_number(fcinfo, campaign);
		if (number == 0)
			return 0;
	}

	hold_nothing();
	if (!lease_queue_lock(relid, number, time_left(campaign)))
		return 0;
	return watch(fcinfo, campaign);
}

static LeaseName
keep_name(LeaseName name)
{
	LeaseName	copy = {pnstrdup(name.data, name.len), name.len};

	return copy;
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
	campaign.role = keep_name(campaign.role);
	campaign.holder = keep_name(campaign.holder);

	SPI_commit();
	XactIsoLevel = XACT_READ_COMMITTED;
	token = campaign_in_turn(fcinfo, &campaign);
	SPI_commit();
	SPI_finish();

	value = Int64GetDatum(token);
	isnull = token == 0;
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, &value, &isnull)));
}
