/*-------------------------------------------------------------------------
 *
 * lease_many.c
 *	  Many leases in one call: a worker's shards.
 *
 * Taking waits for nothing at all, so that it may go through the list in any
 * order.  What waits, renewing and releasing, goes in the order of the leases'
 * names, so that two calls never wait for each other.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "leader_lease.h"

PG_FUNCTION_INFO_V1(lease_acquire_any);
PG_FUNCTION_INFO_V1(lease_renew_all);
PG_FUNCTION_INFO_V1(lease_release_all);

/*
 * Adds a row to what a function answers.
 */
static void
answer(FunctionCallInfo fcinfo, LeaseName role, int64 token, int64 ttl)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Datum		values[3];
	bool		nulls[3] = {false};

	values[0] = lease_name_datum(role);
	values[1] = Int64GetDatum(token);
	values[2] = IntervalPGetDatum(lease_interval(ttl));
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

static MemoryContext
context_for_each(void)
{
	return AllocSetContextCreate(CurrentMemoryContext, "one of many leases",
								 ALLOCSET_DEFAULT_SIZES);
}

/* acquiring -------------------------------------------------------------- */

/*
 * Takes a lease that is free, without waiting for anything.  False when it is
 * live, or somebody is at it.
 */
static bool
acquire_free(LeaseTable *table, Takeover *takeover)
{
	LeaseStep	step = STEP_AGAIN;

	while (step == STEP_AGAIN)
	{
		LeaseMoment now;

		CHECK_FOR_INTERRUPTS();
		if (!lease_table_find(table, takeover->role))
		{
			if (lease_create_absent(takeover->relid, takeover->role,
									0) == CREATED_NOT)
				return false;
			continue;
		}
		lease_access_require(&table->row);
		lease_clock_read(&now);
		if (!lease_takeover_called_for(takeover, &table->row, &now))
			return false;
		step = lease_take_over(table, takeover, 0);
	}
	return takeover->token != 0;
}

/*
 * lease_acquire_any(roles text[], holder text, max_n integer,
 *					 ttl interval DEFAULT NULL)
 *		-> SETOF (role, token, ttl)
 *
 * New terms of at most max_n leases of the list that are free, in the order
 * they were taken.  What is live, the caller's own too, and what somebody is
 * at (a fence of a term that is over, a takeover, a locked row, a row that is
 * being made) is skipped, after one look.  Absent leases are made.
 *
 * The list is gone through in random order, so that those who start at once
 * do not all try for the same lease.
 *
 * Locks as lease_acquire for what it takes, and none for what it skips.
 * Errors as lease_acquire; 22004 for a NULL in the list, 22023 for a negative
 * max_n.
 */
Datum
lease_acquire_any(PG_FUNCTION_ARGS)
{
	int			left;
	LeaseName  *roles = lease_arg_names(fcinfo, 0, "lease name", &left);
	LeaseName	holder = lease_arg_name(fcinfo, 1, "holder");
	int64		ttl = lease_arg_ttl(fcinfo, 3);
	int			max_n;
	Oid			relid;
	LeaseTable	table;
	MemoryContext each;

	if (PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("max_n must not be null")));
	max_n = PG_GETARG_INT32(2);
	if (max_n < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_n must not be negative")));
	lease_require_writable("lease_acquire_any()");
	InitMaterializedSRF(fcinfo, 0);

	relid = lease_table_oid(fcinfo);
	lease_table_open(&table, relid);
	each = context_for_each();
	while (left > 0 && max_n > 0)
	{
		int			i = (int) pg_prng_uint64_range(&pg_global_prng_state,
												   0, left - 1);
		Takeover	takeover = {TAKEOVER_ACQUIRE, relid, roles[i]};
		MemoryContext caller = MemoryContextSwitchTo(each);

		takeover.holder = holder;
		takeover.ttl = ttl;
		if (acquire_free(&table, &takeover))
		{
			answer(fcinfo, takeover.role, takeover.token, takeover.granted);
			max_n--;
		}
		roles[i] = roles[--left];
		MemoryContextSwitchTo(caller);
		MemoryContextReset(each);
	}
	lease_table_close(&table);
	return (Datum) 0;
}

/* a holder's terms ------------------------------------------------------- */

/* A row as it was when the call began. */
typedef struct HeldRow
{
	LeaseName	role;
	HeapTuple	tuple;
} HeldRow;

static int
compare_rows(const void *a, const void *b)
{
	LeaseName	left = ((const HeldRow *) a)->role;
	LeaseName	right = ((const HeldRow *) b)->role;
	int			cmp = memcmp(left.data, right.data, Min(left.len, right.len));

	return cmp != 0 ? cmp : left.len - right.len;
}

/*
 * The rows that name a holder, of terms that are live or over, in the order of
 * the leases' names.
 */
static HeldRow *
rows_of(Relation rel, Snapshot snapshot, LeaseName holder, int *count)
{
	AttrNumber	att_role = lease_row_key(rel);
	ScanKeyData key;
	List	   *tuples;
	ListCell   *cell;
	HeldRow    *rows;

	ScanKeyInit(&key, lease_table_column(rel, "holder_id", TEXTOID),
				BTEqualStrategyNumber, F_TEXTEQ,
				lease_name_datum(holder));
	tuples = lease_table_tuples(rel, snapshot, 1, &key);
	rows = palloc(sizeof(HeldRow) * Max(list_length(tuples), 1));
	*count = 0;
	foreach(cell, tuples)
	{
		HeldRow    *row = &rows[(*count)++];
		bool		isnull;
		text	   *role;

		row->tuple = lfirst(cell);
		role = DatumGetTextPP(heap_getattr(row->tuple, att_role,
										   RelationGetDescr(rel), &isnull));
		row->role.data = VARDATA_ANY(role);
		row->role.len = VARSIZE_ANY_EXHDR(role);
	}
	/* the index may have them in this order: then that is seen at once */
	qsort(rows, *count, sizeof(HeldRow), compare_rows);
	return rows;
}

