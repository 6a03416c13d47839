/*-------------------------------------------------------------------------
 *
 * lease_table.c
 *	  The row of a lease: find it, lock it, write it.  No policy.
 *
 * Rows are written through the table access method, not through SPI, and not
 * with the Catalog* functions, which do not know a DBA's expression indexes.
 * Columns are found by name, so that a new library meets the table of an
 * older script without harm.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/skey.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "common/hashfn.h"
#include "executor/executor.h"
#include "executor/nodeModifyTable.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
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

/*
 * What is known of the lease table.  A database has at most one, since an
 * extension can be created once in it.  Forgotten at any invalidation of that
 * table's relcache entry (relid is InvalidOid then).
 */
static struct
{
	Oid			relid;
	bool		have_columns;
	AttrNumber	column[COL_COUNT];
}			known;

static void
relcache_callback(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == known.relid)
	{
		known.relid = InvalidOid;
		known.have_columns = false;
	}
}

void
lease_table_init(void)
{
	CacheRegisterRelcacheCallback(relcache_callback, (Datum) 0);
}

/*
 * The lease table beside the function that is called: found in the function's
 * own schema, never by search_path.
 */
Oid
lease_table_oid(FunctionCallInfo fcinfo)
{
	if (!OidIsValid(known.relid))
	{
		Oid			schema = get_func_namespace(fcinfo->flinfo->fn_oid);
		Oid			relid = get_relname_relid("leader_lease", schema);

		if (!OidIsValid(relid))
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_TABLE),
					 errmsg("table \"leader_lease\" is missing from the schema of extension leader_lease")));
		known.relid = relid;
	}
	return known.relid;
}

/*
 * The columns' numbers.  Call with the table open: its lock keeps them.
 */
static const AttrNumber *
columns(Relation rel)
{
	if (!known.have_columns || known.relid != RelationGetRelid(rel))
	{
		TupleDesc	desc = RelationGetDescr(rel);

		known.relid = RelationGetRelid(rel);
		for (int i = 0; i < COL_COUNT; i++)
		{
			known.column[i] = InvalidAttrNumber;
			for (int att = 0; att < desc->natts; att++)
				if (!TupleDescAttr(desc, att)->attisdropped &&
					strcmp(NameStr(TupleDescAttr(desc, att)->attname),
						   column_names[i]) == 0)
					known.column[i] = att + 1;
		}
		known.have_columns = true;
	}
	return known.column;
}

/*
 * Opens the lease table to look at it.  Nothing is found yet.
 */
void
lease_table_open(LeaseTable *table, Oid relid)
{
	table->rel = table_open(relid, AccessShareLock);
	table->slot = table_slot_create(table->rel, NULL);
	table->for_update = false;
	table->written = false;
}

/*
 * Locks the table as any UPDATE does: called before the lease or the row is
 * locked, since it may wait for somebody's DDL.
 */
void
lease_table_for_update(LeaseTable *table)
{
	if (!table->for_update)
		LockRelationOid(RelationGetRelid(table->rel), RowExclusiveLock);
	table->for_update = true;
}

/*
 * Closes it, and with it the row found.  The table's locks are given back, but
 * for the one that a change keeps until the transaction ends: a loser whose
 * transaction stays open must not hold up DDL, and others behind that.
 */
void
lease_table_close(LeaseTable *table)
{
	Oid			relid = RelationGetRelid(table->rel);

	ExecDropSingleTupleTableSlot(table->slot);
	table_close(table->rel, AccessShareLock);
	if (table->for_update && !table->written)
		UnlockRelationOid(relid, RowExclusiveLock);
}

