/*-------------------------------------------------------------------------
 *
 * lease_row.c
 *	  The lease table's columns, and a row of it as a struct.  A row of
 *	  leader_lease_observed, which has some of them, is the same struct.
 *
 * Columns are found by name, so that a new library meets the table of an
 * older script without harm.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "executor/tuptable.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "leader_lease.h"

typedef enum LeaseColumn
{
	COL_ROLE,
	COL_HOLDER,
	COL_TOKEN,
	COL_EXPIRES_AT,
	COL_NUMBER,
	COL_OWNER,
	COL_USUAL_TTL,
	COL_TTL,
	COL_ACQUIRED_AT,
	COL_RENEWED_AT,
	COL_DEADLINE,
	COL_BOOT,
	COL_ORIGIN,
	COL_GRANTED_XID,
	COL_GRANTED_CID,
	COL_ENDED,
	COL_SESSION,
	COL_COUNT
} LeaseColumn;

static const char *const column_names[COL_COUNT] = {
	"role", "holder_id", "fencing_token", "expires_at", "number", "owner",
	"usual_ttl", "ttl", "acquired_at", "renewed_at", "deadline", "boot",
	"origin", "granted_xid", "granted_cid", "ended", "session"
};

/* the same in leader_lease_observed; most are not there */
static const char *const observed_names[COL_COUNT] = {
	[COL_ROLE] = "resource", [COL_TOKEN] = "fencing_token",
	[COL_NUMBER] = "number", [COL_OWNER] = "owner",
	[COL_ACQUIRED_AT] = "observed_at", [COL_ORIGIN] = "origin",
	[COL_GRANTED_XID] = "raised_xid", [COL_GRANTED_CID] = "raised_cid"
};

/*
 * What is known of the two tables.  A database has at most one of each, since
 * an extension can be created once in it.  Forgotten at any invalidation of
 * the table's relcache entry (relid is InvalidOid then).
 */
typedef struct KnownTable
{
	const char *name;
	const char *const *column_names;
	Oid			relid;
	bool		have_columns;
	AttrNumber	column[COL_COUNT];
} KnownTable;

static KnownTable tables[] = {
	{"leader_lease", column_names},
	{"leader_lease_observed", observed_names}
};

#define LEASES		(&tables[0])
#define OBSERVED	(&tables[1])

/* the one whose columns were asked for last */
static KnownTable *known = LEASES;

static void
relcache_callback(Datum arg, Oid relid)
{
	for (int i = 0; i < lengthof(tables); i++)
		if (relid == InvalidOid || relid == tables[i].relid)
		{
			tables[i].relid = InvalidOid;
			tables[i].have_columns = false;
		}
}

void
lease_row_init(void)
{
	CacheRegisterRelcacheCallback(relcache_callback, (Datum) 0);
}

/*
 * A table beside the function that is called: found in the function's own
 * schema, never by search_path.
 */
static Oid
table_oid(KnownTable *table, FunctionCallInfo fcinfo)
{
	if (!OidIsValid(table->relid))
	{
		Oid			schema = get_func_namespace(fcinfo->flinfo->fn_oid);
		Oid			relid = get_relname_relid(table->name, schema);

		if (!OidIsValid(relid))
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_TABLE),
					 errmsg("table \"%s\" is missing from the schema of extension leader_lease",
							table->name)));
		table->relid = relid;
	}
	return table->relid;
}

Oid
lease_table_oid(FunctionCallInfo fcinfo)
{
	return table_oid(LEASES, fcinfo);
}

Oid
lease_observed_oid(FunctionCallInfo fcinfo)
{
	return table_oid(OBSERVED, fcinfo);
}

/*
 * The columns' numbers.  Call with the table open: its lock keeps them.
 */
static const AttrNumber *
columns(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < lengthof(tables); i++)
		if (tables[i].have_columns && tables[i].relid == RelationGetRelid(rel))
		{
			known = &tables[i];
			return known->column;
		}

	known = strcmp(RelationGetRelationName(rel), OBSERVED->name) == 0 ?
		OBSERVED : LEASES;
	known->relid = RelationGetRelid(rel);
	for (int i = 0; i < COL_COUNT; i++)
	{
		known->column[i] = InvalidAttrNumber;
		for (int att = 0; att < desc->natts; att++)
			if (!TupleDescAttr(desc, att)->attisdropped &&
				known->column_names[i] != NULL &&
				strcmp(NameStr(TupleDescAttr(desc, att)->attname),
					   known->column_names[i]) == 0)
				known->column[i] = att + 1;
	}
	known->have_columns = true;
	return known->column;
}

