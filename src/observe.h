/*-------------------------------------------------------------------------
 *
 * observe.h
 *	  The highest token that was seen of a resource (observe.c), as the guard
 *	  uses it.
 *
 * A transaction's observation is a Fence of the table leader_lease_observed.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OBSERVE_H
#define OBSERVE_H

#include "leader_lease.h"

extern FenceVerdict observe_take(Oid relid, LeaseName resource, int64 token,
								 Oid userid, Fence **fence,
								 FenceFailure *failure);
extern void observe_report(int elevel, FenceVerdict verdict,
						   const FenceFailure *failure, Relation target);

#endif							/* OBSERVE_H */