static Datum
get(TupleTableSlot *slot, LeaseColumn col, bool *isnull)
{
	AttrNumber	att = known.column[col];

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
lease_table_decode(Relation rel, TupleTableSlot *slot, LeaseRow *row)
{
	bool		isnull;
	Datum		xid;

	(void) columns(rel);
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

static void
put(Datum *values, bool *isnull, bool *replaces, LeaseColumn col,
	Datum value, bool null)
{
	AttrNumber	att = known.column[col];

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
		PointerGetDatum(cstring_to_text_with_len(name.data, name.len)),
		name.data == NULL);
}

/*
 * Writes a row into arrays of a tuple's values; role stays as it is.
 */
static void
encode(Relation rel, const LeaseRow *row,
	   Datum *values, bool *isnull, bool *replaces)
{
#define PUT(col, value, null) put(values, isnull, replaces, col, value, null)
	(void) columns(rel);
	put_name(values, isnull, replaces, COL_HOLDER, row->holder);
	PUT(COL_TOKEN, Int64GetDatum(row->token), false);
	PUT(COL_EXPIRES_AT, TimestampTzGetDatum(row->expires_at), false);
	PUT(COL_NUMBER, Int64GetDatum((int64) row->number), false);
	put_name(values, isnull, replaces, COL_OWNER, row->owner);
	PUT(COL_USUAL_TTL, IntervalPGetDatum(lease_interval(row->usual_ttl)),
		row->usual_ttl == 0);
	PUT(COL_TTL, IntervalPGetDatum(lease_interval(row->ttl)), row->ttl == 0);
	PUT(COL_ACQUIRED_AT, TimestampTzGetDatum(row->acquired_at),
		row->acquired_at == DT_NOBEGIN);
	PUT(COL_RENEWED_AT, TimestampTzGetDatum(row->renewed_at),
		row->renewed_at == DT_NOBEGIN);
	PUT(COL_DEADLINE, Int64GetDatum(row->deadline), row->deadline == 0);
	PUT(COL_BOOT, Int64GetDatum(row->boot), row->deadline == 0);
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
lease_table_require_not_null(Relation rel, HeapTuple tuple)
{
	static const LeaseColumn needed[] = {COL_ROLE, COL_TOKEN, COL_EXPIRES_AT};

	(void) columns(rel);
	for (int i = 0; i < lengthof(needed); i++)
		if (heap_attisnull(tuple, known.column[needed[i]],
						   RelationGetDescr(rel)))
			ereport(ERROR,
					(errcode(ERRCODE_NOT_NULL_VIOLATION),
					 errmsg("null value in column \"%s\" of relation \"%s\" violates not-null constraint",
							column_names[needed[i]],
							RelationGetRelationName(rel))));
}

/*
 * A copy of a trigger's tuple with the row's values in it.
 */
HeapTuple
lease_table_encode(Relation rel, HeapTuple tuple, const LeaseRow *row)
{
	TupleDesc	desc = RelationGetDescr(rel);
	Datum	   *values = palloc0(sizeof(Datum) * desc->natts);
	bool	   *isnull = palloc0(sizeof(bool) * desc->natts);
	bool	   *replaces = palloc0(sizeof(bool) * desc->natts);

	encode(rel, row, values, isnull, replaces);
	return heap_modify_tuple(tuple, desc, values, isnull, replaces);
}

/*
 * Finds a lease's row as committed at this moment, whatever the isolation
 * level (and as this transaction's own earlier commands left it).  The row
 * stays until the next find, lock or close.
 *
 * The snapshot is a new one, registered.  SnapshotSelf or a dirty snapshot
 * would look at each version by itself: under a running renewal a scan meets
 * two good versions, or none.
 *
 * In SERIALIZABLE a scan leaves predicate locks, and a stranger who writes
 * the row then fails for our look.  A scan with SnapshotAny leaves none; what
 * it finds is judged by the same snapshot, one version after the other.
 */
bool
lease_table_find(LeaseTable *table, LeaseName role)
{
	Oid			pkey = LEASE_PRIMARY_KEY(table->rel);
	bool		serializable = IsolationIsSerializable();
	Snapshot	snapshot;
	Relation	index;
	IndexScanDesc scan;
	ScanKeyData key;
	bool		found = false;

	if (!OidIsValid(pkey))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has lost its primary key",
						RelationGetRelationName(table->rel)),
				 errhint("Add PRIMARY KEY (role) again.")));

	snapshot = RegisterSnapshot(GetLatestSnapshot());
	index = index_open(pkey, AccessShareLock);
	scan = LEASE_INDEX_BEGINSCAN(table->rel, index,
								 serializable ? SnapshotAny : snapshot);
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(cstring_to_text_with_len(role.data, role.len)));
	index_rescan(scan, &key, 1, NULL, 0);
	while (!found &&
		   index_getnext_slot(scan, ForwardScanDirection, table->slot))
		found = !serializable ||
			table_tuple_satisfies_snapshot(table->rel, table->slot, snapshot);
	index_endscan(scan);
	index_close(index, AccessShareLock);
	UnregisterSnapshot(snapshot);

	if (found)
		lease_table_decode(table->rel, table->slot, &table->row);
	return found;
}

