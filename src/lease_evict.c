/*-------------------------------------------------------------------------
 *
 * lease_evict.c
 *	  Who is in the way of a takeover: named, and terminated where that is
 *	  wanted.
 *
 * A leader that hangs in a fenced transaction holds the takeover back for as
 * long as the transaction lives.  leader_lease.evict_after, and the force of
 * lease_revoke, end such backends.  A victim is a backend whose present
 * transaction holds a fence, looked at right before the signal, and only one
 * that the caller could end by pg_terminate_backend.  A prepared transaction
 * has no backend; its place in the list of processes may be a bystander's.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "leader_lease.h"

typedef struct GidRequest
{
	Oid			relid;
	TransactionId xid;
	MemoryContext context;
	char	   *gid;
} GidRequest;

static void
find_gid(void *arg)
{
	GidRequest *request = arg;
	Oid			types[1] = {XIDOID};
	Datum		values[1];

	values[0] = TransactionIdGetDatum(request->xid);
	SPI_connect();
	lease_spi_as_owner(request->relid,
					   "SELECT gid FROM pg_prepared_xacts WHERE transaction = $1",
					   1, types, values, NULL);
	if (SPI_processed > 0)
		request->gid = MemoryContextStrdup(request->context,
										   SPI_getvalue(SPI_tuptable->vals[0],
														SPI_tuptable->tupdesc, 1));
	SPI_finish();
}

/*
 * The name of a prepared transaction, or NULL when it has ended.  In a
 * subtransaction that is rolled back: a campaign that waits for long must not
 * keep the locks of having asked.
 */
static char *
prepared_gid(Oid relid, TransactionId xid)
{
	GidRequest	request = {relid, xid, CurrentMemoryContext, NULL};

	(void) lease_guarded(find_gid, &request, -1, true);
	return request.gid;
}

/*
 * "process 123, prepared transaction "x"", for a DETAIL.
 */
char *
lease_holders_text(Oid relid, const LeaseLockHolder *holders, int count)
{
	StringInfoData text;

	initStringInfo(&text);
	for (int i = 0; i < count; i++)
	{
		if (i > 0)
			appendStringInfoString(&text, ", ");
		if (holders[i].pid != 0)
			appendStringInfo(&text, "process %d", holders[i].pid);
		else
		{
			char	   *gid = prepared_gid(relid, holders[i].prepared);

			appendStringInfo(&text, "prepared transaction \"%s\"",
							 gid != NULL ? gid : "");
		}
	}
	return text.data;
}

/*
 * The rule of pg_terminate_backend, asked beforehand: there it is an error,
 * and the challenger that may not evict should go on waiting.
 */
static bool
may_terminate(Oid roleid)
{
	if (superuser_arg(roleid))
		return superuser();
	return has_privs_of_role(GetUserId(), roleid) ||
		has_privs_of_role(GetUserId(), ROLE_PG_SIGNAL_BACKEND);
}

/*
 * The term that this backend last waited behind, and since when, by the
 * boot-time clock: who cannot be evicted is told of once a minute, however
 * often the challenger comes back, and a victim has time to go.
 */
static struct
{
	Oid			relid;
	uint32		number;
	int64		token;
	int64		since;
	int64		tried;			/* last; 0: not yet */
	int64		told;
}			behind;

#define TRY_EVERY	USECS_PER_SEC
#define TELL_EVERY	(60 * USECS_PER_SEC)

/*
 * Notes, before a challenger waits, that the row's term is over.
 */
void
lease_evict_watch(Oid relid, const LeaseRow *row)
{
	LeaseMoment now;

	if (behind.relid == relid && behind.number == row->number &&
		behind.token == row->token)
		return;
	lease_clock_read(&now);
	memset(&behind, 0, sizeof(behind));
	behind.relid = relid;
	behind.number = row->number;
	behind.token = row->token;
	behind.since = now.boottime;
}

/*
 * Has the term been over for as long as evict_after?  When a bound session
 * died is not known, so there it counts from when this challenger first came.
 */
static bool
waited_enough(Oid relid, const LeaseRow *row, const LeaseMoment *now)
{
	int64		over = now->wall - lease_clock_ended_at(row, now);

	lease_evict_watch(relid, row);
	over = Max(over, now->boottime - behind.since);
	return over >= lease_evict_after * INT64CONST(1000);
}

