/*
 * A worker in C with libpq that works only while it leads.  Copy it.
 *
 *     examples/c/run
 *
 * It competes for the lease LEASE_ROLE.  While it leads, it completes one row of the table job after another (see
 * ../schema.sql), each with the fencing token of its term.  The PG* variables say where the database is.  SIGTERM or
 * SIGINT: it finishes the job in hand, or stops waiting, gives the lease back and exits 0.
 *
 * Two clocks guard the work.  The worker's own stops it early: it begins nothing after the deadline of its term.  That
 * is no proof, since a pause can come right after the look at the clock.  The proof is the fence: the database refuses
 * a write that shows the token of a term that is over (SQLSTATE LF001).
 *
 * The worker never waits inside of libpq, but in poll(), with a time limit and a second descriptor that wakes it: so a
 * server that does not answer cannot hold it past its deadline, nor past SIGTERM.  (Only the look-up of a name can, when
 * it connects; PGHOSTADDR avoids that.)
 *
 * Nothing depends on the session, and PQsendQueryParams uses the unnamed statement in a single round trip, so
 * transaction pooling works (pgbouncer).  Mind that there each waiting lease_campaign holds a server connection: the
 * pool has to be larger than the number of workers.
 */
#include <libpq-fe.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000)	/* all times are in microseconds */
#define NONE INT64_MIN			/* what NULL, or no row, becomes */
#define MAX_WAIT "30"			/* seconds in the queue until we ask again, so that a dead connection shows */

enum outcome
{
	DONE,
	ENDED,						/* the term is over */
	LOST						/* the connection is of no more use */
};

struct term
{
	char		token[24];
	_Atomic int64_t deadline;	/* on our clock; 0: the database says it is over */
	int			over;			/* eventfd, readable: the heartbeat found the term over */
	int			stop;			/* eventfd, readable: no more renewals */
};

static const char *role;
static const char *ttl;			/* seconds, as the environment says */
static int64_t ttl_us;
static int64_t work_us;
static char holder[256];
static int	leave_fd;			/* readable once SIGTERM or SIGINT has come */
static int	cancel_sent;		/* eventfd, readable: a cancel request has reached the server */
static _Thread_local char why[256];		/* the last failure */

/* A clock that nobody can set, and that goes on while the machine is suspended, as the lease does. */
static int64_t
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_BOOTTIME, &t);
	return t.tv_sec * SECOND + t.tv_nsec / 1000;
}

/* Wait until `fd` is ready.  False when it is not, but `wake` is readable or the time is up.  Either may be -1. */
static bool
await(int fd, short events, int wake, int64_t until)
{
	struct pollfd fds[] = {{fd, events, 0}, {wake, POLLIN, 0}};
	int64_t		left;

	do
	{
		/* at most a second at a time, because the clock of poll() does stand still in suspend */
		left = until - now();
		poll(fds, 2, left <= 0 ? 0 : left < SECOND ? left / 1000 + 1 : 1000);
	} while (left > 0 && !fds[0].revents && !fds[1].revents);
	return fds[0].revents != 0;
}

/* Has the descriptor become readable?  Nobody ever reads from leave_fd, over and stop: once raised, they stay. */
static bool
raised(int fd)
{
	struct pollfd flag = {fd, POLLIN, 0};

	return poll(&flag, 1, 0) > 0;
}

static void
say(const char *event, const char *token, const char *rest)
{
	printf("%s %s%s%s%s%s\n", holder, event, token ? " token=" : "", token ? token : "",
		   rest ? ": " : "", rest ? rest : "");
}

static void
explain(const char *sqlstate, const char *message)
{
	snprintf(why, sizeof why, "%s%s%.*s", sqlstate ? sqlstate : "", sqlstate ? " " : "",
			 (int) strcspn(message, "\n"), message);
}

