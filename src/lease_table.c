/*-------------------------------------------------------------------------
 *
 * lease_table.c
 *	  The row of a lease: find it, lock it, write it.  No policy.
 *
 * Rows are written through the table access method, not through SPI, and not
 * with the Catalog* functions, which do not know a DBA's expression indexes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "executor/executor.h"
#include "executor/nodeModifyTable.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "leader_lease.h"

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

/*
 * Keeps the row but lets go of its page, before a wait: VACUUM may want it.
 */
void
lease_table_unpin(LeaseTable *table)
{
	ExecMaterializeSlot(table->slot);
	lease_row_decode(table->rel, table->slot, &table->row);
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

	/* the tid says which version; a snapshot would only hold back vacuum */
	return table_tuple_lock(table->rel, &tid, SnapshotAny,
							table->slot, GetCurrentCommandId(false),
							LockTupleNoKeyExclusive, policy, 0, &failure);
}

/*
 * A statement of this transaction is at the row right now.
 */
static void
refuse_own_statement(LeaseName role)
{
	ereport(ERROR,
			(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
			 errmsg("lease \"%.*s\" is being changed by the statement that calls this",
					NAME_ARGS(role))));
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
			lease_row_decode(table->rel, table->slot, &table->row);
			return LEASE_ROW_LOCKED;
		case TM_WouldBlock:
			return LEASE_ROW_BUSY;
		case TM_Updated:
			return LEASE_ROW_CHANGED;
		default:
			refuse_own_statement(role);
	}
	return LEASE_ROW_BUSY;		/* keep compiler quiet */
}

/*
 * Is the version just found unlocked and the newest, as its header tells?  A
 * hint: it may be out of date at once.  Who locks a row before he writes it,
 * as a takeover does, leaves his lock in the new version; it counts while he
 * runs.
 */
bool
lease_table_untouched(LeaseTable *table)
{
	bool		copied;
	HeapTuple	tuple = ExecFetchSlotHeapTuple(table->slot, false, &copied);
	HeapTupleHeader header = tuple->t_data;

	if (header->t_infomask & HEAP_XMAX_INVALID)
		return true;
	return HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask) &&
		!(header->t_infomask & HEAP_XMAX_IS_MULTI) &&
		!TransactionIdIsInProgress(HeapTupleHeaderGetRawXmax(header));
}

/*
 * The same, at this moment, of a version that was seen before and that a
 * snapshot has kept since.
 */
bool
lease_table_untouched_at(LeaseTable *table, ItemPointer tid)
{
	return table_tuple_fetch_row_version(table->rel, tid, SnapshotAny,
										 table->slot) &&
		lease_table_untouched(table);
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

	/* the slot's pin keeps the version from being pruned until it is locked */
	waiting.slot = table_slot_create(table->rel, NULL);
	waiting.slot->tts_tid = table->tid;
	result = lease_guarded(await_row, &waiting, limit, true);
	ExecClearTuple(table->slot);
	ExecDropSingleTupleTableSlot(waiting.slot);
	return result == GUARDED_DONE;
}

/*
 * Locks the row just found, to change it, after whoever is at it.  False when
 * it may have changed meanwhile: look again.  Waits without a limit but the
 * user's lock_timeout.
 */
bool
lease_table_hold_row(LeaseTable *table)
{
	lease_table_for_update(table);
	lease_table_require_unchanged(table);
	switch (lease_table_lock_row(table))
	{
		case LEASE_ROW_LOCKED:
			return true;
		case LEASE_ROW_BUSY:
			(void) lease_table_await_row(table, -1);
			return false;
		case LEASE_ROW_CHANGED:
			return false;
	}
	return false;
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
 * A virtual copy of a row, to be changed and written.
 */
TupleTableSlot *
lease_table_copy(Relation rel, TupleTableSlot *from)
{
	TupleDesc	desc = RelationGetDescr(rel);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);

	slot_getallattrs(from);
	memcpy(slot->tts_values, from->tts_values, sizeof(Datum) * desc->natts);
	memcpy(slot->tts_isnull, from->tts_isnull, sizeof(bool) * desc->natts);
	ExecStoreVirtualTuple(slot);
	slot->tts_tableOid = RelationGetRelid(rel);
	slot->tts_tid = from->tts_tid;
	return slot;
}

