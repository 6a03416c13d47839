/*-------------------------------------------------------------------------
 *
 * lease_clock.c
 *	  The two clocks of a term, and how long it is.
 *
 * expires_at is wall clock, so that people and statements written by hand can
 * read it; but a wall clock gets stepped.  Beside it the row keeps a deadline
 * on the boot-time clock, which no one sets and which counts through suspend,
 * and the boot it belongs to.  In the same boot the deadline alone decides,
 * also over a restart of the server.  In another boot, on another machine, or
 * where a statement wrote expires_at by hand, the wall clock decides, within
 * bounds: a term lives at most its ttl from its start, or from the server's
 * start where that is later, so that no step of the clock makes a dead
 * holder's lease immortal.
 *
 * now() is never read here: it is the transaction's start, and this code runs
 * after waits.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "common/hashfn.h"
#include "common/int.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "leader_lease.h"

#ifdef CLOCK_BOOTTIME
#define LEASE_CLOCK CLOCK_BOOTTIME
#else
#define LEASE_CLOCK CLOCK_MONOTONIC
#endif

/*
 * Appends a small file of /proc to a hash.  False where there is none.
 */
static bool
hash_file(const char *path, uint64 *hash)
{
	char		buf[512];
	int			fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t		len;

	if (fd < 0)
		return false;
	len = read(fd, buf, sizeof(buf));
	close(fd);
	if (len <= 0)
		return false;
	*hash = hash_bytes_extended((unsigned char *) buf, len, *hash);
	return true;
}

/*
 * Which boot the boot-time clock counts from: the kernel's boot id together
 * with the offsets of the time namespace, since a container with offsets of
 * its own counts differently under the same boot id.  Where the kernel tells
 * no boot id, the server's start stands for it: then a restart of the server
 * is another boot, which errs towards the wall clock's bounds.  Neither can
 * change while this process lives.  Never 0.
 */
static int64
boot_identity(void)
{
	static int64 boot = 0;

	if (boot == 0)
	{
		uint64		hash = 0;

#ifdef CLOCK_BOOTTIME
		if (hash_file("/proc/sys/kernel/random/boot_id", &hash))
			hash_file("/proc/self/timens_offsets", &hash);
		else
#endif
			hash = hash_bytes_extended((unsigned char *) &PgStartTime,
									   sizeof(PgStartTime), 0);
		boot = hash == 0 ? 1 : (int64) hash;
	}
	return boot;
}

/*
 * Reads both clocks.  Call it after the last wait before a decision.
 */
void
lease_clock_read(LeaseMoment *now)
{
	struct timespec ts;

	if (clock_gettime(LEASE_CLOCK, &ts) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_SYSTEM_ERROR),
				 errmsg("could not read the boot-time clock: %m")));
	now->boottime = (int64) ts.tv_sec * USECS_PER_SEC + ts.tv_nsec / 1000;
	now->wall = GetCurrentTimestamp();
}

/*
 * Microseconds until the row's time is up, by the clock that decides for it;
 * 0 or less when it is up.  Looks at time only: whether the term was ended,
 * or is of another origin, is lease_term.c's business.
 */
int64
lease_clock_remaining(const LeaseRow *row, const LeaseMoment *now)
{
	TimestampTz start = Max(row->renewed_at, PgStartTime);
	TimestampTz end;

	if (row->deadline != 0 && row->boot == boot_identity())
		return row->deadline - now->boottime;

	if (pg_add_s64_overflow(start, row->ttl, &end))
		return 0;
	end = Min(end, row->expires_at);
	if (now->wall < start || now->wall >= end)
		return 0;
	return end - now->wall;
}

/*
 * When, on the wall clock, the row's time ran out: for the history, which
 * tells that and not when it was noticed.
 */
TimestampTz
lease_clock_ended_at(const LeaseRow *row, const LeaseMoment *now)
{
	TimestampTz end;

	if (row->deadline != 0 && row->boot == boot_identity())
	{
		end = now->wall + (row->deadline - now->boottime);

		/* the clocks are read one after the other: that is no step */
		if (end > row->expires_at - USECS_PER_SEC &&
			end < row->expires_at + USECS_PER_SEC)
			end = row->expires_at;
	}
	else if (pg_add_s64_overflow(row->renewed_at, row->ttl, &end))
		end = row->expires_at;
	else
		end = Min(end, row->expires_at);
	return Min(end, now->wall);
}

/*
 * Lets the term run for ttl microseconds from now, by both clocks.
 */
void
lease_clock_extend(LeaseRow *row, const LeaseMoment *now, int64 ttl)
{
	row->ttl = ttl;
	row->renewed_at = now->wall;
	row->expires_at = now->wall + ttl;
	row->deadline = now->boottime + ttl;
	row->boot = boot_identity();
}

/*
 * The length of an interval from now, in microseconds.  Months and days count
 * as the calendar has them from now, in UTC: the session's time zone and its
 * daylight-saving days must not change how long a lease is.
 */
int64
lease_ttl_from_interval(const Interval *interval)
{
	TimestampTz now = GetCurrentTimestamp();
	double		rough;
	Timestamp	end;

	/* what the calendar cannot hold is refused here, in our own words */
	rough = (double) interval->time +
		((double) interval->month * 31 + interval->day) * USECS_PER_DAY;
	if (INTERVAL_NOT_FINITE(interval) ||
		rough > 1000.0 * 366 * USECS_PER_DAY ||
		rough < -1000.0 * 366 * USECS_PER_DAY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ttl of a lease is out of range"),
				 errhint("A ttl is more than zero and at most leader_lease.max_ttl.")));

	end = DatumGetTimestamp(DirectFunctionCall2(timestamp_pl_interval,
												TimestampGetDatum(now),
												IntervalPGetDatum(interval)));
	return end - now;
}

/*
 * Refuses a ttl that is not positive or above leader_lease.max_ttl.
 */
void
lease_ttl_check(int64 ttl)
{
	if (ttl <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ttl of a lease must be more than zero")));
	if (ttl > lease_max_ttl * USECS_PER_SEC)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ttl of a lease is above leader_lease.max_ttl"),
				 errdetail("The limit is %d seconds.", lease_max_ttl),
				 errhint("Ask for less and renew, or let a superuser raise leader_lease.max_ttl.")));
}

/*
 * Microseconds as an interval of time alone.
 */
Interval *
lease_interval(int64 usecs)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = usecs;
	return interval;
}
