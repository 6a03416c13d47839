/*-------------------------------------------------------------------------
 *
 * protect.c
 *	  lease_protect and lease_unprotect: the guard's triggers on a table and
 *	  on what hangs below it.
 *
 * PostgreSQL clones a row trigger of a partitioned table to its partitions,
 * now and later.  It clones no statement trigger, so the guard against
 * TRUNCATE goes on each partition; and it clones nothing to inheritance
 * children, so these get both.  What is added later stands open for that, and
 * the view lease_guards shows it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_trigger.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "parser/parse_func.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "guard.h"

PG_FUNCTION_INFO_V1(lease_protect);
PG_FUNCTION_INFO_V1(lease_unprotect);

#define EVENT_TRUNCATE	"truncate"

static const char *const row_events[] = {"insert", "update", "delete"};

typedef struct Protection
{
	Oid			function;		/* lease_fence */
	LeaseName	role;
	char	   *row_events;		/* "insert or update", or empty */
	bool		truncate;
	char	   *arguments;		/* quoted, for CREATE TRIGGER */
	char	   *name;			/* of the row trigger */
	bool		on_replica;
} Protection;

static void
refuse_value(const char *what, const char *value)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("unknown %s \"%s\"", what, value)));
}

static char *
arg_word(FunctionCallInfo fcinfo, int argno, const char *what)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", what)));
	return text_to_cstring(PG_GETARG_TEXT_PP(argno));
}

/*
 * Adds a comma-separated list of events to the protection.
 */
static void
parse_events(Protection *protection, char *events)
{
	StringInfoData rows;
	bool		wanted[lengthof(row_events)] = {false};
	char	   *saved = NULL;

	for (char *word = strtok_r(events, ", \t\n", &saved); word != NULL;
		 word = strtok_r(NULL, ", \t\n", &saved))
	{
		bool		known = pg_strcasecmp(word, EVENT_TRUNCATE) == 0;

		if (known)
			protection->truncate = true;
		for (int i = 0; i < lengthof(row_events); i++)
			if (pg_strcasecmp(word, row_events[i]) == 0)
				wanted[i] = known = true;
		if (!known)
			refuse_value("event", word);
	}

	initStringInfo(&rows);
	for (int i = 0; i < lengthof(row_events); i++)
		if (wanted[i])
			appendStringInfo(&rows, "%s%s", rows.len > 0 ? " OR " : "",
							 row_events[i]);
	protection->row_events = rows.data;
	if (rows.len == 0 && !protection->truncate)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no event to protect against"),
				 errhint("Name some of insert, update, delete, truncate.")));
}

static void
refuse_stranger(const char *table)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("must be owner of table %s", table)));
}

/*
 * Opens a table for its owner, locked as CREATE TRIGGER locks it.  Asked
 * before the lock, so that nobody can lock a table that is not theirs, and
 * again under it.
 */
static Relation
open_owned(Oid relid)
{
	Relation	rel = NULL;
	char	   *name = get_rel_name(relid);

	if (name != NULL && !LEASE_OWNS_CLASS(relid, GetUserId()))
		refuse_stranger(name);
	if (name != NULL)
		rel = try_relation_open(relid, ShareRowExclusiveLock);
	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	if (!LEASE_OWNS_CLASS(relid, GetUserId()))
		refuse_stranger(name);
	return rel;
}

/*
 * A table and all that hangs below it, locked.  It must all be the caller's.
 */
static List *
lock_tree(Oid relid)
{
	List	   *tables = find_all_inheritors(relid, NoLock, NULL);
	ListCell   *cell;

	foreach(cell, tables)
		relation_close(open_owned(lfirst_oid(cell)), NoLock);
	return tables;
}

static void
run(const char *command)
{
	int			result = SPI_execute(command, false, 0);

	if (result != SPI_OK_UTILITY)
		elog(ERROR, "SPI_execute failed: %s", SPI_result_code_string(result));
}

static const char *
qualified_name(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
									  get_rel_name(relid));
}

/*
 * Drops a table's own guards for a lease (of all leases where role has no
 * data) and says how many there were.  A guard that a parent brought cannot be
 * dropped here.
 */
