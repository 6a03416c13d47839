/*-------------------------------------------------------------------------
 *
 * lease_hint.c
 *	  What a backend remembers of leases it met.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"

#include "leader_lease.h"

/*
 * What this backend remembers: name -> number and owner, so
 * that a fence can be locked before its row is read.  A small direct-mapped
 * table; it may be wrong (a creation rolled back, an owner changed): whoever
 * uses it compares with the row after locking, forgets, and repeats.
 */
#define HINTS 64

static struct
{
	Oid			relid;
	uint32		number;
	LeaseName	role;
	LeaseName	owner;
	char		names[LEASE_NAME_MAX + NAMEDATALEN];
}			hints[HINTS];

/*
 * And where it last saw a lease's row, so that the next look goes there first.
 * Wrong as often as the row was changed since: the row found there tells, by
 * its name and by whether it is to be seen.  The primary key goes with it,
 * which makes what is seen there the only one of its name.
 */
static struct
{
	Oid			relid;
	Oid			pkey;
	uint32		hash;			/* of the name */
	ItemPointerData tid;
}			places[HINTS];

static uint32
name_hash(LeaseName role)
{
	return hash_bytes((const unsigned char *) role.data, role.len);
}

static int
hint_slot(LeaseName role)
{
	return name_hash(role) % HINTS;
}

void
lease_hint_remember(Oid relid, const LeaseRow *row)
{
	int			i = hint_slot(row->role);

	if (row->role.len > LEASE_NAME_MAX || row->owner.len >= NAMEDATALEN)
		elog(ERROR, "name or owner of lease \"%.*s\" is too long",
			 NAME_ARGS(row->role));
	memcpy(hints[i].names, row->role.data, row->role.len);
	memcpy(hints[i].names + row->role.len, row->owner.data, row->owner.len);
	hints[i].role.data = hints[i].names;
	hints[i].role.len = row->role.len;
	hints[i].owner.data = hints[i].names + row->role.len;
	hints[i].owner.len = row->owner.len;
	hints[i].number = row->number;
	hints[i].relid = relid;
}

void
lease_hint_forget(LeaseName role)
{
	hints[hint_slot(role)].relid = InvalidOid;
}

bool
lease_hint_find(Oid relid, LeaseName role, uint32 *number, LeaseName *owner)
{
	int			i = hint_slot(role);

	if (hints[i].relid != relid || !lease_name_equal(hints[i].role, role))
		return false;
	*number = hints[i].number;
	*owner = hints[i].owner;
	return true;
}

void
lease_hint_set_place(Oid relid, Oid pkey, LeaseName role, ItemPointer tid)
{
	uint32		hash = name_hash(role);
	int			i = hash % HINTS;

	places[i].relid = relid;
	places[i].pkey = pkey;
	places[i].hash = hash;
	places[i].tid = *tid;
}

bool
lease_hint_place(Oid relid, Oid pkey, LeaseName role, ItemPointer tid)
{
	uint32		hash = name_hash(role);
	int			i = hash % HINTS;

	if (places[i].relid != relid || places[i].pkey != pkey ||
		places[i].hash != hash)
		return false;
	*tid = places[i].tid;
	return true;
}