/* Connect in the time there is.  PQconnectdb would not notice a signal, and its timeout counts per address. */
static PGconn *
connect_db(int64_t until, int wake)
{
	char		user_timeout[24];
	/* the rest comes from the environment; these find a peer that is gone while we wait in the queue */
	const char *const keys[] = {"fallback_application_name", "keepalives_idle", "keepalives_interval",
		"keepalives_count", "tcp_user_timeout", NULL};
	const char *const values[] = {holder, "5", "2", "3", user_timeout, NULL};
	PostgresPollingStatusType polling = PGRES_POLLING_WRITING;
	PGconn	   *db;

	snprintf(user_timeout, sizeof user_timeout, "%lld", (long long) ttl_us / 1000);
	db = PQconnectStartParams(keys, values, 0);
	while (PQstatus(db) != CONNECTION_BAD && polling != PGRES_POLLING_OK)
	{
		if (!await(PQsocket(db), polling == PGRES_POLLING_READING ? POLLIN : POLLOUT, wake, until))
			break;
		polling = PQconnectPoll(db);
	}
	if (polling == PGRES_POLLING_OK)
		return db;
	explain(NULL, PQstatus(db) == CONNECTION_BAD ? PQerrorMessage(db) : "no connection in time");
	PQfinish(db);
	return NULL;
}

/* The first result of what was sent; NULL when it is not complete before the time is up or `wake` is readable. */
static PGresult *
answer(PGconn *db, int64_t until, int wake)
{
	PGresult   *result = NULL;
	PGresult   *next;

	for (;;)
	{
		while (PQisBusy(db))
		{
			if (!await(PQsocket(db), POLLIN, wake, until))
			{
				PQclear(result);
				return NULL;
			}
			if (!PQconsumeInput(db))
				break;			/* PQgetResult makes an error of it */
		}
		if ((next = PQgetResult(db)) == NULL)
			return result;
		if (result)
			PQclear(next);		/* "connection closed", after the error that says why */
		else
			result = next;
	}
}

/* Read a result of one number and free it.  A bigint is read as such: a double would round it. */
static enum outcome
read_number(PGconn *db, PGresult *result, int64_t *number)
{
	enum outcome outcome = LOST;
	const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	*number = NONE;
	if (PQresultStatus(result) == PGRES_TUPLES_OK)
	{
		outcome = DONE;
		if (PQntuples(result) == 1 && !PQgetisnull(result, 0, 0))
			*number = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
	}
	else if (sqlstate && strcmp(sqlstate, "LF001") == 0)
		outcome = ENDED;
	if (outcome != DONE)
		explain(sqlstate, message ? message : PQerrorMessage(db)[0] ? PQerrorMessage(db) : "no answer in time");
	PQclear(result);
	return outcome;
}

static enum outcome
ask(PGconn *db, int64_t until, int wake, int64_t *number, const char *sql, int n, const char *const *values)
{
	PGresult   *result = NULL;

	if (PQsendQueryParams(db, sql, n, NULL, values, NULL, NULL, 0))
		result = answer(db, until, wake);
	return read_number(db, result, number);
}

static void *
send_cancel(void *request)
{
	char		error[256];

	if (!PQcancel(request, error, sizeof error))
		fprintf(stderr, "%s %s", holder, error);
	PQfreeCancel(request);
	eventfd_write(cancel_sent, 1);
	return NULL;
}

/*
 * Ask the server to cancel what it is doing for us.  In a thread, because PQcancel waits without limit until the server
 * hangs up.  We do wait for that, within reason: a cancel request that is cut off crashes pgbouncer 1.18.
 */
static void
cancel(PGconn *db)
{
	PGcancel   *request = PQgetCancel(db);
	pthread_t	thread;
	eventfd_t	count;

	if (request == NULL || pthread_create(&thread, NULL, send_cancel, request) != 0)
		return;
	pthread_detach(thread);
	if (await(cancel_sent, POLLIN, -1, now() + ttl_us / 3))
		eventfd_read(cancel_sent, &count);
}

/* Wait in turn for the lease.  NONE after MAX_WAIT; LOST, with the call still under way, when asked to leave. */
static enum outcome
campaign(PGconn *db, int64_t *token)
{
	const char *const values[] = {role, holder, ttl, MAX_WAIT};

	/* by itself, since it must not be in a transaction block; its INOUT parameter comes back as a row */
	return ask(db, now() + (atoi(MAX_WAIT) + 10) * SECOND, leave_fd, token,
			   "CALL lease_campaign($1, $2, make_interval(secs => $3), make_interval(secs => $4))", 4, values);
}

/* Give back whatever term is ours.  Ask the database, which alone knows after a cancelled campaign. */
static void
give_back(PGconn *db)
{
	const char *const values[] = {role, holder};
	char		token[24];
	int64_t		released;

	if (ask(db, now() + ttl_us / 3, -1, &released,
			"SELECT CASE WHEN lease_release(role, holder_id, fencing_token) THEN fencing_token END"
			"  FROM lease_status WHERE role = $1 AND holder_id = $2 AND live", 2, values) == DONE && released != NONE)
	{
		snprintf(token, sizeof token, "%lld", (long long) released);
		say("released", token, NULL);
	}
}

