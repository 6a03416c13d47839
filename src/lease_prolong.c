/*-------------------------------------------------------------------------
 *
 * lease_prolong.c
 *	  Prolonging a term: a renewal by whatever function.
 *
 * Most renewals meet nobody at the row.  For these the write is a comparison
 * too: it replaces the version that was judged, or does nothing when that is
 * no longer the newest.  So nothing has to be locked before, which spares one
 * WAL record and one visit to the page.
 *
 * The order is the usual one: look, read the clock, decide, write.  Between
 * the look and the write another may change the row: then the write does
 * nothing.  Or he may lock it, and the write waits for him; therefore the
 * clock is read again after the write.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"

#include "leader_lease.h"

/*
 * Prolongs the term in table->row, which was read from the version that slot
 * (a virtual one) names and has the values of, if it is the current term of
 * (holder, token) and that version still the newest.  *ttl is what was asked
 * for, and then what was granted.  The caller owes a CommandCounterIncrement
 * before he looks at the row again.
 *
 * STEP_AGAIN: not prolonged, look again.
 */
LeaseStep
lease_prolong_version(LeaseTable *table, TupleTableSlot *slot,
					  LeaseName holder, int64 token, int64 *ttl)
{
	Relation	rel = table->rel;
	Oid			relid = RelationGetRelid(rel);
	LeaseRow   *row = &table->row;
	LeaseRow	before = *row;
	LeaseMoment now;

	lease_clock_read(&now);
	if (lease_term_judge(relid, row, holder, token, &now) != TERM_CURRENT)
		return STEP_AGAIN;
	*ttl = lease_term_choose_ttl(row, *ttl, true);
	lease_clock_extend(row, &now, *ttl);
	lease_row_put_time(rel, row, slot->tts_values, slot->tts_isnull,
					   NULL);
	if (!lease_table_try_write(rel, slot, row->role))
		return STEP_AGAIN;
	table->written = true;
	lease_xact_changed();

	/*
	 * Somebody may have locked the row just before the write, and the term may
	 * have run out while that waited for him.  Nobody has seen the new version
	 * yet: the old one is put back.
	 */
	lease_clock_read(&now);
	if (lease_term_judge(relid, &before, holder, token, &now) == TERM_CURRENT)
		return STEP_DONE;
	CommandCounterIncrement();
	lease_row_put_time(rel, &before, slot->tts_values, slot->tts_isnull,
					   NULL);
	lease_table_write(rel, slot);
	return STEP_AGAIN;
}

/*
 * Prolongs the term in table->row, which was just found.  It writes the row,
 * and takes no lock on the lease, so that the leader's open fences never block
 * its heartbeat.  Waits for whoever is at the row, without a limit but the
 * user's lock_timeout.
 *
 * STEP_DONE: prolonged, *ttl is what was granted.  STEP_AGAIN: look again.
 */
LeaseStep
lease_prolong(LeaseTable *table, LeaseName holder, int64 token, int64 *ttl)
{
	TupleTableSlot *slot;
	LeaseStep	step;

	/*
	 * Where somebody is at the row, he is waited for before the row is looked
	 * at and judged, and who is then told no holds nothing of it.  The wait
	 * for somebody's DDL comes before that question.
	 */
	lease_table_for_update(table);
	if (lease_table_untouched(table))
		lease_table_require_unchanged(table);
	else if (!lease_table_hold_row(table))
		return STEP_AGAIN;

	slot = lease_table_copy(table->rel, table->slot);
	step = lease_prolong_version(table, slot, holder, token, ttl);
	if (step == STEP_DONE)
		lease_table_remember(table, slot, table->row.role);
	ExecDropSingleTupleTableSlot(slot);
	CommandCounterIncrement();
	return step;
}
