/*-------------------------------------------------------------------------
 *
 * lease_term.c
 *	  What counts as a live and as the current term, and how one begins and
 *	  ends.  Policy stands here alone; it reads and sets fields of a row.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/timestamp.h"

#include "leader_lease.h"

/*
 * Does the row's holder keep others out?  Also across a failover: the holder
 * of before cannot know of it yet, so others wait for his time to pass.
 */
bool
lease_term_live(const LeaseRow *row, const LeaseMoment *now)
{
	return row->holder.data != NULL && row->ended.data == NULL &&
		lease_clock_remaining(row, now) > 0;
}

/*
 * Is (holder, token) the current term?  Everything that acts for a term asks
 * this: renewal, release, fence.  A NULL row is an unknown lease; a holder
 * without data is not compared (proof by the token alone).
 */
LeaseVerdict
lease_term_judge(const LeaseRow *row, LeaseName holder, int64 token,
				 int64 origin, const LeaseMoment *now)
{
	if (row == NULL)
		return TERM_NO_LEASE;
	if (token <= 0 || token != row->token)
		return TERM_OTHER_TOKEN;
	if (row->holder.data == NULL ||
		(holder.data != NULL && !lease_name_equal(holder, row->holder)))
		return TERM_OTHER_HOLDER;
	if (row->ended.data != NULL)
		return TERM_ENDED;
	if (row->origin != origin)
		return TERM_BEFORE_FAILOVER;
	if (lease_clock_remaining(row, now) <= 0)
		return TERM_EXPIRED;
	return TERM_CURRENT;
}

/*
 * Makes the row a new term's, but for its time (lease_clock_extend).  The
 * transaction and command that grant it are kept, so that a fence can tell
 * whether a snapshot has seen the term begin.
 */
void
lease_term_begin(LeaseRow *row, LeaseName holder, int64 token, int64 origin)
{
	row->holder = holder;
	row->token = token;
	row->origin = origin;
	row->granted_xid = GetTopFullTransactionId();
	row->granted_cid = GetCurrentCommandId(true);
	row->ended.data = NULL;
	row->session = 0;
}

/*
 * Ends the row's term now.  The mark stays whatever the clocks do later.
 */
void
lease_term_end(LeaseRow *row, const char *how, const LeaseMoment *now)
{
	row->ended.data = how;
	row->ended.len = strlen(how);
	row->expires_at = Min(row->expires_at, now->wall);
	row->deadline = 0;
}

/*
 * The state in a word, for people.
 */
const char *
lease_term_state(const LeaseRow *row, int64 origin, const LeaseMoment *now)
{
	if (row->holder.data == NULL && row->ended.data == NULL)
		return "free";
	if (row->ended.data != NULL)
		return row->ended.len == strlen("revoked") &&
			memcmp(row->ended.data, "revoked", row->ended.len) == 0 ?
			"revoked" : "released";
	if (lease_clock_remaining(row, now) <= 0)
		return "expired";
	return row->origin == origin ? "held" : "failed_over";
}
