/*-------------------------------------------------------------------------
 *
 * versions.h
 *	  Every difference between PostgreSQL's major versions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEADER_LEASE_VERSIONS_H
#define LEADER_LEASE_VERSIONS_H

#if PG_VERSION_NUM < 150000
#error "leader_lease needs PostgreSQL 15 or later"
#endif

#if PG_VERSION_NUM < 160000
typedef bool LeaseUpdatedIndexes;
#define LEASE_NEEDS_INDEX_UPDATE(u)	(u)
#define LEASE_INSERT_INDEX_TUPLES(rri, slot, estate, u) \
	ExecInsertIndexTuples(rri, slot, estate, true, false, NULL, NIL)
#define LEASE_OWNS_CLASS(relid, roleid)	pg_class_ownercheck(relid, roleid)
#define LEASE_MAY_BECOME(member, role)	is_member_of_role(member, role)
typedef void LeaseJsonResult;
#define LEASE_JSON_RETURN	return
#else
#include "common/jsonapi.h"
typedef TU_UpdateIndexes LeaseUpdatedIndexes;
#define LEASE_NEEDS_INDEX_UPDATE(u)	((u) != TU_None)
#if PG_VERSION_NUM < 190000
#define LEASE_INSERT_INDEX_TUPLES(rri, slot, estate, u) \
	ExecInsertIndexTuples(rri, slot, estate, true, false, NULL, NIL, \
						  (u) == TU_Summarizing)
#else
#define LEASE_INSERT_INDEX_TUPLES(rri, slot, estate, u) \
	ExecInsertIndexTuples(rri, estate, EIIT_IS_UPDATE | \
						  ((u) == TU_Summarizing ? EIIT_ONLY_SUMMARIZING : 0), \
						  slot, NIL, NULL)
#endif
#define LEASE_OWNS_CLASS(relid, roleid) \
	object_ownercheck(RelationRelationId, relid, roleid)
#define LEASE_MAY_BECOME(member, role)	member_can_set_role(member, role)
typedef JsonParseErrorType LeaseJsonResult;
#define LEASE_JSON_RETURN	return JSON_SUCCESS
#endif

#if PG_VERSION_NUM < 170000
#include "storage/sinvaladt.h"
#define LEASE_LOCK_HELD(tag, mode)		LockHeldByMe(tag, mode)
#define LEASE_VXID_PROC(vxid) \
	((vxid).backendId == InvalidBackendId ? NULL : \
	 BackendIdGetProc((vxid).backendId))
#define LEASE_PROC_LXID(proc)	((proc)->lxid)
#define LEASE_JSON_LEXER(str, len) \
	makeJsonLexContextCstringLen(str, len, GetDatabaseEncoding(), true)
#define INTERVAL_NOT_FINITE(i)			false
#else
#define LEASE_LOCK_HELD(tag, mode)		LockHeldByMe(tag, mode, false)
#define LEASE_VXID_PROC(vxid) \
	((vxid).procNumber == INVALID_PROC_NUMBER ? NULL : \
	 ProcNumberGetProc((vxid).procNumber))
#define LEASE_PROC_LXID(proc)	((proc)->vxid.lxid)
#define LEASE_JSON_LEXER(str, len) \
	makeJsonLexContextCstringLen(NULL, str, len, GetDatabaseEncoding(), true)
#endif

#if PG_VERSION_NUM < 190000
#define LEASE_TUPLE_UPDATE(rel, tid, slot, cid, snapshot, failure, mode, u) \
	table_tuple_update(rel, tid, slot, cid, snapshot, InvalidSnapshot, true, \
					   failure, mode, u)
#else
#define LEASE_TUPLE_UPDATE(rel, tid, slot, cid, snapshot, failure, mode, u) \
	table_tuple_update(rel, tid, slot, cid, 0, snapshot, InvalidSnapshot, true, \
					   failure, mode, u)
#endif

#if PG_VERSION_NUM < 180000
#define LEASE_PRIMARY_KEY(rel)			RelationGetPrimaryKeyIndex(rel)
#define LEASE_INDEX_BEGINSCAN(h, i, s)	index_beginscan(h, i, s, 1, 0)
#else
#define LEASE_PRIMARY_KEY(rel)			RelationGetPrimaryKeyIndex(rel, false)
#if PG_VERSION_NUM < 190000
#define LEASE_INDEX_BEGINSCAN(h, i, s)	index_beginscan(h, i, s, NULL, 1, 0)
#else
#define LEASE_INDEX_BEGINSCAN(h, i, s)	index_beginscan(h, i, s, NULL, 1, 0, 0)
#endif
#endif

#endif							/* LEADER_LEASE_VERSIONS_H */
