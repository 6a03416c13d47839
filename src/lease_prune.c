/*-------------------------------------------------------------------------
 *
 * lease_prune.c
 *	  Forgetting by hand what the history and the slots have of long ago.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"

#include "leader_lease.h"

PG_FUNCTION_INFO_V1(lease_prune_history);
PG_FUNCTION_INFO_V1(lease_prune_slots);

/*
 * Deletes the rows of a table, of leases that the caller may use, whose time
 * in that column lies longer back than the function's argument; the number of
 * rows.  What another deletes just now, a grant or a claim perhaps, is left to
 * him.
 */
static Datum
prune(FunctionCallInfo fcinfo, const char *command, const char *table,
	  const char *column)
{
	Oid			types[2] = {INTERVALOID, OIDOID};
	Datum		values[2];
	uint64		deleted;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("older_than must not be null")));
	lease_require_writable(command);
	values[0] = PG_GETARG_DATUM(0);
	values[1] = ObjectIdGetDatum(GetUserId());
	SPI_connect();
	lease_spi_as_owner(lease_table_oid(fcinfo),
					   psprintf("DELETE FROM %%1$s.%1$s WHERE ctid = ANY (ARRAY("
								"SELECT ctid FROM %%1$s.%1$s o"
								" WHERE %2$s < now() - $1"
								" AND EXISTS (SELECT FROM %%1$s.leader_lease l LEFT JOIN pg_roles r ON r.rolname::text = l.owner"
								" WHERE l.role = o.role AND pg_has_role($2, COALESCE(r.oid, 10), 'USAGE'))"
								" FOR UPDATE OF o SKIP LOCKED))", table, column),
					   2, types, values, NULL);
	deleted = SPI_processed;
	SPI_finish();
	PG_RETURN_INT64(deleted);
}

/*
 * lease_prune_history(older_than interval) -> bigint
 *
 * Deletes what the history has of terms that ended longer ago than that.
 */
Datum
lease_prune_history(PG_FUNCTION_ARGS)
{
	return prune(fcinfo, "lease_prune_history()", "leader_lease_history",
				 "ended_at");
}

/*
 * lease_prune_slots(older_than interval) -> bigint
 *
 * Forgets the slots that were claimed longer ago than that.  They can be
 * claimed again.
 */
Datum
lease_prune_slots(PG_FUNCTION_ARGS)
{
	return prune(fcinfo, "lease_prune_slots()", "leader_lease_slot",
				 "claimed_at");
}
