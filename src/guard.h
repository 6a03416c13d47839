/*-------------------------------------------------------------------------
 *
 * guard.h
 *	  What the guard of protected tables (guard.c) shares with the reading of
 *	  its options (guard_options.c) and with lease_protect (protect.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef GUARD_H
#define GUARD_H

#include "commands/trigger.h"

#include "leader_lease.h"

/* nobody's token: the value of a column that knows no NULL, for none */
#define NO_TOKEN	INT64CONST(0)

/* what a write shows where its transaction holds no fence yet */
typedef enum GuardProof
{
	PROOF_FENCE,				/* nothing but the session's setting */
	PROOF_ROW,					/* the token in the row, too */
	PROOF_HIGHEST				/* no lease here: the highest token seen */
} GuardProof;

/* the lease that a row belongs to, and the fence of it */
typedef struct GuardLease
{
	LeaseName	name;
	Fence	   *fence;			/* good while the generation is this: */
	uint64		generation;
	Datum		key;			/* that made the name, if passed by value */
	char		made[LEASE_NAME_MAX];	/* the name, where a key makes it */
} GuardLease;

/* a trigger's arguments, read once a statement */
typedef struct Guard
{
	LeaseName	role;			/* with a key column, a name's beginning */
	AttrNumber	token_column;	/* 0: none */
	AttrNumber	key_column;		/* 0: none */
	Oid			key_type;		/* what its domains are over */
	bool		key_by_value;
	GuardProof	proof;
	bool		log_only;
	bool		unusable;		/* log_only, and the key column is lost */
	bool		logged;			/* once a statement is enough */
	GuardLease	lease;			/* of the row as it will be */
	GuardLease	former;			/* of the row as it was, by another key */
} Guard;

extern Guard *guard_read_options(FunctionCallInfo fcinfo);
extern void guard_protocol_error(const char *message);
extern bool guard_token_column_fits(TupleDesc desc, int att);
extern bool guard_key_column_fits(TupleDesc desc, int att);
extern bool guard_name_lease(const Guard *guard, GuardLease *lease,
							 Relation rel, HeapTuple tuple,
							 FenceFailure *failure);

#endif							/* GUARD_H */