static bool
live(struct term *term)
{
	int64_t		deadline = term->deadline;

	if (now() < deadline)
		return true;
	explain(NULL, deadline ? "the deadline has passed" : "the database says that the term is over");
	return false;
}

/* A statement of the leader: it may take as long as the term is renewed. */
static enum outcome
ask_leading(PGconn *db, struct term *term, int64_t *number, const char *sql, int n, const char *const *values)
{
	PGresult   *result = NULL;

	if (PQsendQueryParams(db, sql, n, NULL, values, NULL, NULL, 0))
	{
		do
			result = answer(db, term->deadline, term->over);
		while (result == NULL && PQisBusy(db) && live(term));
	}
	return read_number(db, result, number);
}

/* Prolong the term.  The new deadline counts from before the request: the server's ttl began later than that. */
static enum outcome
renew(PGconn *db, struct term *term, int64_t until)
{
	const char *const values[] = {role, holder, term->token, ttl};
	int64_t		asked = now();
	int64_t		granted;
	enum outcome outcome;

	outcome = ask(db, until, term->stop, &granted,
				  "SELECT (extract(epoch FROM lease_renew($1, $2, $3, make_interval(secs => $4))) * 1000000)::bigint",
				  4, values);
	if (outcome == DONE && granted == NONE)
	{
		term->deadline = 0;
		explain(NULL, "the database says that the term is over");
		return ENDED;
	}
	if (outcome == DONE)
		term->deadline = asked + granted;
	return outcome;
}

/*
 * The heartbeat: renews every third of the ttl, until it is told to stop or the term is over.  In a thread and on a
 * connection of its own, so that no job and no long statement delays it.
 */
static void *
keep_alive(void *arg)
{
	struct term *term = arg;
	PGconn	   *db = NULL;
	int64_t		beat = now() + ttl_us / 3;

	while (!await(term->stop, POLLIN, -1, beat) && now() < term->deadline)
	{
		int64_t		until = now() + ttl_us / 3;
		enum outcome outcome = LOST;

		if (db == NULL)
			db = connect_db(until, term->stop);
		if (db)
			outcome = renew(db, term, until);
		if (outcome == ENDED)
			break;
		beat = until;
		if (outcome == LOST && !raised(term->stop))
		{
			/* an error changes nothing: the old deadline stands, and there is time for another try before it */
			fprintf(stderr, "%s renewal failed: %s\n", holder, why);
			PQfinish(db);
			db = NULL;
			beat = now() + ttl_us / 10;
		}
		if (beat > term->deadline)
			beat = term->deadline;
	}
	PQfinish(db);
	eventfd_write(term->over, 1);
	return NULL;
}

/* Complete jobs until asked to leave (DONE), the term is over, or the connection fails. */
static enum outcome
work(PGconn *db, struct term *term)
{
	while (!raised(leave_fd))
	{
		char		slot_text[24];
		const char *const values[] = {role, holder, term->token, slot_text};
		int64_t		slot;
		int64_t		completed;
		int64_t		finished;
		enum outcome outcome;

		if (!live(term))
			return ENDED;
		outcome = ask_leading(db, term, &slot,
							  "SELECT slot FROM job WHERE completed_at IS NULL ORDER BY slot LIMIT 1", 0, NULL);
		if (outcome != DONE)
			return outcome;
		if (slot == NONE)
		{
			await(term->over, POLLIN, leave_fd, now() + SECOND);
			continue;
		}

		/* The work itself.  Whatever it is, it has to look at the term at short intervals.  SIGTERM does not end it. */
		finished = now() + work_us;
		while (live(term) && now() < finished)
			await(-1, 0, term->over, finished < term->deadline ? finished : term->deadline);
		if (!live(term))
			return ENDED;

		/* The same statement takes the fence and stamps the row with the token, or fails with LF001. */
		snprintf(slot_text, sizeof slot_text, "%lld", (long long) slot);
		outcome = ask_leading(db, term, &completed,
							  "UPDATE job SET worker = $2, completed_at = clock_timestamp(),"
							  "       completed_by_token = lease_require_fence($1, $2, $3)"
							  " WHERE slot = $4 AND completed_at IS NULL RETURNING slot", 4, values);
		if (outcome != DONE)
			return outcome;		/* after LOST nobody knows whether it is done; the table will tell */
		if (completed != NONE)
			printf("%s completed slot=%s token=%s\n", holder, slot_text, term->token);
	}
	return DONE;
}

