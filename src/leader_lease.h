/*-------------------------------------------------------------------------
 *
 * leader_lease.h
 *	  What the files of leader_lease share.
 *
 * Data goes one way: SQL function (lease.c, guard.c, table_guard.c) ->
 * policy (lease_term.c, lease_access.c, fence.c) -> row, lock and clock
 * (lease_table.c, lease_lock.c, lease_clock.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEADER_LEASE_H
#define LEADER_LEASE_H

#include "access/skey.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "datatype/timestamp.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "storage/lock.h"
#include "utils/rel.h"

#include "versions.h"

/*
 * From libpq/libpq.h, which wants the headers of every library that the server
 * was built with, and those are not installed with the server's own.
 */
extern bool pq_check_connection(void);

/* names and errors ------------------------------------------------------ */

#define LEASE_NAME_MAX		255 /* bytes of a lease's or a holder's name */

#define ERRCODE_STALE_FENCE		MAKE_SQLSTATE('L','F','0','0','1')
#define ERRCODE_FENCE_REQUIRED	MAKE_SQLSTATE('L','F','0','0','2')

/*
 * A string that belongs to somebody else: an argument, or an attribute of a
 * row for as long as that row is held.  data is NULL where SQL has NULL.
 */
typedef struct LeaseName
{
	const char *data;
	int			len;
} LeaseName;

/* for errmsg("... \"%.*s\"", NAME_ARGS(name)) */
#define NAME_ARGS(n)	(n).len, (n).data

/* a copy of one's own, in the current memory context */
static inline LeaseName
lease_name_copy(LeaseName name)
{
	LeaseName	copy = {pnstrdup(name.data, name.len), name.len};

	return copy;
}

static inline bool
lease_name_equal(LeaseName a, LeaseName b)
{
	return a.data != NULL && b.data != NULL && a.len == b.len &&
		memcmp(a.data, b.data, a.len) == 0;
}

/* the row (lease_row.c, lease_table.c, lease_seek.c, lease_hint.c) --------- */

typedef struct LeaseRow
{
	LeaseName	role;
	LeaseName	holder;			/* nobody yet: data is NULL */
	int64		token;
	TimestampTz expires_at;
	uint32		number;			/* names the lease's heavyweight locks */
	LeaseName	owner;
	int64		usual_ttl;		/* microseconds; 0: none of its own */
	int64		ttl;			/* of the present term; 0: no term */
	TimestampTz acquired_at;
	TimestampTz renewed_at;		/* the ttl counts from here */
	int64		deadline;		/* boot-time clock, in boot; 0: none */
	int64		boot;
	int64		origin;			/* 0: no term in this database yet */
	FullTransactionId granted_xid;
	CommandId	granted_cid;
	LeaseName	ended;			/* how the term ended, if it was ended */
	int64		session;		/* key of the session lock it depends on; 0 */
} LeaseRow;

/* An open lease table and the row last found in it. */
typedef struct LeaseTable
{
	Relation	rel;
	bool		for_update;
	bool		written;
	ItemPointerData tid;		/* of the row last locked, or tried */
	TupleTableSlot *slot;
	LeaseRow	row;
} LeaseTable;

/* What the row's lock gave (lease_table_lock_row). */
typedef enum LeaseRowLock
{
	LEASE_ROW_LOCKED,
	LEASE_ROW_BUSY,				/* another transaction is at it */
	LEASE_ROW_CHANGED			/* no longer the newest version: look again */
} LeaseRowLock;

extern Datum lease_name_datum(LeaseName name);
extern void lease_row_init(void);
extern Oid	lease_table_oid(FunctionCallInfo fcinfo);
extern Oid	lease_observed_oid(FunctionCallInfo fcinfo);
extern AttrNumber lease_row_key(Relation rel);
extern void lease_row_decode(Relation rel, TupleTableSlot *slot, LeaseRow *row);
extern void lease_row_decode_tuple(Relation rel, HeapTuple tuple, LeaseRow *row);
extern void lease_row_require_not_null(Relation rel, HeapTuple tuple);
extern HeapTuple lease_row_encode(Relation rel, HeapTuple tuple,
								  const LeaseRow *row);
extern void lease_row_put_time(Relation rel, const LeaseRow *row,
							   Datum *values, bool *isnull,
							   bool *replaces);
extern void lease_row_put(Relation rel, const LeaseRow *row,
						  Datum *values, bool *isnull, bool *replaces);

extern void lease_table_open(LeaseTable *table, Oid relid);
extern void lease_table_for_update(LeaseTable *table);
extern void lease_table_close(LeaseTable *table);
extern bool lease_table_find(LeaseTable *table, LeaseName role);
extern HeapTuple lease_table_conflicting(Relation rel, HeapTuple tuple,
										 LeaseRow *row);
