/*-------------------------------------------------------------------------
 *
 * lease_spi.c
 *	  SQL on the extension's own tables.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/relcache.h"

#include "leader_lease.h"

/*
 * Runs one command as the owner of the lease table, for the rare reads and
 * writes that want defaults, checks and triggers as any statement gets them.
 * In the command %s stands for the table's schema; everything else is found in
 * pg_catalog, whatever the caller's search_path.  Its result, if any, is in
 * SPI_tuptable until the caller's SPI_finish.
 */
void
lease_spi_as_owner(Oid relid, const char *command, int nargs, Oid *types,
				   Datum *values, const char *nulls)
{
	Relation	rel = RelationIdGetRelation(relid);
	int			nest = NewGUCNestLevel();
	Oid			save_user;
	int			save_context;
	int			result;

	if (!RelationIsValid(rel))
		elog(ERROR, "could not open relation with OID %u", relid);
	command = psprintf(command, quote_identifier(get_namespace_name(RelationGetNamespace(rel))));

	/* an error gives user and settings back with the (sub)transaction */
	GetUserIdAndSecContext(&save_user, &save_context);
	SetUserIdAndSecContext(rel->rd_rel->relowner,
						   save_context | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_NOFORCE_RLS);
	RelationClose(rel);
	(void) set_config_option("search_path", "pg_catalog, pg_temp",
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
							 true, 0, false);
	result = SPI_execute_with_args(command, nargs, types, values, nulls,
								   false, 0);
	AtEOXact_GUC(false, nest);
	SetUserIdAndSecContext(save_user, save_context);
	if (result < 0)
		elog(ERROR, "SPI_execute_with_args failed: %s",
			 SPI_result_code_string(result));
}