static enum outcome
lead(PGconn *db, int64_t token)
{
	struct term term = {.over = eventfd(0, EFD_CLOEXEC), .stop = eventfd(0, EFD_CLOEXEC)};
	pthread_t	heartbeat;
	enum outcome outcome;

	snprintf(term.token, sizeof term.token, "%lld", (long long) token);
	/* How long ago the lease was granted is not known, since the call waited: the deadline begins with a renewal. */
	outcome = renew(db, &term, now() + ttl_us / 3);
	if (outcome == DONE)
	{
		say("leads", term.token, NULL);
		if (pthread_create(&heartbeat, NULL, keep_alive, &term) != 0)
			abort();
		outcome = work(db, &term);
		/* whatever happened, no renewal after this, or a worker that does nothing would lead */
		eventfd_write(term.stop, 1);
		pthread_join(heartbeat, NULL);
	}
	if (outcome != DONE)
		say("lost", term.token, why);
	close(term.over);
	close(term.stop);
	return outcome;
}

static const char *
setting(const char *name, const char *otherwise)
{
	const char *value = getenv(name);

	return value && *value ? value : otherwise;
}

static void
too_late(int signo)
{
	(void) signo;
	_exit(0);
}

int
main(void)
{
	PGconn	   *db = NULL;
	int			failures = 0;
	int64_t		failed = 0;
	uint32_t	random_bits;
	sigset_t	stop;

	role = setting("LEASE_ROLE", "mail");
	ttl = setting("LEASE_TTL", "10");
	ttl_us = strtod(ttl, NULL) * SECOND;
	work_us = strtoll(setting("WORK_MS", "200"), NULL, 10) * 1000;

	/* A new holder id for every start.  With a fixed one, a restarted process would carry on its predecessor's term. */
	if (getrandom(&random_bits, sizeof random_bits, 0) != sizeof random_bits)
		return 1;
	srandom(random_bits);
	snprintf(holder, sizeof holder, "%s-%08x", setting("WORKER_NAME", "c"), (unsigned) random_bits);

	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGALRM, too_late);
	sigemptyset(&stop);
	sigaddset(&stop, SIGTERM);
	sigaddset(&stop, SIGINT);
	pthread_sigmask(SIG_BLOCK, &stop, NULL);	/* the heartbeat inherits it */
	leave_fd = signalfd(-1, &stop, SFD_CLOEXEC);
	cancel_sent = eventfd(0, EFD_CLOEXEC);

	while (!raised(leave_fd))
	{
		int64_t		token = NONE;
		enum outcome outcome = LOST;

		if (db == NULL)
			db = connect_db(now() + ttl_us, leave_fd);
		if (db)
			outcome = campaign(db, &token);
		if (outcome == DONE && token != NONE)
			outcome = lead(db, token);
		if (outcome == LOST && !raised(leave_fd))
		{
			int64_t		wait;

			/* a term is no success: what fails may be the work, such as a table that is missing */
			if (now() - failed > 10 * SECOND)
				failures = 0;
			failed = now();
			wait = failures < 5 ? SECOND / 10 << failures++ : 2 * SECOND;
			say("reconnecting", NULL, why);
			/* what it did not answer it may still be doing, and an UPDATE in there holds up the next leader */
			if (PQtransactionStatus(db) == PQTRANS_ACTIVE)
				cancel(db);
			PQfinish(db);
			db = NULL;
			/* half of the pause is random, so that workers that lost the same server do not come back as one */
			await(-1, 0, leave_fd, now() + wait / 2 + random() % (wait / 2));
		}
	}

	/* The ttl ends what we cannot give back, so nothing here, not even a name server, may take longer. */
	alarm(ttl_us / SECOND + 1);
	if (PQtransactionStatus(db) != PQTRANS_IDLE)
	{
		/*
		 * We wait in the queue, or have no connection.  The cancel request may come too late or hit a call that has
		 * just got the lease, so we ask; on another connection, because it may also hit what is sent next on this one.
		 */
		cancel(db);
		PQclear(answer(db, now() + ttl_us / 3, -1));
		PQfinish(db);
		db = connect_db(now() + ttl_us / 3, -1);
	}
	if (db)
		give_back(db);
	PQfinish(db);
	say("exits", NULL, NULL);
	return 0;
}