extern void lease_table_unpin(LeaseTable *table);
extern void lease_table_require_unchanged(LeaseTable *table);
extern LeaseRowLock lease_table_lock_row(LeaseTable *table);
extern bool lease_table_untouched(LeaseTable *table);
extern bool lease_table_untouched_at(LeaseTable *table, ItemPointer tid);
extern bool lease_table_await_row(LeaseTable *table, int64 limit);
extern bool lease_table_hold_row(LeaseTable *table);
extern void lease_table_update(LeaseTable *table, const LeaseRow *row);
extern void lease_table_remember(LeaseTable *table, TupleTableSlot *written,
								 LeaseName role);
extern TupleTableSlot *lease_table_copy(Relation rel, TupleTableSlot *from);
extern bool lease_table_lock_copy(Relation rel, TupleTableSlot *copy);
extern void lease_table_write(Relation rel, TupleTableSlot *slot);
extern bool lease_table_try_write(Relation rel, TupleTableSlot *slot,
								  LeaseName role);
extern AttrNumber lease_table_column(Relation rel, const char *name,
									 Oid type);

extern List *lease_table_tuples(Relation rel, Snapshot snapshot, int nkeys,
								ScanKeyData *keys);
extern void lease_table_load(Relation rel, HeapTuple tuple,
							 TupleTableSlot *slot);
extern Oid	lease_table_index(Relation rel, int nkeys, const ScanKeyData *keys);
extern List *lease_table_seek(Relation rel, int nkeys, ScanKeyData *keys);

extern void lease_hint_forget(LeaseName role);
extern void lease_hint_remember(Oid relid, const LeaseRow *row);
extern bool lease_hint_find(Oid relid, LeaseName role,
							uint32 *number, LeaseName *owner);
extern void lease_hint_set_place(Oid relid, Oid pkey, LeaseName role,
								 ItemPointer tid);
extern bool lease_hint_place(Oid relid, Oid pkey, LeaseName role,
							 ItemPointer tid);

/* locks (lease_lock.c) --------------------------------------------------- */

typedef enum LeaseGuarded
{
	GUARDED_DONE,
	GUARDED_TIMEOUT				/* the limit passed; nothing was done */
} LeaseGuarded;

extern LeaseGuarded lease_guarded(void (*work) (void *), void *arg,
								  int64 limit, bool rollback);
extern bool lease_lock(Oid relid, uint32 number, LOCKMODE mode, int64 limit);
extern void lease_unlock(Oid relid, uint32 number, LOCKMODE mode);
extern bool lease_lock_held(Oid relid, uint32 number, LOCKMODE mode);

extern bool lease_creation_lock(Oid relid, LeaseName role, int64 limit);
extern void lease_creation_unlock(Oid relid, LeaseName role);
extern bool lease_queue_lock(Oid relid, uint32 number, int64 limit);

extern void lease_session_lock(Oid relid, uint32 key);
extern void lease_session_unlock(Oid relid, uint32 key);
extern bool lease_session_lock_held(Oid relid, uint32 key);
extern bool lease_session_lives(Oid relid, uint32 key);

/* Another transaction that has a lease's lock: a backend's or a prepared one. */
typedef struct LeaseLockHolder
{
	VirtualTransactionId vxid;
	int			pid;			/* 0: prepared */
	TransactionId prepared;
} LeaseLockHolder;

extern int	lease_lock_holders(Oid relid, uint32 number, LOCKMODE mode,
							   LeaseLockHolder **holders);

/* who is in the way of a takeover (lease_evict.c) -------------------------- */

extern char *lease_holders_text(Oid relid, const LeaseLockHolder *holders,
								int count);
extern void lease_evict_watch(Oid relid, const LeaseRow *row);
extern void lease_evict(LeaseTable *table, LeaseName role, bool force);

/* making a row (lease_create.c) ------------------------------------------- */

typedef enum LeaseCreated
{
	CREATED,
	CREATED_BEFORE,				/* there is one of that name */
	CREATED_NOT					/* the limit passed */
} LeaseCreated;

extern uint32 lease_number_draw(Relation rel);
extern LeaseCreated lease_create_row(Oid relid, LeaseName role,
									 LeaseName owner, int64 ttl,
									 int64 limit);
extern LeaseCreated lease_create_absent(Oid relid, LeaseName role,
										int64 limit);

/* SQL on the extension's tables (lease_spi.c) ----------------------------- */

extern void lease_spi_as_owner(Oid relid, const char *command, int nargs,
							   Oid *types, Datum *values, const char *nulls);

