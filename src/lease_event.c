/*-------------------------------------------------------------------------
 *
 * lease_event.c
 *	  What is told of a change: notices on channel leader_lease, and the
 *	  history of terms.
 *
 * Both are part of the transaction that makes the change: no notice of a
 * grant that was rolled back, no grant without its row in the history.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "commands/async.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "leader_lease.h"

#define LEASE_CHANNEL		"leader_lease"
#define PRUNE_WITH_GRANT	"4"

static void
append_name(StringInfo payload, const char *key, LeaseName name)
{
	appendStringInfo(payload, "\"%s\": ", key);
	if (name.data == NULL)
		appendStringInfoString(payload, "null");
	else
		escape_json(payload, pnstrdup(name.data, name.len));
}

/*
 * One notice: {"role": .., "event": .., "holder": .., "token": ..}.  The
 * longest names, escaped, stay below what a notice may carry.
 */
static void
notify(const LeaseRow *row, const char *event)
{
	StringInfoData payload;

	if (!lease_notify)
		return;
	initStringInfo(&payload);
	appendStringInfoChar(&payload, '{');
	append_name(&payload, "role", row->role);
	appendStringInfo(&payload, ", \"event\": \"%s\", ", event);
	append_name(&payload, "holder", row->holder);
	appendStringInfo(&payload, ", \"token\": %lld}", (long long) row->token);
	Async_Notify(LEASE_CHANNEL, payload.data);
	pfree(payload.data);
}

/*
 * Closes the history of a term: why it ended, and when it did, not when that
 * was noticed.  Not by SQL, which would leave predicate locks in SERIALIZABLE.
 * Who ends a term has its lease to himself, so only a person can be at the row.
 */
static void
history_end(Oid relid, const LeaseRow *row, const char *reason,
			TimestampTz ended_at)
{
	Oid			history = get_relname_relid("leader_lease_history",
											get_rel_namespace(relid));
	Relation	rel = table_open(history, RowExclusiveLock);
	AttrNumber	att_ended = lease_table_column(rel, "ended_at",
											   TIMESTAMPTZOID) - 1;
	AttrNumber	att_reason = lease_table_column(rel, "end_reason", TEXTOID) - 1;
	bool		again;

	do
	{
		ScanKeyData keys[2];
		ListCell   *cell;

		ScanKeyInit(&keys[0], lease_table_column(rel, "role", TEXTOID),
					BTEqualStrategyNumber, F_TEXTEQ, lease_name_datum(row->role));
		ScanKeyInit(&keys[1], lease_table_column(rel, "fencing_token", INT8OID),
					BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(row->token));
		again = false;
		foreach(cell, lease_table_seek(rel, 2, keys))
		{
			TupleTableSlot *slot = lfirst(cell);

			if (slot->tts_isnull[att_ended] &&
				!lease_table_lock_copy(rel, slot))
				again = true;
			else if (slot->tts_isnull[att_ended])
			{
				slot->tts_values[att_ended] = TimestampTzGetDatum(ended_at);
				slot->tts_isnull[att_ended] = false;
				slot->tts_values[att_reason] = CStringGetTextDatum(reason);
				slot->tts_isnull[att_reason] = false;
				lease_table_write(rel, slot);
			}
			ExecDropSingleTupleTableSlot(slot);
		}
	} while (again);
	table_close(rel, NoLock);
}

static void
history_begin(Oid relid, const LeaseRow *row)
{
	Oid			types[5] = {TEXTOID, INT8OID, TEXTOID, TEXTOID, TIMESTAMPTZOID};
	Datum		values[5];

	values[0] = lease_name_datum(row->role);
	values[1] = Int64GetDatum(row->token);
	values[2] = lease_name_datum(row->holder);
	values[3] = CStringGetTextDatum(GetUserNameFromId(GetUserId(), false));
	values[4] = TimestampTzGetDatum(row->acquired_at);
	lease_spi_as_owner(relid,
					   "INSERT INTO %s.leader_lease_history"
					   " (role, fencing_token, holder_id, db_user, application_name, client_addr, pid, acquired_at)"
					   " VALUES ($1, $2, $3, $4, current_setting('application_name'), inet_client_addr(), pg_backend_pid(), $5)",
					   5, types, values, NULL);
}

/*
 * A few old rows go with each grant, so that the history stays bounded without
 * anybody's care.  What another deletes just now is left to him.  Not where a
 * concurrent deletion would be a serialization failure.
 */
static void
history_prune_some(Oid relid)
{
	Oid			types[1] = {INT4OID};
	Datum		values[1];

	if (lease_history_retention < 0 || IsolationUsesXactSnapshot())
		return;
	values[0] = Int32GetDatum(lease_history_retention);
	lease_spi_as_owner(relid,
					   "DELETE FROM %1$s.leader_lease_history WHERE ctid = ANY (ARRAY("
					   "SELECT ctid FROM %1$s.leader_lease_history"
					   " WHERE ended_at < now() - make_interval(mins => $1)"
					   " ORDER BY ended_at LIMIT " PRUNE_WITH_GRANT
					   " FOR UPDATE SKIP LOCKED))",
					   1, types, values, NULL);
}

/*
 * Tells of a change from old (NULL: no row before) to new.  event is how the
 * new state came about: acquired, released, transferred or revoked.
 */
void
lease_event(Oid relid, const LeaseRow *old, const LeaseRow *new,
			const char *event, const LeaseMoment *now)
{
	bool		began = lease_term_open(new) &&
		(old == NULL || new->token != old->token);
	bool		ended = old != NULL && lease_term_open(old) && old->ttl != 0 &&
		(new->token != old->token || !lease_term_open(new));

	if (lease_history_retention != 0)
	{
		SPI_connect();
		if (ended)
		{
			const char *state = lease_term_state(relid, old, now);

			/* what ran out has ended then, whoever comes now */
			if (strcmp(state, "expired") == 0)
				history_end(relid, old, state, lease_clock_ended_at(old, now));
			else if (strcmp(state, "held") != 0)
				history_end(relid, old, state, now->wall);
			/* a statement by hand may acquire what another holds */
			else if (strcmp(event, "acquired") == 0)
				history_end(relid, old, "revoked", now->wall);
			else
				history_end(relid, old, event, now->wall);
		}
		if (began)
		{
			history_begin(relid, new);
			history_prune_some(relid);
		}
		SPI_finish();
	}

	/* a revocation is about the term that ends, and a successor's another */
	if (strcmp(event, "revoked") != 0)
		notify(new, event);
	else
	{
		notify(old, event);
		if (began)
			notify(new, "acquired");
	}
}