/*
 * Finds the row of a lease: true when its term is live, this holder's, of this
 * origin, and the caller may use it.  Nothing is locked.
 */
static bool
find_term(LeaseTable *table, LeaseName role, LeaseName holder)
{
	LeaseMoment now;

	CHECK_FOR_INTERRUPTS();
	if (!lease_table_find(table, role) ||
		!lease_access_allowed(table->row.owner, GetUserId()))
		return false;
	lease_clock_read(&now);
	return lease_term_judge(RelationGetRelid(table->rel), &table->row, holder,
							table->row.token, &now) == TERM_CURRENT;
}

/*
 * Renews the term of a row that was found.  First the row is replaced as it
 * was, where nobody is at it and nobody has changed it since.  That is asked
 * now: rows before this one may have been waited for.  What does not go that
 * way is looked at again, and renewed as lease_renew does it.  True: renewed,
 * table->row has the token, *ttl is what was granted.
 */
static bool
renew_one(LeaseTable *table, TupleTableSlot *slot, HeapTuple found,
		  LeaseName role, LeaseName holder, int64 asked, int64 *ttl)
{
	LeaseStep	step = STEP_AGAIN;

	/* a change since the transaction's snapshot is lease_prolong's to tell */
	*ttl = asked;
	if (!IsolationUsesXactSnapshot() &&
		lease_table_untouched_at(table, &found->t_self))
		step = lease_prolong_version(table, slot, holder, table->row.token,
									 ttl);
	while (step == STEP_AGAIN && find_term(table, role, holder))
	{
		*ttl = asked;
		step = lease_prolong(table, holder, table->row.token, ttl);
	}
	return step == STEP_DONE;
}

/*
 * lease_renew_all(holder text, ttl interval DEFAULT NULL)
 *		-> SETOF (role, token, ttl)
 *
 * Renews all live terms of a holder that the caller may use, as lease_renew
 * would, and says which, in the order of their names: what is missing is lost.
 * It locks the rows, and waits for whoever is at one before it goes on to the
 * next.  Errors as lease_renew; leases of other owners are not this holder's.
 */
Datum
lease_renew_all(PG_FUNCTION_ARGS)
{
	LeaseName	holder = lease_arg_name(fcinfo, 0, "holder");
	int64		asked = lease_arg_ttl(fcinfo, 1);
	LeaseName	owner = {NULL, 0};	/* of the lease before: mostly the same */
	LeaseTable	table;
	Snapshot	snapshot;
	HeldRow    *rows;
	int			count;
	TupleTableSlot *slot;
	MemoryContext each;

	lease_require_writable("lease_renew_all()");
	InitMaterializedSRF(fcinfo, 0);
	lease_table_open(&table, lease_table_oid(fcinfo));
	lease_table_for_update(&table);
	/* it keeps VACUUM from the versions that are yet to be replaced */
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	rows = rows_of(table.rel, snapshot, holder, &count);
	slot = MakeSingleTupleTableSlot(RelationGetDescr(table.rel),
									&TTSOpsVirtual);
	each = context_for_each();
	for (int i = 0; i < count; i++)
	{
		MemoryContext caller;
		int64		ttl;

		CHECK_FOR_INTERRUPTS();
		lease_table_load(table.rel, rows[i].tuple, slot);
		lease_row_decode(table.rel, slot, &table.row);
		if (!lease_name_equal(table.row.owner, owner))
		{
			if (!lease_access_allowed(table.row.owner, GetUserId()))
				continue;
			owner = lease_name_copy(table.row.owner);
		}
		caller = MemoryContextSwitchTo(each);
		if (renew_one(&table, slot, rows[i].tuple, rows[i].role, holder,
					  asked, &ttl))
			answer(fcinfo, rows[i].role, table.row.token, ttl);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(each);
	}
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	CommandCounterIncrement();
	lease_table_close(&table);
	return (Datum) 0;
}

/*
 * lease_release_all(holder text) -> bigint
 *
 * Ends all live terms of a holder that the caller may use, as lease_release
 * would, in the order of their names; the number of them.
 */
Datum
lease_release_all(PG_FUNCTION_ARGS)
{
	LeaseName	holder = lease_arg_name(fcinfo, 0, "holder");
	LeaseTable	table;
	Snapshot	snapshot;
	HeldRow    *rows;
	int			count;
	MemoryContext each;
	int64		released = 0;

	lease_require_writable("lease_release_all()");
	lease_table_open(&table, lease_table_oid(fcinfo));
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	rows = rows_of(table.rel, snapshot, holder, &count);
	UnregisterSnapshot(snapshot);
	each = context_for_each();
	for (int i = 0; i < count; i++)
	{
		MemoryContext caller = MemoryContextSwitchTo(each);
		LeaseStep	step = STEP_AGAIN;

		while (step == STEP_AGAIN && find_term(&table, rows[i].role, holder))
			step = lease_end_term(&table, holder, table.row.token);
		if (step == STEP_DONE)
			released++;
		MemoryContextSwitchTo(caller);
		MemoryContextReset(each);
	}
	lease_table_close(&table);
	PG_RETURN_INT64(released);
}
