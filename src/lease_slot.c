/*-------------------------------------------------------------------------
 *
 * lease_slot.c
 *	  One run a slot: a job that has run for a slot, a minute of a schedule
 *	  perhaps, does not run for it again.
 *
 * Mutual exclusion is not that: a job is done in 20 ms and the lease is free
 * again when a replica whose timer is late comes and gets it.  So the slot is
 * recorded, in the transaction of the work: both are there or neither is, and
 * both are as durable as that commit.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "leader_lease.h"

PG_FUNCTION_INFO_V1(lease_claim_slot);

#define PRUNE_WITH_CLAIM	"4"

/*
 * Records a slot; false when it is there.  The insertion waits for another
 * transaction that has just inserted it, under the user's lock_timeout, and
 * looks for the row without a predicate lock.  In REPEATABLE READ and
 * SERIALIZABLE a row that the snapshot does not show is 40001.
 */
static bool
insert_slot(Oid relid, LeaseName role, LeaseName holder, int64 token,
			LeaseName slot)
{
	Oid			types[4] = {TEXTOID, TEXTOID, INT8OID, TEXTOID};
	Datum		values[4];

	values[0] = lease_name_datum(role);
	values[1] = lease_name_datum(slot);
	values[2] = Int64GetDatum(token);
	values[3] = lease_name_datum(holder);
	lease_spi_as_owner(relid,
					   "INSERT INTO %s.leader_lease_slot (role, slot, fencing_token, holder_id)"
					   " VALUES ($1, $2, $3, $4) ON CONFLICT (role, slot) DO NOTHING",
					   4, types, values, NULL);
	return SPI_processed > 0;
}

/*
 * Has the lease a slot older than the retention?  By the index, without SQL:
 * the deletion costs more than the rest of a claim, and mostly finds none.
 */
static bool
any_old(Oid relid, LeaseName role)
{
	Oid			slots = get_relname_relid("leader_lease_slot",
										  get_rel_namespace(relid));
	Relation	rel = table_open(slots, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan;
	ScanKeyData keys[2];
	Oid			index;
	bool		found;

	ScanKeyInit(&keys[0], lease_table_column(rel, "role", TEXTOID),
				BTEqualStrategyNumber, F_TEXTEQ, lease_name_datum(role));
	ScanKeyInit(&keys[1], lease_table_column(rel, "claimed_at", TIMESTAMPTZOID),
				BTLessStrategyNumber, F_TIMESTAMPTZ_LT,
				TimestampTzGetDatum(GetCurrentTransactionStartTimestamp() -
									lease_slot_retention * USECS_PER_MINUTE));
	index = lease_table_index(rel, 2, keys);
	scan = systable_beginscan(rel, index, OidIsValid(index), snapshot, 2, keys);
	found = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return found;
}

/*
 * A few old slots of the same lease go with each claim.  Those of other leases
 * do not: whoever claims such a slot again waits for how the deletion ends, and
 * nobody may hold up a lease that is not his.  What another deletes just now
 * is left to him.  Not where a concurrent deletion would be a serialization
 * failure.
 */
static void
prune_some(Oid relid, LeaseName role)
{
	Oid			types[2] = {INT4OID, TEXTOID};
	Datum		values[2];

	if (lease_slot_retention <= 0 || IsolationUsesXactSnapshot() ||
		!any_old(relid, role))
		return;
	values[0] = Int32GetDatum(lease_slot_retention);
	values[1] = lease_name_datum(role);
	lease_spi_as_owner(relid,
					   "DELETE FROM %1$s.leader_lease_slot WHERE ctid = ANY (ARRAY("
					   "SELECT ctid FROM %1$s.leader_lease_slot"
					   " WHERE role = $2 AND claimed_at < now() - make_interval(mins => $1)"
					   " ORDER BY claimed_at LIMIT " PRUNE_WITH_CLAIM
					   " FOR UPDATE SKIP LOCKED))",
					   2, types, values, NULL);
}

/*
 * lease_claim_slot(role text, holder text, token bigint, slot text) -> boolean
 *
 * True for the first ever to claim the slot of that lease, once his
 * transaction commits; false after.  Takes the fence as lease_require_fence
 * does, with its errors (LF001 for a stale token).  When the transaction, or
 * the savepoint around the call, is rolled back, the slot is free.
 *
 * Waits for another transaction that has claimed the slot and not ended, as
 * any unique key does: only those of one leader can meet there.
 */
Datum
lease_claim_slot(PG_FUNCTION_ARGS)
{
	LeaseName	role = lease_arg_name(fcinfo, 0, "lease name");
	LeaseName	holder = lease_arg_name(fcinfo, 1, "holder");
	int64		token = lease_arg_token(fcinfo, 2);
	LeaseName	slot = lease_arg_name(fcinfo, 3, "slot");
	FenceFailure failure = {0};
	FenceVerdict verdict;
	Fence	   *fence;
	Oid			relid;
	bool		first;

	lease_require_writable("lease_claim_slot()");
	relid = lease_table_oid(fcinfo);
	verdict = fence_take(relid, role, holder, token, GetUserId(), &fence,
						 &failure);
	if (verdict != FENCE_HELD)
		fence_report(ERROR, verdict, &failure, NULL);

	SPI_connect();
	first = insert_slot(relid, role, holder, token, slot);
	if (first)
		prune_some(relid, role);
	SPI_finish();
	PG_RETURN_BOOL(first);
}
