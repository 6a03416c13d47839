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

/* acquiring -------------------------------------------------------------- */

/*
 * One look at the lease and what follows from it.  An attempt that loses to a
 * live holder reads one row: no transaction id, no lock, nothing written.
 */
static LeaseStep
try_once(LeaseTable *table, Takeover *takeover, int64 limit,
		 LeaseOutcome *outcome)
{
	Oid			relid = takeover->relid;
	LeaseMoment now;
	LeaseStep	step;

	if (!lease_table_find(table, takeover->role))
		return lease_create_absent(relid, takeover->role,
								   limit) == CREATED_NOT ? STEP_DONE : STEP_AGAIN;
	lease_access_require(&table->row);

	lease_clock_read(&now);
	if (lease_term_live(relid, &table->row, &now))
	{
		if (!lease_name_equal(table->row.holder, takeover->holder))
		{
			outcome->leader = lease_name_copy(table->row.holder);
			outcome->retry_after = lease_clock_remaining(&table->row, &now);
			return STEP_DONE;
		}
		if (table->row.origin == lease_origin(relid))
		{
			outcome->ttl = takeover->ttl;
			if (lease_prolong(table, takeover->holder, table->row.token,
							  &outcome->ttl) == STEP_AGAIN)
				return STEP_AGAIN;
			outcome->token = table->row.token;
			outcome->renewed = true;
			outcome->leader = takeover->holder;
			return STEP_DONE;
		}
	}

	step = lease_take_over(table, takeover, limit);
	outcome->nblockers = takeover->nblockers;
	outcome->blockers = takeover->blockers;
	if (takeover->token != 0)
	{
		outcome->token = takeover->token;
		outcome->ttl = takeover->granted;
		outcome->leader = takeover->holder;
	}
	return step;
}

/*
 * Acquires or renews, or finds out why not, within limit microseconds of
 * waiting (negative: without limit).  An error changes nothing: it takes the
 * (sub)transaction with it.
 */
void
lease_try(Oid relid, LeaseName role, LeaseName holder, int64 ttl,
		  int64 limit, LeaseOutcome *outcome)
{
	Takeover	takeover = {TAKEOVER_ACQUIRE, relid, role};
	LeaseTable	table;

	takeover.holder = holder;
	takeover.ttl = ttl;
	memset(outcome, 0, sizeof(*outcome));
	lease_table_open(&table, relid);
	for (;;)
	{
		LeaseMoment start;
		LeaseMoment now;
		LeaseStep	step;

		lease_clock_read(&start);
		step = try_once(&table, &takeover, limit, outcome);
		if (step == STEP_DONE ||
			(step == STEP_BUSY &&
			 (limit == 0 || !lease_table_await_row(&table, limit))))
			break;
		lease_clock_read(&now);
		if (limit > 0)
			limit = Max(limit - (now.boottime - start.boottime), 0);
		CHECK_FOR_INTERRUPTS();
	}
	lease_table_close(&table);
}

static void
try_by_arguments(FunctionCallInfo fcinfo, const char *command,
				 LeaseOutcome *outcome)
{
	LeaseName	role = lease_arg_name(fcinfo, 0, "lease name");
	LeaseName	holder = lease_arg_name(fcinfo, 1, "holder");
	int64		ttl = lease_arg_ttl(fcinfo, 2);

	lease_require_writable(command);
	lease_try(lease_table_oid(fcinfo), role, holder, ttl,
			  lease_takeover_limit(), outcome);
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
	LeaseOutcome outcome;

	try_by_arguments(fcinfo, "lease_acquire()", &outcome);
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
	LeaseOutcome outcome;
	TupleDesc	desc;
	Datum		values[6];
	bool		nulls[6] = {false};
	bool		won;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	try_by_arguments(fcinfo, "lease_attempt()", &outcome);

	won = outcome.token != 0;
	values[0] = Int64GetDatum(outcome.token);
	nulls[0] = !won;
	values[1] = BoolGetDatum(outcome.renewed);
	values[2] = IntervalPGetDatum(lease_interval(outcome.ttl));
	nulls[2] = !won;
	nulls[3] = outcome.leader.data == NULL;
	if (!nulls[3])
		values[3] = lease_name_datum(outcome.leader);
	values[4] = IntervalPGetDatum(lease_interval(outcome.retry_after));
	nulls[4] = won;
	nulls[5] = outcome.nblockers == 0;
	if (!nulls[5])
	{
		Datum	   *pids = palloc(sizeof(Datum) * outcome.nblockers);

		for (int i = 0; i < outcome.nblockers; i++)
			pids[i] = Int32GetDatum(outcome.blockers[i].pid);
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
	return lease_term_judge(relid, &table->row, holder, token,
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
		renewed = lease_prolong(&table, holder, token, &ttl) == STEP_DONE;
	}
	lease_table_close(&table);
	if (!renewed)
		PG_RETURN_NULL();
	PG_RETURN_INTERVAL_P(lease_interval(ttl));
}

/*
 * Ends the term in table->row, which was found to be the current one.  Locks
 * the row; waits for whoever is at it as lease_prolong does.
 */
LeaseStep
lease_end_term(LeaseTable *table, LeaseName holder, int64 token)
{
	Oid			relid = RelationGetRelid(table->rel);
	LeaseMoment now;
	LeaseRow	old;

	if (!lease_table_hold_row(table))
		return STEP_AGAIN;
	lease_clock_read(&now);
	if (lease_term_judge(relid, &table->row, holder, token,
						 &now) != TERM_CURRENT)
		return STEP_AGAIN;
	old = table->row;
	lease_term_end(&table->row, "released", &now);
	lease_table_update(table, &table->row);
	fence_end_term(relid, table->row.number);
	lease_event(relid, &old, &table->row, "released", &now);
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
		released = lease_end_term(&table, holder, token) == STEP_DONE;
	}
	lease_table_close(&table);
	PG_RETURN_BOOL(released);
}
