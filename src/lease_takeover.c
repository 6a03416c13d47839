/*-------------------------------------------------------------------------
 *
 * lease_takeover.c
 *	  What every takeover does: a grant after a term is over, a transfer, a
 *	  revocation.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "leader_lease.h"

/*
 * Is the takeover still called for, by the row as it is?
 */
bool
lease_takeover_called_for(const Takeover *takeover, const LeaseRow *row,
						  const LeaseMoment *now)
{
	switch (takeover->kind)
	{
		case TAKEOVER_ACQUIRE:
			/* our own live term of before a failover is over for us */
			return !lease_term_live(takeover->relid, row, now) ||
				(lease_name_equal(row->holder, takeover->holder) &&
				 row->origin != lease_origin(takeover->relid));
		case TAKEOVER_TRANSFER:
			return lease_term_judge(takeover->relid, row, takeover->giver,
									takeover->giver_token,
									now) == TERM_CURRENT;
		case TAKEOVER_REVOKE:
			return true;
	}
	return false;
}

/*
 * Writes the row: the next token is the new holder's, or is burnt.
 */
static void
write_term(LeaseTable *table, Takeover *takeover, int64 token,
		   const LeaseMoment *now)
{
	LeaseRow	old = table->row;
	LeaseRow   *row = &table->row;
	bool		live = lease_term_live(takeover->relid, &old, now);
	const char *event = takeover->kind == TAKEOVER_TRANSFER ? "transferred" :
		takeover->kind == TAKEOVER_REVOKE ? "revoked" : "acquired";

	if (takeover->holder.data != NULL)
	{
		takeover->granted = lease_term_choose_ttl(row, takeover->ttl,
												  live && takeover->kind != TAKEOVER_ACQUIRE);
		lease_term_begin(takeover->relid, row, takeover->holder, token);
		lease_clock_extend(row, now, takeover->granted);
		row->acquired_at = now->wall;
	}
	else
	{
		lease_term_begin(takeover->relid, row, row->holder, token);
		lease_term_end(row, "revoked", now);
	}
	lease_table_update(table, row);
	fence_end_term(takeover->relid, row->number);
	lease_event(takeover->relid, &old, row, event, now);
	takeover->token = token;
	if (takeover->kind == TAKEOVER_REVOKE)
		ereport(LOG,
				(errmsg("\"%s\" revokes lease \"%.*s\", token %lld",
						GetUserNameFromId(GetUserId(), false),
						NAME_ARGS(old.role), (long long) old.token),
				 old.holder.data == NULL ?
				 errdetail("Nobody had held it.  Token %lld is the successor's or burnt.",
						   (long long) token) :
				 errdetail("Its holder was \"%.*s\".  Token %lld is the successor's or burnt.",
						   NAME_ARGS(old.holder), (long long) token)));
}

/*
 * The second half, with ExclusiveLock held: no fence is open, and no other
 * takeover under way.  Looks again, and goes on if the takeover is still
 * called for.  It must not wait for anything here: the leader may be at the
 * row and want the lock in one transaction, and would be the deadlock's
 * victim.  Who waits for the row does so after he has given the lock back.
 */
static LeaseStep
take_over_locked(LeaseTable *table, Takeover *takeover, uint32 number)
{
	LeaseMoment now;
	int64		token;

	if (!lease_table_find(table, takeover->role) ||
		table->row.number != number)
		return STEP_AGAIN;
	lease_access_require(&table->row);
	lease_clock_read(&now);
	if (!lease_takeover_called_for(takeover, &table->row, &now))
		return STEP_AGAIN;

	lease_table_require_unchanged(table);
	switch (lease_table_lock_row(table))
	{
		case LEASE_ROW_BUSY:
			return STEP_BUSY;
		case LEASE_ROW_CHANGED:
			return STEP_AGAIN;
		case LEASE_ROW_LOCKED:
			break;
	}

	/* the row cannot change any more; the time is read last */
	token = Max(lease_next_token(takeover->relid, &table->row),
				takeover->min_token);
	lease_clock_read(&now);
	if (!lease_takeover_called_for(takeover, &table->row, &now))
		return STEP_AGAIN;
	write_term(table, takeover, token, &now);
	return STEP_DONE;
}

/*
 * ExclusiveLock within limit, by eviction where that is wanted: at once by
 * force; else, with evict_after set, behind fences of a term that has been
 * over for that long, after the wait that this attempt may take.
 */
static bool
lock_lease(LeaseTable *table, Takeover *takeover, int64 limit)
{
	Oid			relid = takeover->relid;
	uint32		number = table->row.number;
	int64		patience = limit;

	if (takeover->force)
	{
		/* who is terminated needs a moment to go */
		patience = 0;
		if (limit >= 0)
			limit = Max(limit, USECS_PER_SEC);
	}
	else if (lease_lock_held(relid, number, ShareLock))
	{
		/* two transactions of one holder would wait for each other's fence */
		limit = patience = 0;
	}
	else if (lease_evict_after >= 0 && takeover->kind == TAKEOVER_ACQUIRE &&
			 (limit < 0 || limit > lease_evict_after * INT64CONST(1000)))
		patience = lease_evict_after * INT64CONST(1000);

	if (lease_evict_after >= 0 && takeover->kind == TAKEOVER_ACQUIRE)
		lease_evict_watch(relid, &table->row);
	if (lease_lock(relid, number, ExclusiveLock, patience))
		return true;
	if (takeover->force ||
		(lease_evict_after >= 0 && takeover->kind == TAKEOVER_ACQUIRE))
		lease_evict(table, takeover->role, takeover->force);
	else if (patience == limit)
		return false;
	return lease_lock(relid, number, ExclusiveLock,
					  limit < 0 ? limit : limit - patience);
}

/*
 * Takes over the lease whose row was just found.  Waits for open fences, and
 * for another's uncommitted grant, at most limit microseconds; the lock stays
 * only with success.
 *
 * STEP_DONE with a token is success; without one, takeover->blockers are in
 * the way.  Otherwise the row has to be found anew.
 */
LeaseStep
lease_take_over(LeaseTable *table, Takeover *takeover, int64 limit)
{
	uint32		number = table->row.number;
	LeaseStep	step;

	lease_table_for_update(table);
	lease_table_unpin(table);
	if (!lock_lease(table, takeover, limit))
	{
		takeover->nblockers = lease_lock_holders(takeover->relid, number,
												 ExclusiveLock,
												 &takeover->blockers);
		return STEP_DONE;
	}

	takeover->nblockers = 0;
	step = take_over_locked(table, takeover, number);
	if (takeover->token == 0)
		lease_unlock(takeover->relid, number, ExclusiveLock);
	return step;
}
