/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  The functions that begin, prolong and end a holder's term.
 *
 * Everything that decides does so in one order: lock, then look, then read
 * the clock, then decide.  What was seen before a lock may be history; what
 * the clock said before a wait is over.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "leader_lease.h"

PG_FUNCTION_INFO_V1(lease_acquire);
PG_FUNCTION_INFO_V1(lease_attempt);
PG_FUNCTION_INFO_V1(lease_renew);
PG_FUNCTION_INFO_V1(lease_release);

/* what somebody asks for */
typedef struct LeaseRequest
{
	Oid			relid;
	LeaseName	role;
	LeaseName	holder;
	int64		ttl;			/* microseconds; 0: not said */
} LeaseRequest;

/* what became of an attempt */
typedef struct LeaseOutcome
{
	int64		token;			/* 0: none */
	bool		renewed;
	int64		ttl;
	LeaseName	leader;			/* who leads, when known */
	int64		retry_after;
	int			nblockers;
	int		   *blockers;
} LeaseOutcome;

/* one step of an attempt */
typedef enum LeaseStep
{
	STEP_DONE,					/* the outcome is set */
	STEP_AGAIN,					/* something moved: look again, at once */
	STEP_BUSY					/* somebody is at the row: wait for him first */
} LeaseStep;

static LeaseName
keep_name(LeaseName name)
{
	LeaseName	copy = {pnstrdup(name.data, name.len), name.len};

	return copy;
}

/*
 * The ttl of a new term, or of a live one that is prolonged: the one asked
 * for, else the live term's own, else the lease's, else the setting's.
 */
static int64
choose_ttl(const LeaseRow *row, int64 asked, bool live)
{
	int64		ttl = asked;

	if (ttl == 0 && live)
		ttl = row->ttl;
	if (ttl == 0)
		ttl = row->usual_ttl;
	if (ttl == 0)
		ttl = lease_default_ttl * INT64CONST(1000);
	lease_ttl_check(ttl);
	return ttl;
}

/* prolonging ------------------------------------------------------------- */

/*
 * Prolongs the term in table->row, which was found to be the current one of
 * (holder, token).  It locks and writes the row, and takes no lock on the
 * lease, so that the leader's open fences never block its heartbeat.  Waits
 * for whoever is at the row, without a limit but the user's lock_timeout.
 *
 * STEP_DONE: prolonged, *ttl is what was granted.  STEP_AGAIN: look again.
 */
static LeaseStep
prolong(LeaseTable *table, Oid relid, LeaseName holder, int64 token,
		int64 *ttl)
{
	LeaseMoment now;

	lease_table_for_update(table);
	lease_table_require_unchanged(table);
	switch (lease_table_lock_row(table))
	{
		case LEASE_ROW_BUSY:
			(void) lease_table_await_row(table, -1);
			return STEP_AGAIN;
		case LEASE_ROW_CHANGED:
			return STEP_AGAIN;
		case LEASE_ROW_LOCKED:
			break;
	}

	lease_clock_read(&now);
	if (lease_term_judge(&table->row, holder, token, lease_origin(relid),
						 &now) != TERM_CURRENT)
		return STEP_AGAIN;
	*ttl = choose_ttl(&table->row, *ttl, true);
	lease_clock_extend(&table->row, &now, *ttl);
	lease_table_update(table, &table->row);
	return STEP_DONE;
}

/* acquiring -------------------------------------------------------------- */

static void
lost_to_holder(LeaseOutcome *outcome, const LeaseRow *row,
			   const LeaseMoment *now)
{
	outcome->leader = keep_name(row->holder);
	outcome->retry_after = lease_clock_remaining(row, now);
}

/*
 * The second half of a takeover, with ExclusiveLock held: no fence is open,
 * and no other takeover under way.  Looks again, and begins the new term if
 * the old one is still over.  It must not wait for anything here: the leader
 * may be at the row and want the lock in one transaction, and would be the
 * deadlock's victim.  Who waits for the row does so after he has given the
 * lock back.
 */
