/*-------------------------------------------------------------------------
 *
 * guard_options.c
 *	  The arguments of the trigger lease_fence, and the columns they name.
 *
 * The arguments are the lease's name and options in words, since dumps keep
 * them for ever:
 *
 *	token_column=NAME	bigint column that is stamped with the token
 *	key_column=NAME		a row's lease is the given name || this column
 *	proof=fence|row|highest
 *						row: a write may also carry the token itself
 *						highest: the name is a resource's, whose lease lives
 *						elsewhere; no token lower than one seen before
 *	mode=enforce|log	log: let through what would be refused, and log it
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/uuid.h"

#include "guard.h"

void
guard_protocol_error(const char *message)
{
	ereport(ERROR,
			(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
			 errmsg_internal("function \"lease_fence\" %s", message)));
}

static const char *
option_value(const char *option, const char *name)
{
	size_t		len = strlen(name);

	return strncmp(option, name, len) == 0 && option[len] == '=' ?
		option + len + 1 : NULL;
}

/*
 * Is a column a place for tokens?  What is generated is computed after the
 * guard, and would take no stamp.
 */
bool
guard_token_column_fits(TupleDesc desc, int att)
{
	return att > 0 && TupleDescAttr(desc, att - 1)->atttypid == INT8OID &&
		TupleDescAttr(desc, att - 1)->attgenerated == '\0';
}

/*
 * Can a column name leases?  Only of types whose text depends on no setting:
 * one row must not belong to one lease here and to another there.  What is
 * generated is not computed yet when the guard looks.
 */
bool
guard_key_column_fits(TupleDesc desc, int att)
{
	if (att <= 0 || TupleDescAttr(desc, att - 1)->attgenerated != '\0')
		return false;
	switch (getBaseType(TupleDescAttr(desc, att - 1)->atttypid))
	{
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case TEXTOID:
		case VARCHAROID:
		case UUIDOID:
			return true;
	}
	return false;
}

/*
 * The number of a column that the trigger names.  Where it is not there any
 * more, or does not fit, that is an error; in mode 'log', which lets
 * everything through, a line in the log.
 */
static AttrNumber
find_column(Relation rel, const char *name,
			bool (*fits) (TupleDesc, int), const char *what, bool log_only)
{
	int			att = SPI_fnumber(RelationGetDescr(rel), name);

	if (fits(RelationGetDescr(rel), att))
		return att;
	ereport(log_only ? LOG : ERROR,
			(errcode(ERRCODE_UNDEFINED_COLUMN),
			 errmsg(what, name, RelationGetRelationName(rel)),
			 errhint("Call lease_protect again.")));
	return 0;
}

/*
 * The guard that the trigger's arguments describe.  It lives with the
 * trigger's FmgrInfo, that is for one statement and one table.
 */
