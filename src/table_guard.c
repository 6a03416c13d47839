/*-------------------------------------------------------------------------
 *
 * table_guard.c
 *	  The trigger that keeps statements written by hand safe on the lease
 *	  table, and safe against the functions.
 *
 * An upsert made for a table of the applications' own,
 *
 *		INSERT INTO leader_lease (role, holder_id, fencing_token, expires_at)
 *		... ON CONFLICT (role) DO UPDATE ... WHERE expired or own
 *		RETURNING fencing_token
 *
 * decides in its own words who leads; this trigger sees to it that what it
 * decides obeys the rules of tokens and fences.  The functions write through
 * the table access method and do not come here, but for making a row.
 *
 * A statement holds the row when the trigger fires, and then wants the lease's
 * lock; the functions take them the other way round, but never wait for the
 * row.  So here the lock is asked for without waiting.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "leader_lease.h"

PG_FUNCTION_INFO_V1(lease_table_guard);

/* how long a transaction that has ended may take to give back its locks */
#define SETTLE_US	INT64CONST(100000)

static void
refuse(const LeaseRow *row, const char *what, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_CHECK_VIOLATION),
			 errmsg("lease \"%.*s\": %s", NAME_ARGS(row->role), what),
			 hint ? errhint("%s", hint) : 0));
}

/*
 * The ttl that a statement gives by setting expires_at.
 */
static int64
ttl_by_hand(const LeaseRow *row, const LeaseMoment *now)
{
	int64		ttl;

	if (TIMESTAMP_NOT_FINITE(row->expires_at))
		refuse(row, "expires_at must be finite", NULL);
	ttl = row->expires_at - now->wall;
	lease_ttl_check(ttl);
	return ttl;
}

/*
 * Time set by hand: only the wall clock knows it.
 */
static void
run_until_by_hand(LeaseRow *row, const LeaseMoment *now)
{
	row->ttl = ttl_by_hand(row, now);
	row->renewed_at = now->wall;
	row->deadline = 0;
}

/*
 * Before INSERT.  It takes no lock: nobody can hold a fence of a lease that is
 * not there, and a restore would fill the lock table.
 *
 * The row may turn out to be in conflict with one that exists.  Then it draws
 * no number, since losing upserts would use them up; and nothing else in it is
 * touched, since ON CONFLICT shows it as EXCLUDED.
 */
static HeapTuple
before_insert(Relation rel, HeapTuple tuple)
{
	Oid			relid = RelationGetRelid(rel);
	LeaseRow	row;
	HeapTuple	conflicting;
	LeaseMoment now;
	int64		origin = lease_origin(relid);
	bool		dumped;

	lease_row_require_not_null(rel, tuple);
	lease_row_decode_tuple(rel, tuple, &row);
	lease_check_name(row.role, "lease name");
	if (row.holder.data != NULL)
		lease_check_name(row.holder, "holder");
	if (row.owner.len >= NAMEDATALEN)
		refuse(&row, "owner is not the name of a role", NULL);
	if (row.token < 0)
		refuse(&row, "fencing_token must not be negative", NULL);

	conflicting = lease_table_conflicting(rel, tuple, &row);
	if (conflicting != NULL)
		return conflicting;

	/* no statement for a hand-made table names the number; a dump does */
	dumped = row.number != 0 && lease_access_restores(relid);
	if (row.usual_ttl != 0 && !dumped)
		lease_ttl_check(row.usual_ttl);
	if (row.owner.data == NULL)
		row.owner = lease_access_default_owner();
	else
		lease_access_require_grantable(relid, row.owner);
	/* the functions make a row as its owner would, after asking themselves */
	if (!lease_auto_create && !dumped && !InNoForceRLSOperation())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("lease \"%.*s\" does not exist", NAME_ARGS(row.role)),
				 errhint("leader_lease.auto_create is off: make it with lease_create.")));
	if (!dumped)
		row.number = lease_number_draw(rel);

	/* a term of this very origin is not taken on trust */
	if (!dumped || row.origin == origin)
	{
		lease_clock_read(&now);
		row.origin = 0;
		row.granted_xid = InvalidFullTransactionId;
		row.deadline = 0;
		row.session = 0;
		if (row.holder.data != NULL && row.ended.data == NULL &&
			row.expires_at > now.wall)
		{
			int64		next = lease_next_token(relid, &row);

			/* token 0, or one below the range of this origin, is lifted */
			if (row.token == 0 || next > row.token + 1)
				row.token = next;
			run_until_by_hand(&row, &now);
			row.acquired_at = now.wall;
			lease_term_begin(relid, &row, row.holder, row.token);
		}
	}
	lease_xact_changed();
	return lease_row_encode(rel, tuple, &row);
}