static LeaseStep
begin_term(LeaseTable *table, const LeaseRequest *request, uint32 number,
		   LeaseOutcome *outcome)
{
	LeaseMoment now;
	int64		origin;
	int64		token;
	bool		live;

	if (!lease_table_find(table, request->role) ||
		table->row.number != number)
		return STEP_AGAIN;
	lease_access_require(&table->row);
	lease_clock_read(&now);
	origin = lease_origin(request->relid);
	live = lease_term_live(&table->row, &now);
	if (live && !lease_name_equal(table->row.holder, request->holder))
	{
		lost_to_holder(outcome, &table->row, &now);
		return STEP_DONE;
	}
	if (live && table->row.origin == origin)
		return STEP_AGAIN;		/* ours, and meanwhile renewed */

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
	token = lease_next_token(request->relid, &table->row);
	lease_clock_read(&now);
	live = lease_term_live(&table->row, &now);
	if (live && !lease_name_equal(table->row.holder, request->holder))
	{
		lost_to_holder(outcome, &table->row, &now);
		return STEP_DONE;
	}

	outcome->ttl = choose_ttl(&table->row, request->ttl, false);
	lease_term_begin(&table->row, request->holder, token, origin);
	lease_clock_extend(&table->row, &now, outcome->ttl);
	table->row.acquired_at = now.wall;
	lease_table_update(table, &table->row);
	fence_end_term(request->relid, number);
	outcome->token = token;
	outcome->leader = request->holder;
	return STEP_DONE;
}

/*
 * Takes over a lease whose term is over.  Waits for open fences, and for
 * another's uncommitted grant, at most limit microseconds; the lock stays only
 * with a new term.
 *
 * A transaction that itself holds a fence does not wait: two of one holder
 * would wait for each other.
 */
static LeaseStep
take_over(LeaseTable *table, const LeaseRequest *request, int64 limit,
		  LeaseOutcome *outcome)
{
	uint32		number = table->row.number;
	LeaseStep	step;

	lease_table_for_update(table);
	if (lease_lock_held(request->relid, number, ShareLock))
		limit = 0;
	if (!lease_lock(request->relid, number, ExclusiveLock, limit))
	{
		outcome->nblockers = lease_lock_pids(request->relid, number,
											 ExclusiveLock,
											 &outcome->blockers);
		return STEP_DONE;
	}

	step = begin_term(table, request, number, outcome);
	if (outcome->token == 0)
		lease_unlock(request->relid, number, ExclusiveLock);
	return step;
}

/*
 * One look at the lease and what follows from it.  An attempt that loses to a
 * live holder reads one row: no transaction id, no lock, nothing written.
 */
static LeaseStep
attempt_once(LeaseTable *table, const LeaseRequest *request, int64 limit,
			 LeaseOutcome *outcome)
{
	LeaseMoment now;

	if (!lease_table_find(table, request->role))
	{
		LeaseGuarded created;

		if (!lease_auto_create)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("lease \"%.*s\" does not exist",
							NAME_ARGS(request->role)),
					 errhint("leader_lease.auto_create is off: make it with lease_create.")));
		created = lease_create_row(request->relid, request->role,
							   lease_access_default_owner(), 0, limit);
		if (created == GUARDED_TIMEOUT)
			return STEP_DONE;
		if (!lease_table_find(table, request->role))
			lease_refuse_unmade(request->role);
		return STEP_AGAIN;
	}
	lease_access_require(&table->row);

	lease_clock_read(&now);
	if (!lease_term_live(&table->row, &now))
		return take_over(table, request, limit, outcome);
	if (!lease_name_equal(table->row.holder, request->holder))
	{
		lost_to_holder(outcome, &table->row, &now);
		return STEP_DONE;
	}
	if (table->row.origin != lease_origin(request->relid))
		return take_over(table, request, limit, outcome);

	outcome->ttl = request->ttl;
	if (prolong(table, request->relid, request->holder, table->row.token,
				&outcome->ttl) == STEP_AGAIN)
		return STEP_AGAIN;
	outcome->token = table->row.token;
	outcome->renewed = true;
	outcome->leader = request->holder;
	return STEP_DONE;
}

/*
 * Acquires or renews, or finds out why not, within takeover_timeout.  An error
 * changes nothing: it takes the (sub)transaction with it.
 */
