/*-------------------------------------------------------------------------
 *
 * lease_handover.c
 *	  Ending a term for another's sake: by its holder, or by whoever may.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "leader_lease.h"

PG_FUNCTION_INFO_V1(lease_transfer);
PG_FUNCTION_INFO_V1(lease_revoke);

/*
 * Carries a takeover out, or raises 55P03 when fences are in its way for
 * longer than takeover_timeout.  False when it is not called for: the term to
 * be given is over.
 */
static bool
hand_over(Takeover *takeover)
{
	LeaseTable	table;
	LeaseMoment start;
	LeaseMoment now;
	int64		limit = lease_takeover_limit();

	lease_table_open(&table, takeover->relid);
	for (;;)
	{
		LeaseStep	step;

		lease_clock_read(&start);
		if (!lease_table_find(&table, takeover->role))
		{
			if (takeover->kind == TAKEOVER_TRANSFER)
				break;
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("lease \"%.*s\" does not exist",
							NAME_ARGS(takeover->role))));
		}
		lease_access_require(&table.row);
		if (takeover->kind == TAKEOVER_TRANSFER &&
			lease_term_judge(takeover->relid, &table.row, takeover->giver,
							 takeover->giver_token, &start) != TERM_CURRENT)
			break;

		step = lease_take_over(&table, takeover, limit);
		if (takeover->token != 0)
			break;
		if (step == STEP_DONE ||
			(step == STEP_BUSY &&
			 (limit == 0 || !lease_table_await_row(&table, limit))))
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not take over lease \"%.*s\" in time",
							NAME_ARGS(takeover->role)),
					 step == STEP_BUSY ?
					 errdetail("Its row is locked by another transaction.") :
					 takeover->nblockers > 0 ?
					 errdetail("Held back by %s.",
							   lease_holders_text(takeover->relid,
												  takeover->blockers,
												  takeover->nblockers)) : 0,
					 step == STEP_BUSY ?
					 errhint("Retry when that has ended.") :
					 errhint("Retry when their transactions have ended, or use lease_revoke with force.")));
		lease_clock_read(&now);
		if (limit > 0)
			limit = Max(limit - (now.boottime - start.boottime), 0);
		CHECK_FOR_INTERRUPTS();
	}
	lease_table_close(&table);
	return takeover->token != 0;
}

/*
 * lease_transfer(role text, holder text, token bigint, new_holder text,
 *				  ttl interval DEFAULT NULL) -> bigint
 *
 * Hands a live lease over: the new holder's token, or NULL when the giver's
 * term is over.  The new term has the ttl given, else the old one's.  It waits
 * for open fences but those of its own transaction, which end with the term;
 * 55P03 after takeover_timeout.  If the new holder never shows up, the term
 * ends with its ttl.
 */
Datum
lease_transfer(PG_FUNCTION_ARGS)
{
	Takeover	takeover = {TAKEOVER_TRANSFER};

	takeover.role = lease_arg_name(fcinfo, 0, "lease name");
	takeover.giver = lease_arg_name(fcinfo, 1, "holder");
	takeover.giver_token = lease_arg_token(fcinfo, 2);
	takeover.holder = lease_arg_name(fcinfo, 3, "new holder");
	takeover.ttl = lease_arg_ttl(fcinfo, 4);
	lease_require_writable("lease_transfer()");
	takeover.relid = lease_table_oid(fcinfo);

	if (!hand_over(&takeover))
		PG_RETURN_NULL();
	PG_RETURN_INT64(takeover.token);
}

/*
 * lease_revoke(role text, successor text DEFAULT NULL,
 *				ttl interval DEFAULT NULL, force boolean DEFAULT false,
 *				min_token bigint DEFAULT NULL) -> bigint
 *
 * Ends whatever term there is and burns its token; the lease is free then, or
 * has a new term of the successor's.  Returns the new token, which is at least
 * min_token.  Fences in the way are waited for, 55P03 after takeover_timeout;
 * with force their backends are terminated, as far as pg_terminate_backend
 * would let the caller.  42704 for an unknown lease.
 */
Datum
lease_revoke(PG_FUNCTION_ARGS)
{
	Takeover	takeover = {TAKEOVER_REVOKE};

	takeover.role = lease_arg_name(fcinfo, 0, "lease name");
	if (!PG_ARGISNULL(1))
		takeover.holder = lease_arg_name(fcinfo, 1, "successor");
	takeover.ttl = lease_arg_ttl(fcinfo, 2);
	if (PG_ARGISNULL(3))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("force must not be null")));
	takeover.force = PG_GETARG_BOOL(3);
	if (!PG_ARGISNULL(4))
	{
		takeover.min_token = PG_GETARG_INT64(4);
		if (takeover.min_token <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("min_token must be more than zero")));
	}
	lease_require_writable("lease_revoke()");
	takeover.relid = lease_table_oid(fcinfo);

	(void) hand_over(&takeover);
	PG_RETURN_INT64(takeover.token);
}