static int
drop_guards(Oid relid, Oid function, LeaseName role)
{
	Relation	triggers = table_open(TriggerRelationId, AccessShareLock);
	List	   *commands = NIL;
	ListCell   *cell;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_trigger_tgrelid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(triggers, TriggerRelidNameIndexId, true, NULL,
							  1, &key);
	while ((tuple = systable_getnext(scan)) != NULL)
	{
		Form_pg_trigger trigger = (Form_pg_trigger) GETSTRUCT(tuple);
		bool		isnull;
		Datum		args;
		LeaseName	guarded;

		if (trigger->tgfoid != function || OidIsValid(trigger->tgparentid))
			continue;
		args = heap_getattr(tuple, Anum_pg_trigger_tgargs,
							RelationGetDescr(triggers), &isnull);
		/* the first argument ends at its zero byte; there may be none */
		guarded.data = isnull ? "" : VARDATA_ANY(DatumGetByteaPP(args));
		guarded.len = isnull || VARSIZE_ANY_EXHDR(DatumGetByteaPP(args)) == 0 ?
			0 : strlen(guarded.data);
		if (role.data != NULL && !lease_name_equal(role, guarded))
			continue;
		commands = lappend(commands,
						   psprintf("DROP TRIGGER %s ON %s",
									quote_identifier(NameStr(trigger->tgname)),
									qualified_name(relid)));
	}
	systable_endscan(scan);
	table_close(triggers, AccessShareLock);

	foreach(cell, commands)
		run(lfirst(cell));
	return list_length(commands);
}

static void
create_guard(const Protection *protection, Oid relid, const char *name,
			 const char *events, const char *level)
{
	run(psprintf("CREATE TRIGGER %s BEFORE %s ON %s FOR EACH %s EXECUTE FUNCTION %s.%s(%s)",
				 quote_identifier(name), events, qualified_name(relid), level,
				 quote_identifier(get_namespace_name(get_func_namespace(protection->function))),
				 "lease_fence", protection->arguments));
	if (protection->on_replica)
		run(psprintf("ALTER TABLE %s ENABLE ALWAYS TRIGGER %s",
					 qualified_name(relid), quote_identifier(name)));
}

static AttrNumber
find_column(Relation rel, const char *column)
{
	AttrNumber	att = get_attnum(RelationGetRelid(rel), column);

	if (att == InvalidAttrNumber)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of \"%s\" does not exist", column,
						RelationGetRelationName(rel))));
	return att;
}

static void
check_token_column(Relation rel, const char *column)
{
	TupleDesc	desc = RelationGetDescr(rel);
	AttrNumber	att = find_column(rel, column);

	if (!guard_token_column_fits(desc, att) ||
		TupleDescAttr(desc, att - 1)->attidentity != '\0')
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("token column \"%s\" must be an ordinary bigint column",
						column),
				 errdetail("Tokens of a server that failed over do not fit into an integer.")));
}

static void
check_key_column(Relation rel, const char *column)
{
	if (!guard_key_column_fits(RelationGetDescr(rel), find_column(rel, column)))
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("key column \"%s\" must be an ordinary column of an integer, text or uuid type",
						column),
				 errdetail("Its text is part of the lease's name and must not depend on any setting.")));
}

static Oid
guard_function(FunctionCallInfo fcinfo)
{
	char	   *schema = get_namespace_name(get_func_namespace(fcinfo->flinfo->fn_oid));

	return LookupFuncName(list_make2(makeString(schema),
									 makeString("lease_fence")),
						  0, NULL, false);
}

/*
 * lease_protect(tbl regclass, role text, token_column name DEFAULT NULL,
 *				 events text, proof text, mode text, on_replica boolean,
 *				 key_column name DEFAULT NULL) -> void
 *
 * Puts the guard on a table; calling it again changes it.  For the table's
 * owner.  Locks the table, and all below it, as CREATE TRIGGER does (SHARE ROW
 * EXCLUSIVE), and ACCESS EXCLUSIVE where it changes a guard, until the
 * transaction ends, so no write slips in between.
 */
