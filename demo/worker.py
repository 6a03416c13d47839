#!/usr/bin/python3
"""A worker that works only while it leads. Copy it.

    worker.py NAME [--bind]

The libpq variables (PGHOST, PGDATABASE, ...) say where the database is. Any number of workers may run; the one that
holds the lease completes one job a second, the others wait in turn. What happens is printed as one JSON object a line.
SIGTERM or SIGINT: finish the job in hand and give the lease back, or stop waiting; exit 0. With --bind the term is tied
to the worker's connection: if the worker dies, the next one leads at once, and not when the ttl is over.

Two clocks guard the work. The worker's own clock stops it early: it begins nothing after the deadline of its term. That
is polite, but no proof, since a pause can come right after the look at the clock. The proof is the fence: the write
carries the token of the term, and the database refuses it (SQLSTATE LF001) when that term is over.
"""

import json
import secrets
import signal
import sys
import threading
import time
from datetime import timedelta

import psycopg

ROLE = "scheduler"
TTL = timedelta(seconds=3)              # how long a leader that died blocks the others
HEARTBEAT = TTL.total_seconds() / 3     # so two renewals may fail before the term is lost
JOB_EVERY = 1.0
JOB_TAKES = 0.5

NAME = sys.argv[1]
BIND = sys.argv[2:] == ["--bind"]
# A new holder id for every run. With a fixed one, a restarted process would carry on the term of its predecessor,
# also when that one is not quite dead.
HOLDER = f"{NAME}-{secrets.token_hex(3)}"

STOP = {signal.SIGTERM, signal.SIGINT}
leaving = threading.Event()


class Term:
    """One term of leadership. It is over when the deadline has passed or `over` is set."""

    def __init__(self, token):
        self.token = token
        self.deadline = 0
        self.over = threading.Event()

    def live(self):
        return now() < self.deadline and not self.over.is_set()

    def renew(self, db):
        """Prolong the term. The deadline counts from before the request: the answer may take its time."""
        asked = now()
        granted, = db.execute("SELECT lease_renew(%s, %s, %s, %s)", (ROLE, HOLDER, self.token, TTL)).fetchone()
        if granted is None:
            self.over.set()
        else:
            self.deadline = asked + granted.total_seconds()


def now():
    """Seconds on a clock that nobody can set and that also runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def say(event, **facts):
    print(json.dumps({"event": event, **facts}), flush=True)


def heed_signals():
    """Turn SIGTERM and SIGINT, which are blocked in every thread, into `leaving`: looked at between two jobs."""
    signal.sigwait(STOP)
    leaving.set()


def connect(limit=TTL):
    # A request that gets no answer must not hang for ever: the term would be over long before.
    return psycopg.connect(autocommit=True, application_name=NAME, connect_timeout=5,
                           options=f"-c statement_timeout={limit // timedelta(milliseconds=1)}")


def campaign():
    """Wait in turn for the lease. Return its token, or None when asked to leave.

    The call may last for days. So it has a connection of its own, without a timeout, and leaving ends it by a cancel
    request.
    """
    with connect(limit=timedelta(0)) as queue:
        done = threading.Event()

        def cancel_when_leaving():
            while not done.wait(0.1):
                if leaving.is_set():    # again and again, in case the first came before the call
                    queue.cancel()

        say("waits", holder=HOLDER, pid=queue.info.backend_pid)
        canceller = threading.Thread(target=cancel_when_leaving, daemon=True)
        canceller.start()
        try:
            return queue.execute("CALL lease_campaign(%s, %s, %s)", (ROLE, HOLDER, TTL)).fetchone()[0]
        except psycopg.errors.QueryCanceled:
            done.set()
            canceller.join()
            # the cancel may have hit a call that had just got the lease: give it back
            queue.execute("""
                SELECT lease_release(role, holder_id, fencing_token)
                  FROM lease_status WHERE (role, holder_id) = (%s, %s) AND live""", (ROLE, HOLDER))
            say("leaves")
        finally:
            done.set()
    return None


def keep_alive(term):
    """Heartbeat: renew the term until it is over.

    In a thread and on a connection of its own, so that no job and no long statement delays it.
    """
    db = None
    while not term.over.wait(HEARTBEAT):
        try:
            db = db or connect()
            term.renew(db)
        except psycopg.OperationalError:
            db = None   # try again at the next beat; until then the deadline stands
    if db:
        db.close()


def next_job(db):
    row = db.execute("SELECT id FROM job WHERE completed_at IS NULL ORDER BY id LIMIT 1").fetchone()
    return row and row[0]


def complete(db, job, term):
    """Write the result. The same statement takes the fence and stamps the row with the token, or raises LF001."""
    db.execute("""
        UPDATE job
           SET completed_at = clock_timestamp(),
               completed_by = %(holder)s,
               completions = completions + 1,
               completed_by_token = lease_require_fence(%(role)s, %(holder)s, %(token)s)
         WHERE id = %(job)s""",
               {"role": ROLE, "holder": HOLDER, "token": term.token, "job": job})


def work(db, term):
    """Complete jobs until the term is over or this worker is asked to leave."""
    start = now()
    while term.live():
        job = next_job(db)
        if job is not None:
            say("works", job=job)
            time.sleep(JOB_TAKES)   # the work itself. A pause in here goes unnoticed until the write
            try:
                complete(db, job, term)
            except psycopg.Error as error:
                if error.sqlstate != "LF001":
                    raise
                say("refused", job=job, sqlstate=error.sqlstate, message=error.diag.message_primary,
                    detail=error.diag.message_detail, hint=error.diag.message_hint)
                return
            say("done", job=job, token=term.token)
        start += JOB_EVERY
        if leaving.wait(max(start - now(), 0)):
            return
    say("lost", token=term.token)


def lead(token):
    """Work as the leader. The connection of the work is the one that the term may be tied to."""
    term = Term(token)
    with connect() as db:
        # How long ago the lease was granted is not known, since the call waited: the deadline begins with a renewal.
        term.renew(db)
        if BIND:
            db.execute("SELECT lease_bind_session(%s, %s, %s)", (ROLE, HOLDER, token))
        say("leads", token=token)
        heartbeat = threading.Thread(target=keep_alive, args=(term,), daemon=True)
        heartbeat.start()
        try:
            work(db, term)
        finally:
            term.over.set()     # whatever happened: no renewal after this, or a worker that does nothing would lead
            heartbeat.join()
        if leaving.is_set():
            released, = db.execute("SELECT lease_release(%s, %s, %s)", (ROLE, HOLDER, token)).fetchone()
            say("released" if released else "lost", token=token)


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    threading.Thread(target=heed_signals, daemon=True).start()
    while not leaving.is_set():
        try:
            token = campaign()
            if token is not None:
                lead(token)
        except psycopg.OperationalError as error:
            say("reconnects", reason=str(error).strip())
            leaving.wait(1)


main()
