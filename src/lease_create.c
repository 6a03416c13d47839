/*-------------------------------------------------------------------------
 *
 * lease_create.c
 *	  Making a lease, and giving it to another owner.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "leader_lease.h"

PG_FUNCTION_INFO_V1(lease_create);
PG_FUNCTION_INFO_V1(lease_set_owner);

/*
 * The transaction that is making a row of that name, by a statement written by
 * hand, and has not committed it; invalid where there is none.  A dirty
 * snapshot tells it; nothing is decided by that but whom to wait for.
 */
static TransactionId
being_made_by(LeaseTable *table, LeaseName role)
{
	SnapshotData dirty;
	Relation	index = index_open(LEASE_PRIMARY_KEY(table->rel),
								   AccessShareLock);
	TupleTableSlot *slot = table_slot_create(table->rel, NULL);
	IndexScanDesc scan;
	ScanKeyData key;
	TransactionId xid = InvalidTransactionId;

	InitDirtySnapshot(dirty);
	scan = LEASE_INDEX_BEGINSCAN(table->rel, index, &dirty);
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_TEXTEQ,
				lease_name_datum(role));
	index_rescan(scan, &key, 1, NULL, 0);
	if (index_getnext_slot(scan, ForwardScanDirection, slot))
		xid = dirty.xmin;
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, AccessShareLock);
	return xid;
}

static void
await_transaction(void *arg)
{
	XactLockTableWait(*(TransactionId *) arg, NULL, NULL, XLTW_None);
}

/*
 * A number for a new row, of either table.  Where rows were restored without the sequence, or
 * with numbers given by hand, it catches up with them; should two do that at
 * once, the unique index has the last word.
 */
uint32
lease_number_draw(Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	Oid			sequence = get_relname_relid("leader_lease_number",
											 RelationGetNamespace(rel));
	bool		taken;
	int64		number;

	if (!OidIsValid(sequence))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("sequence \"leader_lease_number\" is missing")));
	do
	{
		ScanKeyData key;
		List	   *rows;
		ListCell   *cell;

		number = nextval_internal(sequence, false);
		ScanKeyInit(&key, lease_table_column(rel, "number", INT8OID),
					BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(number));
		rows = lease_table_seek(rel, 1, &key);
		taken = rows != NIL;
		foreach(cell, rows)
			ExecDropSingleTupleTableSlot(lfirst(cell));
		if (taken)
		{
			Oid			types[1] = {REGCLASSOID};
			Datum		values[1] = {ObjectIdGetDatum(sequence)};

			SPI_connect();
			lease_spi_as_owner(relid,
							   psprintf("SELECT setval($1, max(number)) FROM %%s.%s",
										RelationGetRelationName(rel)),
							   1, types, values, NULL);
			SPI_finish();
		}
	} while (taken);
	return (uint32) number;
}

/*
 * False when there is one meanwhile.
 */
static bool
insert_row(Oid relid, LeaseName role, LeaseName owner, int64 ttl)
{
	bool		observed = strcmp(get_rel_name(relid), "leader_lease_observed") == 0;
	Oid			types[3] = {TEXTOID, TEXTOID, INTERVALOID};
	Datum		values[3];
	char		nulls[4] = "   ";
	bool		inserted;

	SPI_connect();
	values[0] = lease_name_datum(role);
	values[1] = lease_name_datum(owner);
	values[2] = IntervalPGetDatum(lease_interval(ttl));
	if (ttl == 0)
		nulls[2] = 'n';
	if (observed)
		lease_spi_as_owner(relid,
						   "INSERT INTO %s.leader_lease_observed (resource, owner) VALUES ($1, $2) ON CONFLICT DO NOTHING",
						   2, types, values, NULL);
	else
		lease_spi_as_owner(relid,
						   "INSERT INTO %s.leader_lease (role, owner, usual_ttl) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
						   3, types, values, nulls);
	inserted = SPI_processed > 0;
	SPI_finish();
	return inserted;
}

/*
 * Makes the row of a lease that nobody holds, or of a resource of which no
 * token was observed: relid is the table.  The trigger on the table fills
 * in what is not said here, as for an INSERT by hand.
 *
 * Another may be making it, and his transaction may last: he is waited for, at
 * most limit microseconds.  The functions meet at a lock, statements by hand
 * are found by a look at their uncommitted row.  So the insertion itself has
 * nobody to wait for, and needs no subtransaction: a hundred first grants in
 * one statement use no subtransaction id, and who comes second no id at all.
 */
LeaseCreated
lease_create_row(Oid relid, LeaseName role, LeaseName owner, int64 ttl,
				 int64 limit)
{
	LeaseCreated result = CREATED;
	LeaseTable	table;
	TransactionId xid;

	if (!lease_creation_lock(relid, role, limit))
		return CREATED_NOT;

	lease_table_open(&table, relid);
	while (result == CREATED)
	{
		if (lease_table_find(&table, role))
			result = CREATED_BEFORE;
		else if (!TransactionIdIsValid(xid = being_made_by(&table, role)))
			break;
		else if (limit == 0 ||
				 lease_guarded(await_transaction, &xid, limit, true) == GUARDED_TIMEOUT)
			result = CREATED_NOT;
	}
	if (result == CREATED)
	{
		/* a statement by hand may have committed its row since the look */
		if (!insert_row(relid, role, owner, ttl))
			result = CREATED_BEFORE;
		if (!lease_table_find(&table, role))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("lease \"%.*s\" cannot be made", NAME_ARGS(role)),
					 errhint("A trigger, rule or unique index on %s is in the way.",
							 get_rel_name(relid))));
	}
	if (result != CREATED)
		lease_creation_unlock(relid, role);
	lease_table_close(&table);
	return result;
}

/*
 * Makes the lease that somebody wants to acquire and that is not there, unless
 * leader_lease.auto_create is off: 42704.
 */
LeaseCreated
lease_create_absent(Oid relid, LeaseName role, int64 limit)
{
	if (!lease_auto_create)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("lease \"%.*s\" does not exist", NAME_ARGS(role)),
				 errhint("leader_lease.auto_create is off: make it with lease_create.")));
	return lease_create_row(relid, role, lease_access_default_owner(), 0,
							limit);
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

	lease_require_writable("lease_create()");
	relid = lease_table_oid(fcinfo);
	lease_access_require_grantable(relid, owner);
	if (lease_create_row(relid, role, owner, ttl, -1) != CREATED)
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
		CHECK_FOR_INTERRUPTS();
		if (!lease_table_find(&table, role))
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("lease \"%.*s\" does not exist", NAME_ARGS(role))));
		lease_access_require(&table.row);
		lease_access_require_grantable(relid, owner);
		if (lease_table_hold_row(&table))
			break;
	}
	table.row.owner = owner;
	lease_table_update(&table, &table.row);
	lease_hint_forget(role);
	lease_table_close(&table);
	PG_RETURN_VOID();
}