/*
 * A takeover by hand: the token rises, or a term that is over gets a time to
 * come.  NULL, which skips the row so that the statement reads as lost, when
 * only another takeover is under way.
 */
static bool
take_over_by_hand(Oid relid, const LeaseRow *old, LeaseRow *new,
				  const LeaseMoment *now)
{
	int64		next;

	if (!lease_lock(relid, old->number, ExclusiveLock, 0))
	{
		LeaseLockHolder *holders;
		int			takeovers = lease_lock_holders(relid, old->number,
												   ShareLock, &holders);
		int			count = lease_lock_holders(relid, old->number,
											   ExclusiveLock, &holders);

		if (takeovers > 0)
			return false;
		if (count > 0)
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("fences hold back the takeover of lease \"%.*s\"",
							NAME_ARGS(old->role)),
					 errdetail("Held by %s.",
							   lease_holders_text(relid, holders, count)),
					 errhint("Retry when their transactions have ended.")));

		/*
		 * No running transaction has it.  Either it is our own fence that
		 * another waits for; or a transaction that has just ended woke us by
		 * the row, and is about to give back the lease too.
		 */
		if (lease_lock_held(relid, old->number, ShareLock) ||
			!lease_lock(relid, old->number, ExclusiveLock, SETTLE_US))
			return false;
	}

	next = lease_next_token(relid, old);
	if (new->token == old->token || next > old->token + 1)
		new->token = Max(new->token, next);
	lease_term_begin(relid, new, new->holder, new->token);
	new->acquired_at = now->wall;
	if (new->expires_at > now->wall)
	{
		if (new->holder.data == NULL)
			refuse(old, "a term needs a holder_id", NULL);
		run_until_by_hand(new, now);
	}
	else
	{
		new->renewed_at = now->wall;
		lease_term_end(new, "revoked", now);
	}
	return true;
}

/*
 * Before UPDATE.  The row is locked and is the newest one.
 */