static void
attempt(const LeaseRequest *request, LeaseOutcome *outcome)
{
	LeaseTable	table;
	LeaseMoment now;
	int64		limit = lease_takeover_limit();
	int64		give_up = 0;

	memset(outcome, 0, sizeof(*outcome));
	if (limit > 0)
	{
		lease_clock_read(&now);
		give_up = now.boottime + limit;
	}

	lease_table_open(&table, request->relid);
	for (;;)
	{
		LeaseStep	step = attempt_once(&table, request, limit, outcome);

		if (step == STEP_DONE)
			break;
		if (limit > 0)
		{
			lease_clock_read(&now);
			limit = Max(give_up - now.boottime, 0);
		}
		if (step == STEP_BUSY &&
			(limit == 0 || !lease_table_await_row(&table, limit)))
			break;
		CHECK_FOR_INTERRUPTS();
	}
	lease_table_close(&table);
}

static void
request_from_arguments(FunctionCallInfo fcinfo, const char *command,
					   LeaseRequest *request)
{
	request->role = lease_arg_name(fcinfo, 0, "lease name");
	request->holder = lease_arg_name(fcinfo, 1, "holder");
	request->ttl = lease_arg_ttl(fcinfo, 2);
	lease_require_writable(command);
	request->relid = lease_table_oid(fcinfo);
}

/*
 * lease_acquire(role text, holder text, ttl interval DEFAULT NULL) -> bigint
 *
 * The fencing token, or NULL when another holder is live or fences hold the
 * takeover back for takeover_timeout.  Absent or over: a new term, whose ttl
 * counts from after the last wait.  Own and live: renewal, same token.
 *
 * Locks: none for a loser, the row for a renewal, the row and ExclusiveLock on
 * the lease, until the transaction ends, for a new term.  Errors: 22004 NULL,
 * 22023 names and ttl, 22003 tokens used up, 25006 read-only or standby, 42501
 * not the caller's lease, 40001 in REPEATABLE READ and SERIALIZABLE when the
 * lease changed since the snapshot.
 *
 * The lease is Gray and Cheriton's ("Leases", SOSP 1989); the token that
 * fences is as Kleppmann describes it ("How to do distributed locking", 2016).
 */
