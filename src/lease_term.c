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
 * A term that is tied to a session ends with it.
 */
static bool
session_ended(Oid relid, const LeaseRow *row)
{
	return row->session != 0 &&
		!lease_session_lives(relid, (uint32) row->session);
}

/*
 * Is there a term that nothing has ended but time?
 */
bool
lease_term_open(const LeaseRow *row)
{
	return row->holder.data != NULL && row->ended.data == NULL;
}

/*
 * Does the row's holder keep others out?  Also across a failover: the holder
 * of before cannot know of it yet, so others wait for his time to pass.
 */
bool
lease_term_live(Oid relid, const LeaseRow *row, const LeaseMoment *now)
{
	return lease_term_open(row) && lease_clock_remaining(row, now) > 0 &&
		!session_ended(relid, row);
}

/*
 * Is (holder, token) the current term?  Everything that acts for a term asks
 * this: renewal, release, fence.  A NULL row is an unknown lease; a holder
 * without data is not compared (proof by the token alone).
 */
LeaseVerdict
lease_term_judge(Oid relid, const LeaseRow *row, LeaseName holder, int64 token,
				 const LeaseMoment *now)
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
	if (row->origin != lease_origin(relid))
		return TERM_BEFORE_FAILOVER;
	if (lease_clock_remaining(row, now) <= 0)
		return TERM_EXPIRED;
	if (session_ended(relid, row))
		return TERM_SESSION_ENDED;
	return TERM_CURRENT;
}

/*
 * The ttl of a new term, or of a live one that is prolonged or handed over:
 * the one asked for, else the live term's own, else the lease's, else the
 * setting's.  A live term's own is cut to a max_ttl that has been lowered since:
 * one such lease must not make the renewal of many fail.
 */
int64
lease_term_choose_ttl(const LeaseRow *row, int64 asked, bool live)
{
	int64		ttl = asked;

	if (ttl == 0 && live)
		ttl = Min(row->ttl, lease_max_ttl * USECS_PER_SEC);
	if (ttl == 0)
		ttl = row->usual_ttl;
	if (ttl == 0)
		ttl = lease_default_ttl * INT64CONST(1000);
	lease_ttl_check(ttl);
	return ttl;
}

/*
 * Makes the row a new term's, but for its time (lease_clock_extend).  The
 * transaction and command that grant it are kept, so that a fence can tell
 * whether a snapshot has seen the term begin.
 */
void
lease_term_begin(Oid relid, LeaseRow *row, LeaseName holder, int64 token)
{
	row->holder = holder;
	row->token = token;
	row->origin = lease_origin(relid);
	row->granted_xid = GetTopFullTransactionId();
	row->granted_cid = GetCurrentCommandId(true);
	row->ended.data = NULL;
	row->session = 0;
	fence_note_term();
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
	row->session = 0;
}

/*
 * The state in a word, for people and for the history.
 */
const char *
lease_term_state(Oid relid, const LeaseRow *row, const LeaseMoment *now)
{
	LeaseName	revoked = {"revoked", strlen("revoked")};

	if (row->ended.data != NULL)
		return lease_name_equal(row->ended, revoked) ? "revoked" : "released";
	if (row->holder.data == NULL)
		return "free";
	if (lease_clock_remaining(row, now) <= 0)
		return "expired";
	if (row->origin != lease_origin(relid))
		return "failed_over";
	return session_ended(relid, row) ? "session_ended" : "held";
}