Datum
lease_protect(PG_FUNCTION_ARGS)
{
	Protection	protection = {0};
	StringInfoData arguments;
	char	   *proof;
	char	   *mode;
	char	   *column = NULL;
	char	   *key_column = NULL;
	Oid			relid;
	Relation	rel;
	List	   *tables;
	ListCell   *cell;

	PreventCommandIfReadOnly("lease_protect()");
	PreventCommandDuringRecovery("lease_protect()");
	if (PG_ARGISNULL(0) || PG_ARGISNULL(6))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("table and on_replica must not be null")));
	relid = PG_GETARG_OID(0);
	protection.role = lease_arg_name(fcinfo, 1, "lease name");
	if (!PG_ARGISNULL(2))
		column = NameStr(*PG_GETARG_NAME(2));
	parse_events(&protection, arg_word(fcinfo, 3, "events"));
	proof = arg_word(fcinfo, 4, "proof");
	mode = arg_word(fcinfo, 5, "mode");
	protection.on_replica = PG_GETARG_BOOL(6);
	if (!PG_ARGISNULL(7))
		key_column = NameStr(*PG_GETARG_NAME(7));

	initStringInfo(&arguments);
	appendStringInfoString(&arguments,
						   quote_literal_cstr(pnstrdup(protection.role.data,
													   protection.role.len)));
	if (column != NULL)
		appendStringInfo(&arguments, ", %s",
						 quote_literal_cstr(psprintf("token_column=%s", column)));
	if (key_column != NULL)
		appendStringInfo(&arguments, ", %s",
						 quote_literal_cstr(psprintf("key_column=%s", key_column)));
	if (strcmp(proof, "row") == 0)
		appendStringInfoString(&arguments, ", 'proof=row'");
	else if (strcmp(proof, "highest") == 0)
		appendStringInfoString(&arguments, ", 'proof=highest'");
	else if (strcmp(proof, "fence") != 0)
		refuse_value("proof", proof);
	if (strcmp(mode, "log") == 0)
		appendStringInfoString(&arguments, ", 'mode=log'");
	else if (strcmp(mode, "enforce") != 0)
		refuse_value("mode", mode);
	if (strcmp(proof, "fence") != 0 && column == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("proof \"%s\" needs a token column", proof)));
	protection.arguments = arguments.data;
	protection.name = psprintf("~lease_fence_%016llx",
							   (unsigned long long) hash_bytes_extended((const unsigned char *) protection.role.data,
																		protection.role.len, 0));
	protection.function = guard_function(fcinfo);

	rel = open_owned(relid);
	if (rel->rd_rel->relkind != RELKIND_RELATION &&
		rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a table", RelationGetRelationName(rel)),
				 errhint("Protect the tables that hold the rows.")));
	if (relid == lease_table_oid(fcinfo) || relid == lease_observed_oid(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("table \"%s\" guards itself",
						RelationGetRelationName(rel))));
	if (column != NULL)
		check_token_column(rel, column);
	if (key_column != NULL)
		check_key_column(rel, key_column);
	if (column != NULL && key_column != NULL && strcmp(column, key_column) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("token column and key column must not be the same")));

	relation_close(rel, NoLock);	/* DROP TRIGGER wants it unused */
	tables = lock_tree(relid);

	SPI_connect();
	foreach(cell, tables)
		drop_guards(lfirst_oid(cell), protection.function, protection.role);
	foreach(cell, tables)
	{
		Oid			table = lfirst_oid(cell);

		/* partitions have the row trigger from their parent */
		if (protection.row_events[0] != '\0' &&
			(table == relid || !get_rel_relispartition(table)))
			create_guard(&protection, table, protection.name,
						 protection.row_events, "ROW");
		if (protection.truncate)
			create_guard(&protection, table,
						 psprintf("%s_truncate", protection.name),
						 EVENT_TRUNCATE, "STATEMENT");
	}
	SPI_finish();
	PG_RETURN_VOID();
}

/*
 * lease_unprotect(tbl regclass, role text DEFAULT NULL) -> void
 *
 * Takes the guard of one lease, or of all, off a table and off what hangs
 * below it.  For the table's owner.  42704 where there is none.
 */
Datum
lease_unprotect(PG_FUNCTION_ARGS)
{
	LeaseName	role = {NULL, 0};
	Oid			function;
	Oid			relid;
	List	   *tables;
	ListCell   *cell;
	int			dropped = 0;

	PreventCommandIfReadOnly("lease_unprotect()");
	PreventCommandDuringRecovery("lease_unprotect()");
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("table must not be null")));
	relid = PG_GETARG_OID(0);
	if (!PG_ARGISNULL(1))
		role = lease_arg_name(fcinfo, 1, "lease name");
	function = guard_function(fcinfo);

	relation_close(open_owned(relid), NoLock);
	tables = lock_tree(relid);
	SPI_connect();
	foreach(cell, tables)
		dropped += drop_guards(lfirst_oid(cell), function, role);
	SPI_finish();
	if (dropped == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table \"%s\" has no guard%s", get_rel_name(relid),
						role.data != NULL ? " of that lease" : ""),
				 get_rel_relispartition(relid) ?
				 errhint("A guard that the parent table brought is taken off there.") : 0));
	PG_RETURN_VOID();
}
