/*-------------------------------------------------------------------------
 *
 * lease_view.c
 *	  What the views ask the code, so that policy is not told twice.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/typcache.h"

#include "leader_lease.h"

PG_FUNCTION_INFO_V1(lease_term);
PG_FUNCTION_INFO_V1(lease_guard_arguments);

/*
 * lease_term(leader_lease) -> (state text, live boolean, remaining interval)
 *
 * The state of a row by the clock that decides for it.  live: the term is
 * current, and its fences would be granted.  remaining: how long the holder
 * keeps others out, also where a failover has ended his term; NULL when he
 * does not.
 */
Datum
lease_term(PG_FUNCTION_ARGS)
{
	Oid			relid = lease_table_oid(fcinfo);
	HeapTupleHeader header;
	HeapTupleData tuple;
	TupleDesc	desc;
	TupleTableSlot *slot;
	Relation	rel;
	LeaseRow	row;
	LeaseMoment now;
	int64		remaining;
	Datum		values[3];
	bool		nulls[3] = {false};

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	header = PG_GETARG_HEAPTUPLEHEADER(0);
	rel = table_open(relid, AccessShareLock);
	if (HeapTupleHeaderGetTypeId(header) != rel->rd_rel->reltype)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("argument is not a row of leader_lease")));
	tuple.t_len = HeapTupleHeaderGetDatumLength(header);
	ItemPointerSetInvalid(&tuple.t_self);
	tuple.t_tableOid = InvalidOid;
	tuple.t_data = header;
	slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);
	ExecStoreHeapTuple(&tuple, slot, false);
	lease_row_decode(rel, slot, &row);

	lease_clock_read(&now);
	remaining = lease_term_live(relid, &row, &now) ?
		lease_clock_remaining(&row, &now) : 0;
	values[0] = CStringGetTextDatum(lease_term_state(relid, &row, &now));
	values[1] = BoolGetDatum(remaining > 0 && row.origin == lease_origin(relid));
	values[2] = IntervalPGetDatum(lease_interval(remaining));
	nulls[2] = remaining <= 0;

	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, AccessShareLock);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}

/*
 * lease_guard_arguments(tgargs bytea) -> text[]
 *
 * The arguments of a trigger, which pg_trigger keeps as strings that end in a
 * zero byte each.
 */
Datum
lease_guard_arguments(PG_FUNCTION_ARGS)
{
	ArrayBuildState *result = initArrayResult(TEXTOID, CurrentMemoryContext,
											  false);
	bytea	   *args;
	const char *data;
	int			len;
	int			start = 0;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	args = PG_GETARG_BYTEA_PP(0);
	data = VARDATA_ANY(args);
	len = VARSIZE_ANY_EXHDR(args);
	for (int i = 0; i < len; i++)
	{
		if (data[i] != '\0')
			continue;
		/* anybody may call this with bytes that are no text */
		pg_verifymbstr(data + start, i - start, false);
		result = accumArrayResult(result,
								  PointerGetDatum(cstring_to_text_with_len(data + start, i - start)),
								  false, TEXTOID, CurrentMemoryContext);
		start = i + 1;
	}
	PG_RETURN_DATUM(makeArrayResult(result, CurrentMemoryContext));
}