/*
 * The number of the column that the primary key is on.
 */
AttrNumber
lease_row_key(Relation rel)
{
	return columns(rel)[COL_ROLE];
}

static Datum
get(TupleTableSlot *slot, LeaseColumn col, bool *isnull)
{
	AttrNumber	att = known->column[col];

	if (att == InvalidAttrNumber)
	{
		*isnull = true;
		return (Datum) 0;
	}
	return slot_getattr(slot, att, isnull);
}

static LeaseName
get_name(TupleTableSlot *slot, LeaseColumn col)
{
	bool		isnull;
	Datum		value = get(slot, col, &isnull);
	LeaseName	name = {NULL, 0};

	if (!isnull)
	{
		text	   *t = DatumGetTextPP(value);

		name.data = VARDATA_ANY(t);
		name.len = VARSIZE_ANY_EXHDR(t);
	}
	return name;
}

static int64
get_int64(TupleTableSlot *slot, LeaseColumn col, int64 absent)
{
	bool		isnull;
	Datum		value = get(slot, col, &isnull);

	return isnull ? absent : DatumGetInt64(value);
}

#define LEASE_DAYS_MAX	INT64CONST(365243)

static int64
get_interval(TupleTableSlot *slot, LeaseColumn col)
{
	bool		isnull;
	Datum		value = get(slot, col, &isnull);
	Interval   *interval;
	int64		days;

	if (isnull)
		return 0;
	interval = DatumGetIntervalP(value);
	days = (int64) interval->month * 30 + interval->day;
	/* no ttl is a thousand years; what is given by hand must not overflow */
	days = Min(Max(days, -LEASE_DAYS_MAX), LEASE_DAYS_MAX);
	return Min(Max(interval->time, -LEASE_DAYS_MAX * USECS_PER_DAY),
			   LEASE_DAYS_MAX * USECS_PER_DAY) + days * USECS_PER_DAY;
}

/*
 * Reads a row out of a slot; the names in it point into the slot.
 */
void
lease_row_decode(Relation rel, TupleTableSlot *slot, LeaseRow *row)
{
	bool		isnull;
	Datum		xid;

	(void) columns(rel);
	slot_getallattrs(slot);
	row->role = get_name(slot, COL_ROLE);
	row->holder = get_name(slot, COL_HOLDER);
	row->token = get_int64(slot, COL_TOKEN, 0);
	row->expires_at = get_int64(slot, COL_EXPIRES_AT, DT_NOBEGIN);
	row->number = (uint32) get_int64(slot, COL_NUMBER, 0);
	row->owner = get_name(slot, COL_OWNER);
	row->usual_ttl = get_interval(slot, COL_USUAL_TTL);
	row->ttl = get_interval(slot, COL_TTL);
	row->acquired_at = get_int64(slot, COL_ACQUIRED_AT, DT_NOBEGIN);
	row->renewed_at = get_int64(slot, COL_RENEWED_AT, DT_NOBEGIN);
	row->deadline = get_int64(slot, COL_DEADLINE, 0);
	row->boot = get_int64(slot, COL_BOOT, 0);
	row->origin = get_int64(slot, COL_ORIGIN, 0);
	xid = get(slot, COL_GRANTED_XID, &isnull);
	row->granted_xid = isnull ? InvalidFullTransactionId :
		DatumGetFullTransactionId(xid);
	row->granted_cid = (CommandId) get_int64(slot, COL_GRANTED_CID, 0);
	row->ended = get_name(slot, COL_ENDED);
	row->session = get_int64(slot, COL_SESSION, 0);
}

/*
 * The same out of a trigger's tuple; the names point into that.
 */
void
lease_row_decode_tuple(Relation rel, HeapTuple tuple, LeaseRow *row)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel),
													&TTSOpsHeapTuple);

	ExecStoreHeapTuple(tuple, slot, false);
	lease_row_decode(rel, slot, row);
	ExecDropSingleTupleTableSlot(slot);
}

/*
 * A name as SQL has it.
 */
Datum
lease_name_datum(LeaseName name)
{
	return PointerGetDatum(cstring_to_text_with_len(name.data, name.len));
}

