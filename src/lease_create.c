/*-------------------------------------------------------------------------
 *
 * lease_create.c
 *	  Making a lease, and giving it to another owner.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "leader_lease.h"

PG_FUNCTION_INFO_V1(lease_create);
PG_FUNCTION_INFO_V1(lease_set_owner);

typedef struct NewLease
{
	Oid			relid;
	LeaseName	role;
	LeaseName	owner;
	int64		ttl;
} NewLease;

static void
insert_lease(void *arg)
{
	NewLease   *lease = arg;
	Oid			types[3] = {TEXTOID, TEXTOID, INTERVALOID};
	Datum		values[3];
	char		nulls[4] = "   ";

	SPI_connect();
	values[0] = PointerGetDatum(cstring_to_text_with_len(lease->role.data,
														 lease->role.len));
	values[1] = PointerGetDatum(cstring_to_text_with_len(lease->owner.data,
														 lease->owner.len));
	values[2] = IntervalPGetDatum(lease_interval(lease->ttl));
	if (lease->ttl == 0)
		nulls[2] = 'n';
	lease_spi_as_owner(lease->relid,
					   "INSERT INTO %s.leader_lease (role, owner, usual_ttl) VALUES ($1, $2, $3)",
					   3, types, values, nulls);
	SPI_finish();
}

void
lease_refuse_unmade(LeaseName role)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("lease \"%.*s\" cannot be made", NAME_ARGS(role)),
			 errhint("A trigger, rule or unique index on leader_lease is in the way.")));
}

/*
 * Makes the row of a lease that nobody holds.  It waits, at most limit
 * microseconds, for another's uncommitted row of that name; GUARDED_DUPLICATE
 * is that row, committed.  The trigger on the table fills in what is not said
 * here, as for an INSERT by hand.
 */
LeaseGuarded
lease_create_row(Oid relid, LeaseName role, LeaseName owner, int64 ttl,
				 int64 limit)
{
	NewLease	lease = {relid, role, owner, ttl};

	return lease_guarded(insert_lease, &lease, limit, false);
}

/*
 * lease_create(role text, owner text DEFAULT current_user,
 *				ttl interval DEFAULT NULL) -> void
 *
 * Makes a lease that nobody holds yet, with its owner and usual ttl (NULL: the
 * setting's).  42710 when there is one of that name.
 */
Datum
lease_create(PG_FUNCTION_ARGS)
{
	LeaseName	role = lease_arg_name(fcinfo, 0, "lease name");
	LeaseName	owner = lease_arg_name(fcinfo, 1, "owner");
	int64		ttl = lease_arg_ttl(fcinfo, 2);
	Oid			relid;
	LeaseGuarded created;
	LeaseTable	table;

	lease_require_writable("lease_create()");
	relid = lease_table_oid(fcinfo);
	lease_access_require_grantable(relid, owner);
	created = lease_create_row(relid, role, owner, ttl, -1);
	lease_table_open(&table, relid);
	if (!lease_table_find(&table, role))
		lease_refuse_unmade(role);
	lease_table_close(&table);
	if (created != GUARDED_DONE)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("lease \"%.*s\" already exists", NAME_ARGS(role))));
	PG_RETURN_VOID();
}

/*
 * lease_set_owner(role text, owner text) -> void
 *
 * Gives a lease to another database role, as ALTER ... OWNER TO does: who is a
 * member of the present owner and could SET ROLE to the new one may.  42704
 * when there is no such lease.  Locks the row.
 */
Datum
lease_set_owner(PG_FUNCTION_ARGS)
{
	LeaseName	role = lease_arg_name(fcinfo, 0, "lease name");
	LeaseName	owner = lease_arg_name(fcinfo, 1, "owner");
	Oid			relid;
	LeaseTable	table;

	lease_require_writable("lease_set_owner()");
	relid = lease_table_oid(fcinfo);
	lease_table_open(&table, relid);
	for (;;)
	{
		LeaseRowLock locked;

		CHECK_FOR_INTERRUPTS();
		if (!lease_table_find(&table, role))
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("lease \"%.*s\" does not exist", NAME_ARGS(role))));
		lease_access_require(&table.row);
		lease_access_require_grantable(relid, owner);
		lease_table_for_update(&table);
		lease_table_require_unchanged(&table);
		locked = lease_table_lock_row(&table);
		if (locked == LEASE_ROW_BUSY)
			(void) lease_table_await_row(&table, -1);
		if (locked == LEASE_ROW_LOCKED)
			break;
	}
	table.row.owner = owner;
	lease_table_update(&table, &table.row);
	lease_hint_forget(role);
	lease_table_close(&table);
	PG_RETURN_VOID();
}
