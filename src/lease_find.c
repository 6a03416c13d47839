/*-------------------------------------------------------------------------
 *
 * lease_find.c
 *	  Finding the row of a lease, as it is committed at this moment.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/skey.h"
#include "access/tableam.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "leader_lease.h"

/*
 * Is the page of the row just fetched nearly full, with something to prune?
 * Two renewals' room is what counts as nearly full.  A guess, like the
 * server's own: without the page's lock.
 */
static bool
page_wants_pruning(TupleTableSlot *slot)
{
	BufferHeapTupleTableSlot *fetched = (BufferHeapTupleTableSlot *) slot;
	Page		page;
	Size		room;

	if (!TTS_IS_BUFFERTUPLE(slot) || !BufferIsValid(fetched->buffer))
		return false;
	page = BufferGetPage(fetched->buffer);
	room = Max(2 * MAXALIGN(fetched->base.tuple->t_len), BLCKSZ / 10);
	return TransactionIdIsValid(((PageHeader) page)->pd_prune_xid) &&
		(PageIsFull(page) || PageGetHeapFreeSpace(page) < room);
}

/*
 * The row where this backend last saw it, if that version is still the one to
 * see.  The snapshot sees one version of a lease and no more, since the
 * primary key is what it was when the place was remembered: so what bears the
 * name and is seen is the row, whatever the place has become.  VACUUM may have
 * cut off the table's end since; the table's lock keeps the rest.
 *
 * A look by the index also prunes the page, and this does not: who alone
 * renews a lease would fill page after page, each time with an update that is
 * not HOT.  So a page that fills up is left to the index.
 */
static bool
fetch_remembered(LeaseTable *table, Oid pkey, LeaseName role, Snapshot snapshot)
{
	ItemPointerData tid;

	if (!lease_hint_place(RelationGetRelid(table->rel), pkey, role, &tid) ||
		ItemPointerGetBlockNumber(&tid) >= RelationGetNumberOfBlocks(table->rel) ||
		!table_tuple_fetch_row_version(table->rel, &tid, snapshot, table->slot))
		return false;
	lease_row_decode(table->rel, table->slot, &table->row);
	if (lease_name_equal(table->row.role, role) &&
		!page_wants_pruning(table->slot))
		return true;
	/* a page that is pinned is not pruned */
	ExecClearTuple(table->slot);
	return false;
}

/*
 * The row by the primary key.
 *
 * In SERIALIZABLE a scan leaves predicate locks, and a stranger who writes
 * the row then fails for our look.  A scan with SnapshotAny leaves none; what
 * it finds is judged by the same snapshot, one version after the other.
 *
 * Backward: under an old snapshot that keeps VACUUM from a lease's versions,
 * the newest one is mostly at the index's end, after thousands of dead ones.
 */
static bool
fetch_by_key(LeaseTable *table, Oid pkey, LeaseName role, Snapshot snapshot)
{
	bool		serializable = IsolationIsSerializable();
	Relation	index = NULL;
	IndexScanDesc scan;
	ScanKeyData key;
	bool		found = false;

	if (OidIsValid(pkey))
		index = index_open(pkey, AccessShareLock);
	if (index == NULL || index->rd_index->indnkeyatts != 1 ||
		index->rd_index->indkey.values[0] != lease_row_key(table->rel))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has lost its primary key",
						RelationGetRelationName(table->rel)),
				 errhint("Add PRIMARY KEY (role) again.")));

	scan = LEASE_INDEX_BEGINSCAN(table->rel, index,
								 serializable ? SnapshotAny : snapshot);
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_TEXTEQ,
				lease_name_datum(role));
	index_rescan(scan, &key, 1, NULL, 0);
	while (!found &&
		   index_getnext_slot(scan, BackwardScanDirection, table->slot))
		found = !serializable ||
			table_tuple_satisfies_snapshot(table->rel, table->slot, snapshot);
	index_endscan(scan);
	index_close(index, AccessShareLock);

	if (found)
	{
		lease_row_decode(table->rel, table->slot, &table->row);
		lease_hint_set_place(RelationGetRelid(table->rel), pkey, role,
							 &table->slot->tts_tid);
	}
	return found;
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
 * The remembered place spares the index, but fetching from it leaves a
 * predicate lock: not in SERIALIZABLE.
 */
bool
lease_table_find(LeaseTable *table, LeaseName role)
{
	Oid			pkey = LEASE_PRIMARY_KEY(table->rel);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	bool		found;

	found = (!IsolationIsSerializable() &&
			 fetch_remembered(table, pkey, role, snapshot)) ||
		fetch_by_key(table, pkey, role, snapshot);
	UnregisterSnapshot(snapshot);
	return found;
}

/*
 * Notes that the version just written is where to look for the row next time.
 */
void
lease_table_remember(LeaseTable *table, TupleTableSlot *written, LeaseName role)
{
	lease_hint_set_place(RelationGetRelid(table->rel),
						 LEASE_PRIMARY_KEY(table->rel), role,
						 &written->tts_tid);
}

/*
 * A tuple to be inserted by hand whose name is there already: completed with
 * what must not be null, which is asked before the conflict is found.  NULL
 * when there is no row of that name.
 */
HeapTuple
lease_table_conflicting(Relation rel, HeapTuple tuple, LeaseRow *row)
{
	LeaseTable	table;
	HeapTuple	completed = NULL;

	lease_table_open(&table, RelationGetRelid(rel));
	if (lease_table_find(&table, row->role))
	{
		row->number = table.row.number;
		row->origin = table.row.origin;
		row->owner = table.row.owner;
		completed = lease_row_encode(rel, tuple, row);
	}
	lease_table_close(&table);
	return completed;
}
