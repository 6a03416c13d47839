/*-------------------------------------------------------------------------
 *
 * lease_origin.c
 *	  Where a term was granted, and the token after it.
 *
 * A standby that missed the last grants of its primary must, once promoted,
 * never grant one of their tokens again, though it does not know them.  So a
 * term carries its origin: which system, on which timeline, in which database
 * and table.  A term of another origin is over.  The first token of a lease
 * after its origin changed starts a new range, far above whatever the old
 * origin can have granted: (h << 41) | milliseconds since 2020, where h rises
 * with each change of origin; then it counts on by one.  41 bits of
 * milliseconds last until 2089; up to h = 4095 a token is exact in a double.
 *
 * h alone does not suffice: two standbys promoted one after the other from
 * the same timeline without an archive give themselves the same number, and
 * the second may know nothing of the first.  Then the milliseconds decide, as
 * long as the servers' clocks differ by less than the time between.
 *
 * The record of origins (leader_lease_origin) carries h over pg_upgrade, which
 * starts again at timeline 1, and over dump and restore.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "common/int.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "leader_lease.h"

#define LEASE_TOKEN_MS_BITS	41
#define LEASE_TOKEN_HIGH_MAX (PG_INT64_MAX >> LEASE_TOKEN_MS_BITS)

/* 2020-01-01 00:00 UTC in microseconds of PostgreSQL's epoch, 2000-01-01 */
#define LEASE_TOKEN_EPOCH	(INT64CONST(7305) * USECS_PER_DAY)

static TimeLineID
timeline(void)
{
	TimeLineID	tli;

	/*
	 * Asked each time: a backend that served reads on a standby lives through
	 * its promotion.
	 */
	if (!RecoveryInProgress())
		return GetWALInsertionTimeLine();
	(void) GetXLogReplayRecPtr(&tli);
	return tli;
}

/*
 * The present origin of a lease table.  Never 0.
 */
int64
lease_origin(Oid relid)
{
	uint64		parts[4];
	int64		origin;

	parts[0] = GetSystemIdentifier();
	parts[1] = timeline();
	parts[2] = MyDatabaseId;
	parts[3] = relid;
	origin = (int64) hash_bytes_extended((unsigned char *) parts,
										 sizeof(parts), 0);
	return origin == 0 ? 1 : origin;
}

/*
 * The high part that a first token in this origin starts with, by the record
 * of origins and the timeline; recorded when it was not.
 *
 * Two transactions may record the same at once, and neither waits.  In
 * REPEATABLE READ the record is read as of the snapshot: what was added since
 * can only be this origin's own, which would be computed again just so.
 */
static int64
high_part(Oid relid, int64 origin)
{
	int64		high = (int64) timeline() - 1;
	bool		recorded = false;

	SPI_connect();
	lease_spi_as_owner(relid, "SELECT origin, high FROM %s.leader_lease_origin",
					   0, NULL, NULL, NULL);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		HeapTuple	tuple = SPI_tuptable->vals[i];
		bool		isnull;
		int64		other = DatumGetInt64(SPI_getbinval(tuple, SPI_tuptable->tupdesc, 1, &isnull));
		int64		used = DatumGetInt64(SPI_getbinval(tuple, SPI_tuptable->tupdesc, 2, &isnull));

		if (other != origin)
			used++;
		else
			recorded = true;
		high = Max(high, used);
	}
	if (!recorded)
	{
		Oid			types[2] = {INT8OID, INT8OID};
		Datum		values[2];

		values[0] = Int64GetDatum(origin);
		values[1] = Int64GetDatum(high);
		lease_spi_as_owner(relid, "INSERT INTO %s.leader_lease_origin VALUES ($1, $2)",
						   2, types, values, NULL);
	}
	SPI_finish();
	return high;
}

/*
 * The token of the term that follows the row's: old + 1, or the start of a
 * new range when the old one was granted elsewhere, or never here.
 */
int64
lease_next_token(Oid relid, const LeaseRow *row)
{
	int64		origin = lease_origin(relid);
	int64		next = 0;
	bool		overflow;

	overflow = pg_add_s64_overflow(row->token, 1, &next);
	if (row->origin != origin)
	{
		int64		high = high_part(relid, origin);

		/* the lease's own tokens may be higher than the record: hand-made */
		if (row->origin != 0)
			high = Max(high, (row->token >> LEASE_TOKEN_MS_BITS) + 1);
		if (high > LEASE_TOKEN_HIGH_MAX)
			overflow = true;
		else if (high > 0)
		{
			int64		ms = (GetCurrentTimestamp() - LEASE_TOKEN_EPOCH) / 1000;

			/* a clock outside of 2020 to 2089 must not spill into h */
			ms = Min(Max(ms, 0), (INT64CONST(1) << LEASE_TOKEN_MS_BITS) - 1);
			next = Max(next, (high << LEASE_TOKEN_MS_BITS) | ms);
		}
	}
	if (overflow)
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("fencing tokens of lease \"%.*s\" are used up",
						NAME_ARGS(row->role)),
				 errdetail("The last token is %lld.", (long long) row->token)));
	return next;
}
