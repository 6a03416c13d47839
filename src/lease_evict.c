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

#include "leader_lease.h"

/*
 * The name of a prepared transaction, or NULL when it has ended.
 */
static char *
prepared_gid(Oid relid, TransactionId xid)
{
	MemoryContext context = CurrentMemoryContext;
	Oid			types[1] = {XIDOID};
	Datum		values[1];
	char	   *gid = NULL;

	values[0] = TransactionIdGetDatum(xid);
	SPI_connect();
	lease_spi_as_owner(relid, "SELECT gid FROM pg_prepared_xacts WHERE transaction = $1",
					   1, types, values, NULL);
	if (SPI_processed > 0)
		gid = MemoryContextStrdup(context,
								  SPI_getvalue(SPI_tuptable->vals[0],
											   SPI_tuptable->tupdesc, 1));
	SPI_finish();
	return gid;
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

static void
evict(const LeaseRow *row, const LeaseLockHolder *holder, const char *why)
{
	PGPROC	   *proc = LEASE_VXID_PROC(holder->vxid);
	int			pid = holder->pid;
	Oid			roleid;

	/* is it still that transaction? */
	if (proc == NULL || proc->pid != pid ||
		LEASE_PROC_LXID(proc) != holder->vxid.localTransactionId)
		return;
	roleid = proc->roleId;
	if (!may_terminate(roleid))
	{
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
					   GetUserNameFromId(roleid, true) ? GetUserNameFromId(roleid, true) : "",
					   row->holder.data ? row->holder.len : 0,
					   row->holder.data ? row->holder.data : "",
					   (long long) row->token, why,
					   GetUserNameFromId(GetUserId(), false))));
	(void) OidFunctionCall2(F_PG_TERMINATE_BACKEND, Int32GetDatum(pid),
							Int64GetDatum(0));
}

/*
 * Terminates the backends that hold fences of a lease, as far as the current
 * user may; other takeovers are left alone.  Says in the log whom and why.
 */
void
lease_evict(Oid relid, const LeaseRow *row, const char *why)
{
	LeaseLockHolder *takeovers;
	LeaseLockHolder *holders;
	int			ntakeovers = lease_lock_holders(relid, row->number, ShareLock,
												&takeovers);
	int			nholders = lease_lock_holders(relid, row->number,
											  ExclusiveLock, &holders);

	if (ntakeovers > 0)
		return;					/* then no fence is open */
	for (int i = 0; i < nholders; i++)
	{
		if (holders[i].pid != 0)
			evict(row, &holders[i], why);
		else
			ereport(LOG,
					(errmsg("a prepared transaction holds back the takeover of lease \"%.*s\"",
							NAME_ARGS(row->role)),
					 errdetail("It is %s.",
							   lease_holders_text(relid, &holders[i], 1)),
					 errhint("Commit or roll it back.")));
	}
}
