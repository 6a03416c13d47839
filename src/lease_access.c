/*-------------------------------------------------------------------------
 *
 * lease_access.c
 *	  Who may do what with a lease, and what is a good argument.
 *
 * A lease has an owner, a database role: only who has that role's privileges
 * may use the lease, and only a superuser where the role is missing.  It is
 * kept as a name, so that a dump restores where the role does not exist yet.
 * The owner is asked before any lock: nobody can hold up a lease that is not
 * theirs.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "leader_lease.h"

/*
 * Refuses an empty or an over-long name.
 */
void
lease_check_name(LeaseName name, const char *what)
{
	if (name.len == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be empty", what)));
	if (name.len > LEASE_NAME_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is too long", what),
				 errdetail("It has %d bytes, the limit is %d.",
						   name.len, LEASE_NAME_MAX)));
}

static void
refuse_null(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("%s must not be null", what)));
}

static LeaseName
good_name(text *t, const char *what)
{
	LeaseName	name = {VARDATA_ANY(t), VARSIZE_ANY_EXHDR(t)};

	lease_check_name(name, what);
	return name;
}

/*
 * A name among a function's arguments.  None of the functions is STRICT: a
 * NULL result for a NULL argument would slip through an IF.
 */
LeaseName
lease_arg_name(FunctionCallInfo fcinfo, int argno, const char *what)
{
	if (PG_ARGISNULL(argno))
		refuse_null(what);
	return good_name(PG_GETARG_TEXT_PP(argno), what);
}

/*
 * An array of names, whatever its dimensions.
 */
LeaseName *
lease_arg_names(FunctionCallInfo fcinfo, int argno, const char *what,
				int *count)
{
	LeaseName  *names;
	Datum	   *elements;
	bool	   *nulls;

	if (PG_ARGISNULL(argno))
		refuse_null(what);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(argno), TEXTOID, -1, false,
					  TYPALIGN_INT, &elements, &nulls, count);
	names = palloc(sizeof(LeaseName) * Max(*count, 1));
	for (int i = 0; i < *count; i++)
	{
		if (nulls[i])
			refuse_null(what);
		names[i] = good_name(DatumGetTextPP(elements[i]), what);
	}
	return names;
}

int64
lease_arg_token(FunctionCallInfo fcinfo, int argno)
{
	if (PG_ARGISNULL(argno))
		refuse_null("token");
	return PG_GETARG_INT64(argno);
}

/*
 * A ttl in microseconds, 0 for NULL: not said.
 */
int64
lease_arg_ttl(FunctionCallInfo fcinfo, int argno)
{
	int64		ttl;

	if (PG_ARGISNULL(argno))
		return 0;
	ttl = lease_ttl_from_interval(PG_GETARG_INTERVAL_P(argno));
	lease_ttl_check(ttl);
	return ttl;
}

/*
 * Refuses to change a lease where nothing may be written.
 */
void
lease_require_writable(const char *command)
{
	PreventCommandIfReadOnly(command);
	PreventCommandDuringRecovery(command);
	PreventCommandIfParallelMode(command);
}

/*
 * A database role by name, or InvalidOid.
 */
static Oid
role_oid(LeaseName name)
{
	char		rolname[NAMEDATALEN];

	if (name.data == NULL || name.len >= NAMEDATALEN)
		return InvalidOid;
	memcpy(rolname, name.data, name.len);
	rolname[name.len] = '\0';
	return get_role_oid(rolname, true);
}

/*
 * May this user use a lease of that owner?
 */
bool
lease_access_allowed(LeaseName owner, Oid userid)
{
	Oid			roleid = role_oid(owner);

	if (!OidIsValid(roleid))
		return superuser_arg(userid);
	return has_privs_of_role(userid, roleid);
}

void
lease_access_require(const LeaseRow *row)
{
	if (!lease_access_allowed(row->owner, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for lease \"%.*s\"",
						NAME_ARGS(row->role)),
				 errhint("Only members of its owner may use a lease.")));
}

/*
 * May the current user restore leases as a dump has them?  Whoever may pass on
 * the right to insert into the lease table may, which is whoever installed the
 * extension.
 */
bool
lease_access_restores(Oid relid)
{
	return superuser() ||
		pg_class_aclcheck(relid, GetUserId(),
						  ACL_GRANT_OPTION_FOR(ACL_INSERT)) == ACLCHECK_OK;
}

/*
 * May the current user make somebody the owner of a lease?  Who could SET
 * ROLE to it may, as with the owner of any object; and who restores, since a
 * dump names owners that he is no member of, or that are missing.
 */
void
lease_access_require_grantable(Oid relid, LeaseName owner)
{
	Oid			roleid = role_oid(owner);

	if (lease_access_restores(relid))
		return;
	if (!OidIsValid(roleid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("role \"%.*s\" does not exist", NAME_ARGS(owner))));
	if (!LEASE_MAY_BECOME(GetUserId(), roleid))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be able to SET ROLE \"%.*s\" to make it the owner of a lease",
						NAME_ARGS(owner))));
}

/*
 * The owner of a lease that the current user makes without naming one:
 * leader_lease.default_owner where he is a member of it, with its privileges,
 * else himself.
 */
LeaseName
lease_access_default_owner(void)
{
	LeaseName	owner = {lease_default_owner, strlen(lease_default_owner)};
	Oid			roleid = owner.len > 0 ? role_oid(owner) : InvalidOid;

	if (!OidIsValid(roleid) || !LEASE_MAY_BECOME(GetUserId(), roleid) ||
		!has_privs_of_role(GetUserId(), roleid))
	{
		owner.data = GetUserNameFromId(GetUserId(), false);
		owner.len = strlen(owner.data);
	}
	return owner;
}