static HeapTuple
before_update(Relation rel, HeapTuple old_tuple, HeapTuple new_tuple)
{
	Oid			relid = RelationGetRelid(rel);
	LeaseRow	old;
	LeaseRow	given;
	LeaseRow	new;
	LeaseMoment now;
	bool		over;

	lease_row_require_not_null(rel, new_tuple);
	lease_row_decode_tuple(rel, old_tuple, &old);
	lease_row_decode_tuple(rel, new_tuple, &given);
	lease_access_require(&old);

	/* what a statement may change; the rest is ours */
	new = old;
	new.holder = given.holder;
	new.token = given.token;
	new.expires_at = given.expires_at;
	new.owner = given.owner;
	new.usual_ttl = given.usual_ttl;

	if (!lease_name_equal(given.role, old.role) || given.number != old.number)
		refuse(&old, "role and number never change", NULL);
	if (new.holder.data != NULL)
		lease_check_name(new.holder, "holder");
	if (new.owner.len >= NAMEDATALEN)
		refuse(&old, "owner is not the name of a role", NULL);
	if (new.owner.data != NULL && !lease_name_equal(new.owner, old.owner))
		lease_access_require_grantable(relid, new.owner);
	if (new.usual_ttl != old.usual_ttl && new.usual_ttl != 0)
		lease_ttl_check(new.usual_ttl);
	if (new.token < old.token)
		refuse(&old, "a fencing token never falls", NULL);
	if (new.token == old.token &&
		(new.holder.data == NULL) != (old.holder.data == NULL))
		refuse(&old, "another holder needs another token", "Set fencing_token = fencing_token + 1.");
	if (new.token == old.token && new.holder.data != NULL &&
		!lease_name_equal(new.holder, old.holder))
		refuse(&old, "another holder needs another token", "Set fencing_token = fencing_token + 1.");

	lease_clock_read(&now);
	over = !lease_term_live(relid, &old, &now) || old.origin != lease_origin(relid);
	if (new.token > old.token ||
		(over && new.expires_at != old.expires_at &&
		 new.expires_at > now.wall))
	{
		if (!take_over_by_hand(relid, &old, &new, &now))
			return NULL;
		fence_end_term(relid, old.number);
	}
	else if (new.expires_at > now.wall)
	{
		if (new.expires_at != old.expires_at)
			run_until_by_hand(&new, &now);
	}
	else if (lease_term_live(relid, &old, &now))
	{
		/* also a term of another origin, which keeps others out */
		lease_term_end(&new, "released", &now);
		fence_end_term(relid, old.number);
	}
	lease_xact_changed();
	return lease_row_encode(rel, new_tuple, &new);
}

/*
 * After INSERT or UPDATE, when the row stands: tells of a term that began or
 * ended, as the functions do.  A row that a dump brought began elsewhere.
 */
static void
after_change(Relation rel, HeapTuple old_tuple, HeapTuple new_tuple)
{
	LeaseRow	old;
	LeaseRow	new;
	LeaseMoment now;

	lease_row_decode_tuple(rel, new_tuple, &new);
	lease_clock_read(&now);
	if (old_tuple == NULL)
	{
		/* elsewhere there was a transaction of any number */
		if (new.origin == lease_origin(RelationGetRelid(rel)) &&
			FullTransactionIdIsValid(new.granted_xid) &&
			FullTransactionIdEquals(new.granted_xid,
									GetTopFullTransactionIdIfAny()))
			lease_event(RelationGetRelid(rel), NULL, &new, "acquired", &now);
		return;
	}
	lease_row_decode_tuple(rel, old_tuple, &old);
	if (new.token != old.token)
		lease_event(RelationGetRelid(rel), &old, &new,
					lease_term_open(&new) ? "acquired" : "revoked", &now);
	else if (lease_term_open(&old) && !lease_term_open(&new))
		lease_event(RelationGetRelid(rel), &old, &new, "released", &now);
}

/*
 * lease_table_guard(), the trigger on leader_lease.
 */
Datum
lease_table_guard(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg_internal("function \"lease_table_guard\" was not called by trigger manager")));

	if (TRIGGER_FIRED_AFTER(trigdata->tg_event))
	{
		bool		updated = TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event);

		after_change(trigdata->tg_relation,
					 updated ? trigdata->tg_trigtuple : NULL,
					 updated ? trigdata->tg_newtuple : trigdata->tg_trigtuple);
		PG_RETURN_POINTER(NULL);
	}
	if (TRIGGER_FIRED_BY_INSERT(trigdata->tg_event))
		PG_RETURN_POINTER(before_insert(trigdata->tg_relation,
										trigdata->tg_trigtuple));
	if (TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event))
		PG_RETURN_POINTER(before_update(trigdata->tg_relation,
										trigdata->tg_trigtuple,
										trigdata->tg_newtuple));
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("a lease cannot be deleted"),
			 errdetail("Its row is the history of its fencing tokens."),
			 errhint("Release it, or use another name.")));
	PG_RETURN_NULL();
}