static void
put(Datum *values, bool *isnull, bool *replaces, LeaseColumn col,
	Datum value, bool null)
{
	AttrNumber	att = known->column[col];

	if (att == InvalidAttrNumber)
		return;
	values[att - 1] = value;
	isnull[att - 1] = null;
	if (replaces != NULL)
		replaces[att - 1] = true;
}

static void
put_name(Datum *values, bool *isnull, bool *replaces, LeaseColumn col,
		 LeaseName name)
{
	put(values, isnull, replaces, col,
		name.data == NULL ? (Datum) 0 :
		lease_name_datum(name),
		name.data == NULL);
}

#define PUT(col, value, null) put(values, isnull, replaces, col, value, null)

/*
 * Writes what a renewal changes into arrays of a tuple's values: the five
 * columns of lease_clock_extend.
 */
void
lease_row_put_time(Relation rel, const LeaseRow *row,
				   Datum *values, bool *isnull, bool *replaces)
{
	(void) columns(rel);
	PUT(COL_TTL, IntervalPGetDatum(lease_interval(row->ttl)), row->ttl == 0);
	PUT(COL_RENEWED_AT, TimestampTzGetDatum(row->renewed_at),
		row->renewed_at == DT_NOBEGIN);
	PUT(COL_EXPIRES_AT, TimestampTzGetDatum(row->expires_at), false);
	PUT(COL_DEADLINE, Int64GetDatum(row->deadline), row->deadline == 0);
	PUT(COL_BOOT, Int64GetDatum(row->boot), row->deadline == 0);
}

/*
 * Writes a row into arrays of a tuple's values; role stays as it is.
 */
void
lease_row_put(Relation rel, const LeaseRow *row,
			  Datum *values, bool *isnull, bool *replaces)
{
	lease_row_put_time(rel, row, values, isnull, replaces);
	put_name(values, isnull, replaces, COL_HOLDER, row->holder);
	PUT(COL_TOKEN, Int64GetDatum(row->token), false);
	PUT(COL_NUMBER, Int64GetDatum((int64) row->number), false);
	put_name(values, isnull, replaces, COL_OWNER, row->owner);
	PUT(COL_USUAL_TTL, IntervalPGetDatum(lease_interval(row->usual_ttl)),
		row->usual_ttl == 0);
	PUT(COL_ACQUIRED_AT, TimestampTzGetDatum(row->acquired_at),
		row->acquired_at == DT_NOBEGIN);
	PUT(COL_ORIGIN, Int64GetDatum(row->origin), false);
	PUT(COL_GRANTED_XID, FullTransactionIdGetDatum(row->granted_xid),
		!FullTransactionIdIsValid(row->granted_xid));
	PUT(COL_GRANTED_CID, Int64GetDatum((int64) row->granted_cid),
		!FullTransactionIdIsValid(row->granted_xid));
	put_name(values, isnull, replaces, COL_ENDED, row->ended);
	PUT(COL_SESSION, Int64GetDatum(row->session), row->session == 0);
#undef PUT
}

/*
 * Refuses a NULL in a tuple written by hand, where decoding would read it as
 * something else.
 */
void
lease_row_require_not_null(Relation rel, HeapTuple tuple)
{
	static const LeaseColumn needed[] = {COL_ROLE, COL_TOKEN, COL_EXPIRES_AT};

	(void) columns(rel);
	for (int i = 0; i < lengthof(needed); i++)
		if (known->column_names[needed[i]] != NULL &&
			heap_attisnull(tuple, known->column[needed[i]],
						   RelationGetDescr(rel)))
			ereport(ERROR,
					(errcode(ERRCODE_NOT_NULL_VIOLATION),
					 errmsg("null value in column \"%s\" of relation \"%s\" violates not-null constraint",
							known->column_names[needed[i]],
							RelationGetRelationName(rel))));
}

/*
 * A copy of a trigger's tuple with the row's values in it.
 */
HeapTuple
lease_row_encode(Relation rel, HeapTuple tuple, const LeaseRow *row)
{
	TupleDesc	desc = RelationGetDescr(rel);
	Datum	   *values = palloc0(sizeof(Datum) * desc->natts);
	bool	   *isnull = palloc0(sizeof(bool) * desc->natts);
	bool	   *replaces = palloc0(sizeof(bool) * desc->natts);

	lease_row_put(rel, row, values, isnull, replaces);
	return heap_modify_tuple(tuple, desc, values, isnull, replaces);
}