/* the record of origins (lease_origin.c) ---------------------------------- */

extern int64 lease_origin(Oid relid);
extern int64 lease_next_token(Oid relid, const LeaseRow *row);

/* clocks (lease_clock.c) ------------------------------------------------- */

typedef struct LeaseMoment
{
	TimestampTz wall;
	int64		boottime;		/* microseconds, never stepped */
} LeaseMoment;

extern void lease_clock_read(LeaseMoment *now);
extern int64 lease_clock_remaining(const LeaseRow *row,
								   const LeaseMoment *now);
extern TimestampTz lease_clock_ended_at(const LeaseRow *row,
										const LeaseMoment *now);
extern void lease_clock_extend(LeaseRow *row, const LeaseMoment *now,
							   int64 ttl);
extern int64 lease_ttl_from_interval(const Interval *interval);
extern void lease_ttl_check(int64 ttl);
extern Interval *lease_interval(int64 usecs);

/* what counts as the current term (lease_term.c) ------------------------- */

typedef enum LeaseVerdict
{
	TERM_CURRENT,
	TERM_NO_LEASE,
	TERM_OTHER_TOKEN,
	TERM_OTHER_HOLDER,
	TERM_BEFORE_FAILOVER,
	TERM_ENDED,
	TERM_EXPIRED,
	TERM_SESSION_ENDED
} LeaseVerdict;

extern LeaseVerdict lease_term_judge(Oid relid, const LeaseRow *row,
									 LeaseName holder, int64 token,
									 const LeaseMoment *now);
extern bool lease_term_live(Oid relid, const LeaseRow *row,
							const LeaseMoment *now);
extern bool lease_term_open(const LeaseRow *row);
extern int64 lease_term_choose_ttl(const LeaseRow *row, int64 asked, bool live);
extern void lease_term_begin(Oid relid, LeaseRow *row, LeaseName holder,
							 int64 token);
extern void lease_term_end(LeaseRow *row, const char *how,
						   const LeaseMoment *now);
extern const char *lease_term_state(Oid relid, const LeaseRow *row,
									const LeaseMoment *now);

/* who may (lease_access.c) ----------------------------------------------- */

extern LeaseName lease_arg_name(FunctionCallInfo fcinfo, int argno,
								const char *what);
extern LeaseName *lease_arg_names(FunctionCallInfo fcinfo, int argno,
								  const char *what, int *count);
extern int64 lease_arg_token(FunctionCallInfo fcinfo, int argno);
extern int64 lease_arg_ttl(FunctionCallInfo fcinfo, int argno);
extern void lease_require_writable(const char *command);
extern void lease_check_name(LeaseName name, const char *what);
extern bool lease_access_allowed(LeaseName owner, Oid userid);
extern void lease_access_require(const LeaseRow *row);
extern bool lease_access_restores(Oid relid);
extern void lease_access_require_grantable(Oid relid, LeaseName owner);
extern LeaseName lease_access_default_owner(void);

/* acquiring (lease.c) and every kind of takeover (lease_takeover.c) --------- */

typedef enum LeaseStep
{
	STEP_DONE,					/* decided: won or lost */
	STEP_AGAIN,					/* something moved: look again, at once */
	STEP_BUSY					/* somebody is at the row: wait for him first */
} LeaseStep;

typedef enum TakeoverKind
{
	TAKEOVER_ACQUIRE,			/* the old term is over */
	TAKEOVER_TRANSFER,			/* its holder gives it to another */
	TAKEOVER_REVOKE				/* whatever term there is ends */
} TakeoverKind;

typedef struct Takeover
{
	TakeoverKind kind;
	Oid			relid;
	LeaseName	role;
	LeaseName	giver;			/* of a transfer, with his token */
	int64		giver_token;
	LeaseName	holder;			/* of the new term; nobody: data is NULL */
	int64		ttl;			/* microseconds; 0: not said */
	int64		min_token;
	bool		force;			/* terminate the fences in the way */

	/* what came of it */
	int64		token;			/* 0: nothing */
	int64		granted;		/* the ttl */
	int			nblockers;
	LeaseLockHolder *blockers;
} Takeover;

typedef struct LeaseOutcome
{
	int64		token;			/* 0: none */
	bool		renewed;
	int64		ttl;
	LeaseName	leader;			/* who leads, when known */
	int64		retry_after;
	int			nblockers;
	LeaseLockHolder *blockers;
} LeaseOutcome;

extern void lease_try(Oid relid, LeaseName role, LeaseName holder, int64 ttl,
					  int64 limit, LeaseOutcome *outcome);