/*
 * Locks the version of a row that a copy is of, after whoever is at it.  False
 * when it is no longer the newest: look again.
 */
bool
lease_table_lock_copy(Relation rel, TupleTableSlot *copy)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TM_FailureData failure;
	TM_Result	result;

	result = table_tuple_lock(rel, &copy->tts_tid, SnapshotAny, slot,
							  GetCurrentCommandId(false),
							  LockTupleNoKeyExclusive, LockWaitBlock, 0,
							  &failure);
	ExecDropSingleTupleTableSlot(slot);
	return result == TM_Ok;
}

/*
 * Writes a new version of a row; slot names the old one, and then the new one.
 * Indexes, checks and generated columns that a DBA added are kept; triggers,
 * and what works by triggers (foreign keys, deferred constraints), are for
 * statements and are not fired.  Anything but TM_Ok has written nothing.
 */
static TM_Result
write_version(Relation rel, TupleTableSlot *slot)
{
	TupleConstr *constr = RelationGetDescr(rel)->constr;
	ItemPointerData tid = slot->tts_tid;
	ResultRelInfo *result = NULL;
	EState	   *estate = NULL;
	LeaseUpdatedIndexes updated;
	TM_FailureData failure;
	LockTupleMode lockmode;
	TM_Result	written;
	bool		pushed = !ActiveSnapshotSet();

	/* checks and index expressions may ask for one; a campaign has none */
	if (pushed)
		PushActiveSnapshot(GetTransactionSnapshot());

	if (constr != NULL && (constr->num_check > 0 ||
						   constr->has_generated_stored))
	{
		estate = executor_state(rel, &result);
		if (constr->has_generated_stored)
			ExecComputeStoredGenerated(result, estate, slot, CMD_UPDATE);
		ExecConstraints(result, slot, estate);
	}

	written = LEASE_TUPLE_UPDATE(rel, &tid, slot, GetCurrentCommandId(true),
								 GetActiveSnapshot(), &failure, &lockmode,
								 &updated);

	if (written == TM_Ok && LEASE_NEEDS_INDEX_UPDATE(updated))
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
	if (pushed)
		PopActiveSnapshot();
	return written;
}

/*
 * Writes a new version of a row that the caller has locked; slot names the old
 * one.  Later commands, in this statement too, see the new version.
 */
void
lease_table_write(Relation rel, TupleTableSlot *slot)
{
	if (write_version(rel, slot) != TM_Ok)
		elog(ERROR, "row of \"%s\" was not locked",
			 RelationGetRelationName(rel));
	CommandCounterIncrement();
}

/*
 * Writes a new version of a lease's row that nobody has locked, if slot names
 * the newest one; waits for whoever is at it, as any UPDATE does.  False: it
 * is not, and nothing is written or held.  It takes the caller's
 * CommandCounterIncrement to make the new version seen.
 */
bool
lease_table_try_write(Relation rel, TupleTableSlot *slot, LeaseName role)
{
	switch (write_version(rel, slot))
	{
		case TM_Ok:
			return true;
		case TM_Updated:
		case TM_Deleted:
			return false;
		default:
			refuse_own_statement(role);
	}
	return false;				/* keep compiler quiet */
}

/*
 * Writes a new version of the lease's row, which the caller has locked.
 */
void
lease_table_update(LeaseTable *table, const LeaseRow *row)
{
	TupleTableSlot *slot = lease_table_copy(table->rel, table->slot);

	lease_row_put(table->rel, row, slot->tts_values, slot->tts_isnull, NULL);
	lease_table_write(table->rel, slot);
	lease_table_remember(table, slot, row->role);
	ExecDropSingleTupleTableSlot(slot);
	table->written = true;
	lease_xact_changed();
}

/*
 * The number of a column, of the type that the code takes it to be: a DBA may
 * have renamed or altered it.
 */
AttrNumber
lease_table_column(Relation rel, const char *name, Oid type)
{
	AttrNumber	att = get_attnum(RelationGetRelid(rel), name);

	if (att == InvalidAttrNumber ||
		TupleDescAttr(RelationGetDescr(rel), att - 1)->atttypid != type)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("table \"%s\" has no column \"%s\" of type %s",
						RelationGetRelationName(rel), name,
						format_type_be(type))));
	return att;
}