/*
 * In REPEATABLE READ and SERIALIZABLE, refuses to go on when the row just
 * found is newer than the transaction's snapshot: called before a change,
 * since the table would otherwise show this transaction two versions of one
 * lease.  Who only looks does not call it, and renewals do not disturb him.
 */
void
lease_table_require_unchanged(LeaseTable *table)
{
	if (IsolationUsesXactSnapshot() &&
		!table_tuple_satisfies_snapshot(table->rel, table->slot,
										GetTransactionSnapshot()))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access due to a concurrent change of lease \"%.*s\"",
						NAME_ARGS(table->row.role)),
				 errhint("Retry the transaction.")));
}

static TM_Result
lock_row(LeaseTable *table, LockWaitPolicy policy)
{
	ItemPointerData tid = table->slot->tts_tid;
	TM_FailureData failure;

	return table_tuple_lock(table->rel, &tid, GetActiveSnapshot(),
							table->slot, GetCurrentCommandId(false),
							LockTupleNoKeyExclusive, policy, 0, &failure);
}

/*
 * Locks the row just found until the transaction ends, without waiting.  When
 * that is not possible nothing is held, and the row has to be found anew.
 */
LeaseRowLock
lease_table_lock_row(LeaseTable *table)
{
	LeaseName	role = table->row.role;

	table->tid = table->slot->tts_tid;
	switch (lock_row(table, LockWaitSkip))
	{
		case TM_Ok:
			lease_table_decode(table->rel, table->slot, &table->row);
			return LEASE_ROW_LOCKED;
		case TM_WouldBlock:
			return LEASE_ROW_BUSY;
		case TM_Updated:
			return LEASE_ROW_CHANGED;
		default:
			/* a statement of this transaction is at the row right now */
			ereport(ERROR,
					(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
					 errmsg("lease \"%.*s\" is being changed by the statement that calls this",
							NAME_ARGS(role))));
	}
	return LEASE_ROW_BUSY;		/* keep compiler quiet */
}

static void
await_row(void *arg)
{
	LeaseTable *table = arg;

	(void) lock_row(table, LockWaitBlock);
	/* the pin belongs to the subtransaction */
	ExecClearTuple(table->slot);
}

/*
 * Waits, at most limit microseconds (negative: without limit), until whoever
 * kept lease_table_lock_row from the row has ended.  In the lock manager, so
 * that a deadlock is seen.  It takes the lock in a subtransaction and rolls
 * that back: who then finds that he lost has left no row lock to hold up
 * others while his transaction goes on.
 */
bool
lease_table_await_row(LeaseTable *table, int64 limit)
{
	LeaseTable	waiting = *table;
	LeaseGuarded result;

	waiting.slot = table_slot_create(table->rel, NULL);
	waiting.slot->tts_tid = table->tid;
	result = lease_guarded(await_row, &waiting, limit, true);
	ExecDropSingleTupleTableSlot(waiting.slot);
	return result == GUARDED_DONE;
}

/*
 * What the executor's functions need to check and index a row.  There is no
 * range table, hence index 0.
 */
static EState *
executor_state(Relation rel, ResultRelInfo **result)
{
	EState	   *estate = CreateExecutorState();

	*result = makeNode(ResultRelInfo);
	InitResultRelInfo(*result, rel, 0, NULL, 0);
	return estate;
}