Guard *
guard_read_options(FunctionCallInfo fcinfo)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;
	Trigger    *trigger = trigdata->tg_trigger;
	const char *token_column = NULL;
	const char *key_column = NULL;
	Guard	   *guard;

	if (trigger->tgnargs < 1 || trigger->tgargs[0][0] == '\0')
		guard_protocol_error("must be given the name of a lease");
	guard = MemoryContextAllocZero(fcinfo->flinfo->fn_mcxt, sizeof(Guard));
	guard->role.data = trigger->tgargs[0];
	guard->role.len = strlen(trigger->tgargs[0]);
	for (int i = 1; i < trigger->tgnargs; i++)
	{
		const char *option = trigger->tgargs[i];
		const char *value;

		if ((value = option_value(option, "token_column")) != NULL)
			token_column = value;
		else if ((value = option_value(option, "key_column")) != NULL)
			key_column = value;
		else if (strcmp(option, "proof=row") == 0)
			guard->proof = PROOF_ROW;
		else if (strcmp(option, "proof=highest") == 0)
			guard->proof = PROOF_HIGHEST;
		else if (strcmp(option, "proof=fence") == 0)
			guard->proof = PROOF_FENCE;
		else if (strcmp(option, "mode=log") == 0)
			guard->log_only = true;
		else if (strcmp(option, "mode=enforce") == 0)
			guard->log_only = false;
		else
			ereport(ERROR,
					(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
					 errmsg("function \"lease_fence\" does not know the option \"%s\"",
							option)));
	}
	if (guard->proof != PROOF_FENCE && token_column == NULL)
		guard_protocol_error(guard->proof == PROOF_ROW ?
							 "needs token_column with proof=row" :
							 "needs token_column with proof=highest");
	if (token_column != NULL)
		guard->token_column = find_column(trigdata->tg_relation, token_column,
										  guard_token_column_fits,
										  gettext_noop("token column \"%s\" of \"%s\" is not an ordinary bigint column"),
										  guard->log_only);
	guard->lease.name = guard->role;
	if (key_column != NULL)
	{
		guard->key_column = find_column(trigdata->tg_relation, key_column,
										guard_key_column_fits,
										gettext_noop("key column \"%s\" of \"%s\" is not an ordinary column of an integer, text or uuid type"),
										guard->log_only);
		if (guard->key_column == 0)
			guard->unusable = true;
		else
		{
			guard->key_type = getBaseType(SPI_gettypeid(RelationGetDescr(trigdata->tg_relation),
														guard->key_column));
			guard->key_by_value = get_typbyval(guard->key_type);
		}
		guard->lease.name.data = guard->former.name.data = NULL;
	}
	return guard;
}

/*
 * Sets the lease that a row belongs to by its key, and keeps the fence where
 * that is the one it already was: rows often come in runs of one key.  False
 * where the key names no lease; failure tells why.
 */
bool
guard_name_lease(const Guard *guard, GuardLease *lease, Relation rel,
				 HeapTuple tuple, FenceFailure *failure)
{
	char		digits[MAXINT8LEN + 1];
	const char *key = digits;
	int			len;
	bool		isnull;
	Datum		value = heap_getattr(tuple, guard->key_column,
									 RelationGetDescr(rel), &isnull);

	if (isnull)
	{
		failure->detail = "The row's key is null, so it belongs to no lease.";
		failure->hint = "Give the row a key.";
		return false;
	}
	/* what is passed by value is told apart without making its text */
	if (guard->key_by_value && lease->name.data != NULL && lease->key == value)
		return true;
	lease->key = value;
	switch (guard->key_type)
	{
		case INT2OID:
			len = pg_lltoa(DatumGetInt16(value), digits);
			break;
		case INT4OID:
			len = pg_lltoa(DatumGetInt32(value), digits);
			break;
		case INT8OID:
			len = pg_lltoa(DatumGetInt64(value), digits);
			break;
		case UUIDOID:
			key = DatumGetCString(DirectFunctionCall1(uuid_out, value));
			len = strlen(key);
			break;
		default:
			{
				text	   *t = DatumGetTextPP(value);

				key = VARDATA_ANY(t);
				len = VARSIZE_ANY_EXHDR(t);
			}
	}

	if (lease->name.data != NULL && lease->name.len == guard->role.len + len &&
		memcmp(lease->made + guard->role.len, key, len) == 0)
		return true;
	lease->name.data = NULL;
	lease->fence = NULL;
	if (guard->role.len + len > LEASE_NAME_MAX)
	{
		failure->detail = psprintf("The row's key makes a name of %d bytes, the limit is %d.",
								   guard->role.len + len, LEASE_NAME_MAX);
		failure->hint = "Give the row a shorter key.";
		return false;
	}
	memcpy(lease->made, guard->role.data, guard->role.len);
	memcpy(lease->made + guard->role.len, key, len);
	lease->name.data = lease->made;
	lease->name.len = guard->role.len + len;
	return true;
}