extern bool lease_takeover_called_for(const Takeover *takeover,
									  const LeaseRow *row,
									  const LeaseMoment *now);
extern LeaseStep lease_take_over(LeaseTable *table, Takeover *takeover,
								 int64 limit);

/* prolonging (lease_prolong.c) and ending (lease.c) a term ----------------- */

extern LeaseStep lease_prolong_version(LeaseTable *table,
									   TupleTableSlot *slot,
									   LeaseName holder, int64 token,
									   int64 *ttl);
extern LeaseStep lease_prolong(LeaseTable *table, LeaseName holder,
							   int64 token, int64 *ttl);
extern LeaseStep lease_end_term(LeaseTable *table, LeaseName holder,
								int64 token);

/* what is told of a change: notices and history (lease_event.c) ------------ */

extern void lease_event(Oid relid, const LeaseRow *old, const LeaseRow *new,
						const char *event, const LeaseMoment *now);

/* the fence and the transaction's memory (fence.c, fence_memory.c) -------- */

typedef struct Fence Fence;

typedef enum FenceVerdict
{
	FENCE_HELD,
	FENCE_STALE,				/* .. see FenceFailure.why */
	FENCE_REQUIRED,				/* nothing was shown */
	FENCE_DENIED,				/* not the caller's lease */
	FENCE_BUSY,					/* a takeover is under way */
	FENCE_NOT_SEEN,				/* the term is newer than the snapshot */
	FENCE_TOO_EARLY				/* the term is this statement's own */
} FenceVerdict;

typedef struct FenceFailure
{
	LeaseName	role;
	LeaseVerdict why;			/* for FENCE_STALE */
	int64		token;			/* what was shown */
	int64		current;		/* what is current */
	const char *detail;			/* for FENCE_REQUIRED */
	const char *hint;			/* NULL: the usual one */
	bool		nowait;			/* told: wait for nobody */
	Oid			relid;			/* whose locks the blockers hold */
	int			nblockers;		/* for FENCE_BUSY of an observation */
	LeaseLockHolder *blockers;
} FenceFailure;

extern FenceVerdict fence_take(Oid relid, LeaseName role, LeaseName holder,
							   int64 token, Oid userid, Fence **fence,
							   FenceFailure *failure);
extern FenceVerdict fence_explain(Oid relid, LeaseName role, bool shown,
								  int64 token, Oid userid,
								  FenceFailure *failure);
extern void fence_report(int elevel, FenceVerdict verdict,
						 const FenceFailure *failure, Relation target);

extern Fence *fence_remember(Oid relid, const LeaseRow *row, Oid userid);
extern Fence *fence_find(Oid relid, LeaseName role);
extern Fence *fence_find_own(Oid relid, LeaseName role, LeaseName holder,
							 int64 token, Oid userid);
extern FenceVerdict fence_seen(Fence *fence);
extern void fence_note_term(void);
extern void fence_note_begun_here(Fence *fence);
extern bool fence_begun_by_us(const Fence *fence);
extern bool fence_was_ended(Oid relid, LeaseName role);
extern int64 fence_token(const Fence *fence);
extern uint64 fence_generation(void);
extern void fence_end_term(Oid relid, uint32 number);
extern void fence_init(void);

/* what a changed lease asks of the commit (lease_xact.c) ------------------ */

extern void lease_xact_changed(void);
extern void lease_xact_init(void);

/* session leases (lease_session.c) ---------------------------------------- */

extern void lease_session_init(void);

/* settings (leader_lease.c, claim.c) ------------------------------------- */

extern int	lease_default_ttl;
extern int	lease_max_ttl;
extern int	lease_takeover_timeout;
extern bool lease_auto_create;
extern int	lease_evict_after;
extern int	lease_history_retention;
extern int	lease_slot_retention;
extern bool lease_notify;
extern char *lease_default_owner;
extern char *lease_claim;

/* takeover_timeout in the unit of lease_lock: microseconds, -1 no limit */
static inline int64
lease_takeover_limit(void)
{
	return lease_takeover_timeout < 0 ? -1 :
		lease_takeover_timeout * INT64CONST(1000);
}

typedef struct LeaseClaim
{
	LeaseName	role;
	LeaseName	holder;
	int64		token;
} LeaseClaim;

typedef enum LeaseClaimFound
{
	CLAIM_FOUND,
	CLAIM_NONE,					/* empty, or names other leases only */
	CLAIM_BAD					/* see problem */
} LeaseClaimFound;

extern LeaseClaimFound lease_claim_find(LeaseName role, LeaseClaim *claim,
										const char **problem);
extern bool lease_claim_syntax(const char *value);

#endif							/* LEADER_LEASE_H */