Datum
lease_acquire(PG_FUNCTION_ARGS)
{
	LeaseRequest request;
	LeaseOutcome outcome;

	request_from_arguments(fcinfo, "lease_acquire()", &request);
	attempt(&request, &outcome);
	if (outcome.token == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(outcome.token);
}

/*
 * lease_attempt(role text, holder text, ttl interval DEFAULT NULL) -> record
 *
 * The same act, told in full: token (NULL: lost), renewed, the ttl granted,
 * holder_id of who leads, retry_after until a live term runs out (zero: nobody
 * is live, try again at once), blocked_by the pids whose fences hold the
 * takeover back (0: a prepared transaction).
 */
Datum
lease_attempt(PG_FUNCTION_ARGS)
{
	LeaseRequest request;
	LeaseOutcome outcome;
	TupleDesc	desc;
	Datum		values[6];
	bool		nulls[6] = {false};
	bool		won;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	request_from_arguments(fcinfo, "lease_attempt()", &request);
	attempt(&request, &outcome);

	won = outcome.token != 0;
	values[0] = Int64GetDatum(outcome.token);
	nulls[0] = !won;
	values[1] = BoolGetDatum(outcome.renewed);
	values[2] = IntervalPGetDatum(lease_interval(outcome.ttl));
	nulls[2] = !won;
	nulls[3] = outcome.leader.data == NULL;
	if (!nulls[3])
		values[3] = PointerGetDatum(cstring_to_text_with_len(outcome.leader.data,
															 outcome.leader.len));
	values[4] = IntervalPGetDatum(lease_interval(outcome.retry_after));
	nulls[4] = won;
	nulls[5] = outcome.nblockers == 0;
	if (!nulls[5])
	{
		Datum	   *pids = palloc(sizeof(Datum) * outcome.nblockers);

		for (int i = 0; i < outcome.nblockers; i++)
			pids[i] = Int32GetDatum(outcome.blockers[i]);
		values[5] = PointerGetDatum(construct_array(pids, outcome.nblockers,
													INT4OID, sizeof(int32),
													true, TYPALIGN_INT));
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}

/* renewing and releasing ------------------------------------------------- */

/*
 * Finds the row of a term somebody acts for: true when it is the current one.
 * Nothing is locked.
 */
static bool
find_current(LeaseTable *table, Oid relid, LeaseName role, LeaseName holder,
			 int64 token)
{
	LeaseMoment now;

	if (!lease_table_find(table, role))
		return false;
	lease_access_require(&table->row);
	lease_clock_read(&now);
	return lease_term_judge(&table->row, holder, token, lease_origin(relid),
							&now) == TERM_CURRENT;
}

/*
 * lease_renew(role text, holder text, token bigint,
 *			   ttl interval DEFAULT NULL) -> interval
 *
 * Prolongs the current term: the ttl granted, from now; NULL when that term is
 * over.  Never starts or revives one.  Locks the row alone, and nothing when
 * it says NULL.  Errors as for lease_acquire.
 */
Datum
lease_renew(PG_FUNCTION_ARGS)
{
	LeaseName	role = lease_arg_name(fcinfo, 0, "lease name");
	LeaseName	holder = lease_arg_name(fcinfo, 1, "holder");
	int64		token = lease_arg_token(fcinfo, 2);
	int64		asked = lease_arg_ttl(fcinfo, 3);
	int64		ttl = 0;
	Oid			relid;
	LeaseTable	table;
	bool		renewed = false;

	lease_require_writable("lease_renew()");
	relid = lease_table_oid(fcinfo);
	lease_table_open(&table, relid);
	while (!renewed && find_current(&table, relid, role, holder, token))
	{
		CHECK_FOR_INTERRUPTS();
		ttl = asked;
		renewed = prolong(&table, relid, holder, token, &ttl) == STEP_DONE;
	}
	lease_table_close(&table);
	if (!renewed)
		PG_RETURN_NULL();
	PG_RETURN_INTERVAL_P(lease_interval(ttl));
}

/*
 * Ends the term in table->row, which was found to be the current one.  Locks
 * and waits as prolong does.
 */
static LeaseStep
end_term(LeaseTable *table, Oid relid, LeaseName holder, int64 token)
{
	LeaseMoment now;

	lease_table_for_update(table);
	lease_table_require_unchanged(table);
	switch (lease_table_lock_row(table))
	{
		case LEASE_ROW_BUSY:
			(void) lease_table_await_row(table, -1);
			return STEP_AGAIN;
		case LEASE_ROW_CHANGED:
			return STEP_AGAIN;
		case LEASE_ROW_LOCKED:
			break;
	}
	lease_clock_read(&now);
	if (lease_term_judge(&table->row, holder, token, lease_origin(relid),
						 &now) != TERM_CURRENT)
		return STEP_AGAIN;
	lease_term_end(&table->row, "released", &now);
	lease_table_update(table, &table->row);
	fence_end_term(relid, table->row.number);
	return STEP_DONE;
}

/*
 * lease_release(role text, holder text, token bigint) -> boolean
 *
 * Ends that term now and keeps the row; false when it is not the current one.
 * Fences that are open stay so: the next holder waits for them.
 */
Datum
lease_release(PG_FUNCTION_ARGS)
{
	LeaseName	role = lease_arg_name(fcinfo, 0, "lease name");
	LeaseName	holder = lease_arg_name(fcinfo, 1, "holder");
	int64		token = lease_arg_token(fcinfo, 2);
	Oid			relid;
	LeaseTable	table;
	bool		released = false;

	lease_require_writable("lease_release()");
	relid = lease_table_oid(fcinfo);
	lease_table_open(&table, relid);
	while (!released && find_current(&table, relid, role, holder, token))
	{
		CHECK_FOR_INTERRUPTS();
		released = end_term(&table, relid, holder, token) == STEP_DONE;
	}
	lease_table_close(&table);
	PG_RETURN_BOOL(released);
}
