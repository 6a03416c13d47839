/*-------------------------------------------------------------------------
 *
 * leader_lease.c
 *	  The module: its settings and its start.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "fmgr.h"
#include "utils/guc.h"

#include "leader_lease.h"

PG_MODULE_MAGIC;

int			lease_default_ttl = 30000;
int			lease_max_ttl = 86400;
int			lease_takeover_timeout = 1000;
bool		lease_auto_create = true;
int			lease_evict_after = -1;
int			lease_history_retention = 43200;
int			lease_slot_retention = 43200;
bool		lease_notify = true;
char	   *lease_default_owner = NULL;
char	   *lease_claim = NULL;

#if PG_VERSION_NUM < 160000
void		_PG_init(void);
#endif

/*
 * Looks at the syntax of leader_lease.fence, and at nothing else: a value
 * that comes from a role or from the connection is checked while the library
 * is loaded, perhaps outside of a transaction, and must not make that fail.
 */
static bool
check_claim(char **newval, void **extra, GucSource source)
{
	if (lease_claim_syntax(*newval))
		return true;
	GUC_check_errdetail("The value must be a JSON object with the keys role, holder and token, or an array of such objects.");
	return false;
}

void
_PG_init(void)
{
	DefineCustomIntVariable("leader_lease.default_ttl",
							"Length of a term where neither the call nor the lease names one.",
							NULL, &lease_default_ttl, 30000, 1, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("leader_lease.max_ttl",
							"Longest ttl that a lease may be given.",
							NULL, &lease_max_ttl, 86400, 1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("leader_lease.takeover_timeout",
							"How long a takeover waits for open fences, and a fence for a takeover.",
							"0 does not wait, -1 waits without limit.",
							&lease_takeover_timeout, 1000, -1, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("leader_lease.evict_after",
							"How long a challenger waits behind fences of a term that is over before it terminates their backends.",
							"-1 never does.",
							&lease_evict_after, -1, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomBoolVariable("leader_lease.notify",
							 "Whether changes of leadership are sent on channel leader_lease.",
							 NULL, &lease_notify, true,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("leader_lease.history_retention",
							"How long the history keeps terms that have ended.",
							"0 keeps no history, -1 keeps all of it.",
							&lease_history_retention, 43200, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_MIN, NULL, NULL, NULL);
	DefineCustomIntVariable("leader_lease.slot_retention",
							"How long a claimed slot is remembered.",
							"A slot that is forgotten can be claimed again.  0 and -1 forget none.",
							&lease_slot_retention, 43200, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_MIN, NULL, NULL, NULL);
	DefineCustomBoolVariable("leader_lease.auto_create",
							 "Whether acquiring an unknown lease makes it.",
							 "When off, only lease_create makes leases.",
							 &lease_auto_create, true,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("leader_lease.default_owner",
							   "Owner of a new lease, where its creator is a member.",
							   NULL, &lease_default_owner, "",
							   PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("leader_lease.fence",
							   "Claim by which the first write to a protected table takes its fence.",
							   "{\"role\": ..., \"holder\": ..., \"token\": ...}, or an array of such objects.",
							   &lease_claim, "",
							   PGC_USERSET, 0, check_claim, NULL, NULL);
	MarkGUCPrefixReserved("leader_lease");

	lease_row_init();
	fence_init();
	lease_xact_init();
	lease_session_init();
}