/*
 * Does that transaction hold a fence of the lease, and has it not come to be
 * a takeover's?  Looked at right before it is ended for that.
 */
static bool
still_fenced(Oid relid, uint32 number, const LeaseLockHolder *victim)
{
	LeaseLockHolder *holders;
	int			count;
	bool		found = false;

	count = lease_lock_holders(relid, number, ExclusiveLock, &holders);
	for (int i = 0; i < count; i++)
		if (holders[i].pid == victim->pid &&
			VirtualTransactionIdEquals(holders[i].vxid, victim->vxid))
			found = true;
	return found &&
		lease_lock_holders(relid, number, ShareLock, &holders) == 0;
}

/*
 * Ends one backend, as pg_terminate_backend does.  What the log says of it
 * goes out first.
 */
static void
evict(Oid relid, const LeaseRow *row, const LeaseLockHolder *victim,
	  bool force, bool tell)
{
	PGPROC	   *proc = LEASE_VXID_PROC(victim->vxid);
	int			pid = victim->pid;
	Oid			roleid;
	const char *user;

	if (proc == NULL)
		return;
	roleid = proc->roleId;
	user = GetUserNameFromId(roleid, true);
	if (!still_fenced(relid, row->number, victim))
		return;
	if (!may_terminate(roleid))
	{
		if (tell)
			ereport(LOG,
					(errmsg("process %d holds back the takeover of lease \"%.*s\" and may not be terminated by \"%s\"",
							pid, NAME_ARGS(row->role),
							GetUserNameFromId(GetUserId(), false))));
		return;
	}
	ereport(LOG,
			(errmsg("terminating process %d, which holds back the takeover of lease \"%.*s\"",
					pid, NAME_ARGS(row->role)),
			 errdetail("It is a transaction of \"%s\" with a fence of holder \"%.*s\", token %lld; %s, by \"%s\".",
					   user != NULL ? user : "",
					   row->holder.data != NULL ? row->holder.len : 0,
					   row->holder.data != NULL ? row->holder.data : "",
					   (long long) row->token,
					   force ? "revoked by force" :
					   "over for longer than leader_lease.evict_after",
					   GetUserNameFromId(GetUserId(), false))));
	(void) OidFunctionCall2(F_PG_TERMINATE_BACKEND, Int32GetDatum(pid),
							Int64GetDatum(0));
}

/*
 * Terminates the backends that hold fences of a lease, as far as the current
 * user may; other takeovers are left alone.  By force, whatever the term; else
 * only where the term in table->row has been over for as long as evict_after.
 * Says in the log whom and why.
 *
 * First the holders are listed, then the row is read.  If its term is still
 * the one that is over, what they hold is a fence of that one or an older one:
 * the other way round, a new leader's writers might come in between.
 */
void
lease_evict(LeaseTable *table, LeaseName role, bool force)
{
	Oid			relid = RelationGetRelid(table->rel);
	LeaseRow   *row = &table->row;
	uint32		number = row->number;
	int64		token = row->token;
	bool		tell = true;
	LeaseLockHolder *holders;
	LeaseLockHolder *takeovers;
	LeaseMoment now;
	int			nholders;

	nholders = lease_lock_holders(relid, number, ExclusiveLock, &holders);
	if (lease_lock_holders(relid, number, ShareLock, &takeovers) > 0)
		return;					/* then no fence is open */

	if (!lease_table_find(table, role))
		return;
	lease_table_unpin(table);
	lease_clock_read(&now);
	if (!force)
	{
		if (row->number != number || row->token != token ||
			lease_term_live(relid, row, &now) ||
			!waited_enough(relid, row, &now))
			return;
		if (behind.tried != 0 && now.boottime - behind.tried < TRY_EVERY)
			return;
		behind.tried = now.boottime;
		tell = behind.told == 0 || now.boottime - behind.told >= TELL_EVERY;
		if (tell)
			behind.told = now.boottime;
	}

	for (int i = 0; i < nholders; i++)
	{
		if (holders[i].pid != 0)
			evict(relid, row, &holders[i], force, tell);
		else if (tell)
			ereport(LOG,
					(errmsg("a prepared transaction holds back the takeover of lease \"%.*s\"",
							NAME_ARGS(row->role)),
					 errdetail("It is %s.",
							   lease_holders_text(relid, &holders[i], 1)),
					 errhint("Commit or roll it back.")));
	}
}
