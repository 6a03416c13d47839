/*-------------------------------------------------------------------------
 *
 * lease_seek.c
 *	  Rows of the extension's tables by something else than a lease's name.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_am.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "leader_lease.h"

/*
 * An index of the table that begins with the columns of the keys, in the
 * keys' own order: a DBA's index may have another collation.  InvalidOid
 * where there is none.
 */
Oid
lease_table_index(Relation rel, int nkeys, const ScanKeyData *keys)
{
	Oid			result = InvalidOid;
	ListCell   *cell;

	foreach(cell, RelationGetIndexList(rel))
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);
		bool		fits = index->rd_rel->relam == BTREE_AM_OID &&
			index->rd_index->indisvalid &&
			index->rd_index->indnkeyatts >= nkeys &&
			RelationGetIndexPredicate(index) == NIL;

		for (int i = 0; fits && i < nkeys; i++)
			fits = index->rd_index->indkey.values[i] == keys[i].sk_attno &&
				(!OidIsValid(index->rd_indcollation[i]) ||
				 index->rd_indcollation[i] == keys[i].sk_collation);
		if (fits)
			result = RelationGetRelid(index);
		index_close(index, AccessShareLock);
	}
	return result;
}

/*
 * Copies of the rows of one of the extension's tables that have these values,
 * as that snapshot sees them, with their tids.  As lease_table_find it leaves
 * no predicate locks in SERIALIZABLE: whole pages of an index would make those
 * fail who add rows of other leases.
 */
List *
lease_table_tuples(Relation rel, Snapshot snapshot, int nkeys,
				   ScanKeyData *keys)
{
	List	   *tuples = NIL;
	bool		serializable = IsolationIsSerializable();
	Oid			index = lease_table_index(rel, nkeys, keys);
	SysScanDesc scan = systable_beginscan(rel, index, OidIsValid(index),
										  serializable ? SnapshotAny : snapshot,
										  nkeys, keys);

	while (systable_getnext(scan) != NULL)
		if (!serializable ||
			table_tuple_satisfies_snapshot(rel, scan->slot, snapshot))
		{
			HeapTuple	tuple = ExecCopySlotHeapTuple(scan->slot);

			tuple->t_self = scan->slot->tts_tid;
			tuples = lappend(tuples, tuple);
		}
	systable_endscan(scan);
	return tuples;
}

/*
 * Puts a tuple's values into a virtual slot, as lease_table_write wants them.
 */
void
lease_table_load(Relation rel, HeapTuple tuple, TupleTableSlot *slot)
{
	ExecClearTuple(slot);
	heap_deform_tuple(tuple, RelationGetDescr(rel), slot->tts_values,
					  slot->tts_isnull);
	ExecStoreVirtualTuple(slot);
	slot->tts_tableOid = RelationGetRelid(rel);
	slot->tts_tid = tuple->t_self;
}

/*
 * The same as of this moment: slots for lease_table_write, which the caller
 * drops.
 */
List *
lease_table_seek(Relation rel, int nkeys, ScanKeyData *keys)
{
	List	   *rows = NIL;
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ListCell   *cell;

	foreach(cell, lease_table_tuples(rel, snapshot, nkeys, keys))
	{
		TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel),
														&TTSOpsVirtual);

		lease_table_load(rel, lfirst(cell), slot);
		rows = lappend(rows, slot);
	}
	UnregisterSnapshot(snapshot);
	return rows;
}