/*
 * Writes a new version of the row, which the caller has locked.  Indexes and
 * checks that a DBA added are kept; triggers are for statements and are not
 * fired.  Later commands, in this statement too, see the new version.
 */
void
lease_table_update(LeaseTable *table, const LeaseRow *row)
{
	Relation	rel = table->rel;
	TupleDesc	desc = RelationGetDescr(rel);
	TupleConstr *constr = desc->constr;
	TupleTableSlot *slot = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	ItemPointerData tid = table->slot->tts_tid;
	ResultRelInfo *result = NULL;
	EState	   *estate = NULL;
	LeaseUpdatedIndexes updated;

	slot_getallattrs(table->slot);
	memcpy(slot->tts_values, table->slot->tts_values,
		   sizeof(Datum) * desc->natts);
	memcpy(slot->tts_isnull, table->slot->tts_isnull,
		   sizeof(bool) * desc->natts);
	encode(rel, row, slot->tts_values, slot->tts_isnull, NULL);
	ExecStoreVirtualTuple(slot);
	slot->tts_tableOid = RelationGetRelid(rel);

	if (constr != NULL && (constr->num_check > 0 ||
						   constr->has_generated_stored))
	{
		estate = executor_state(rel, &result);
		if (constr->has_generated_stored)
			ExecComputeStoredGenerated(result, estate, slot, CMD_UPDATE);
		ExecConstraints(result, slot, estate);
	}

	simple_table_tuple_update(rel, &tid, slot, GetActiveSnapshot(), &updated);

	if (LEASE_NEEDS_INDEX_UPDATE(updated))
	{
		if (estate == NULL)
			estate = executor_state(rel, &result);
		ExecOpenIndices(result, false);
		if (result->ri_NumIndices > 0)
			LEASE_INSERT_INDEX_TUPLES(result, slot, estate, updated);
		ExecCloseIndices(result);
	}
	if (estate != NULL)
		FreeExecutorState(estate);
	ExecDropSingleTupleTableSlot(slot);

	table->written = true;
	lease_xact_changed();
	CommandCounterIncrement();
}

/*
 * What this backend remembers of leases it met: name -> number and owner, so
 * that a fence can be locked before its row is read.  A small direct-mapped
 * table; it may be wrong (a creation rolled back, an owner changed): whoever
 * uses it compares with the row after locking, forgets, and repeats.
 */
#define HINTS 64

static struct
{
	Oid			relid;
	uint32		number;
	LeaseName	role;
	LeaseName	owner;
	char		names[LEASE_NAME_MAX + NAMEDATALEN];
}			hints[HINTS];

static int
hint_slot(LeaseName role)
{
	return hash_bytes((const unsigned char *) role.data, role.len) % HINTS;
}

void
lease_hint_remember(Oid relid, const LeaseRow *row)
{
	int			i = hint_slot(row->role);

	if (row->role.len > LEASE_NAME_MAX || row->owner.len >= NAMEDATALEN)
		elog(ERROR, "name or owner of lease \"%.*s\" is too long",
			 NAME_ARGS(row->role));
	memcpy(hints[i].names, row->role.data, row->role.len);
	memcpy(hints[i].names + row->role.len, row->owner.data, row->owner.len);
	hints[i].role.data = hints[i].names;
	hints[i].role.len = row->role.len;
	hints[i].owner.data = hints[i].names + row->role.len;
	hints[i].owner.len = row->owner.len;
	hints[i].number = row->number;
	hints[i].relid = relid;
}

void
lease_hint_forget(LeaseName role)
{
	hints[hint_slot(role)].relid = InvalidOid;
}

bool
lease_hint_find(Oid relid, LeaseName role, uint32 *number, LeaseName *owner)
{
	int			i = hint_slot(role);

	if (hints[i].relid != relid || !lease_name_equal(hints[i].role, role))
		return false;
	*number = hints[i].number;
	*owner = hints[i].owner;
	return true;
}
