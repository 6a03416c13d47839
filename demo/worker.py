#!/usr/bin/python3
"""A worker that works only while it leads. Copy it.

    worker.py NAME

The libpq variables (PGHOST, PGDATABASE, ...) say where the database is. Any number of workers may run; the one that
holds the lease completes one job a second, the others stand by. What happens is printed as one JSON object a line.
SIGTERM or SIGINT: finish the job in hand, give the lease back, exit 0.

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
TTL = timedelta(seconds=3)              # how long a dead leader blocks the others
HEARTBEAT = TTL.total_seconds() / 3     # so two renewals may fail before the term is lost
RETRY = 0.2                             # how often the others ask
JOB_EVERY = 1.0
JOB_TAKES = 0.5

NAME = sys.argv[1]
# A new holder id for every run. With a fixed one, a restarted process would carry on the term of its predecessor,
# also when that one is not quite dead.
HOLDER = f"{NAME}-{secrets.token_hex(3)}"

STOP = {signal.SIGTERM, signal.SIGINT}
leaving = False


class Term:
    """One term of leadership. It is over when the deadline has passed or `over` is set."""

    def __init__(self, token, deadline):
        self.token = token
        self.deadline = deadline
        self.over = threading.Event()

    def live(self):
        return now() < self.deadline and not self.over.is_set()


def now():
    """Seconds on a clock that nobody can set and that also runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def say(event, **facts):
    print(json.dumps({"event": event, **facts}), flush=True)


def asked_to_leave(seconds=0):
    """Wait that long, at most, for SIGTERM or SIGINT.

    Both are blocked, so that they stay pending while a job is in hand and are met here, between two jobs.
    """
    global leaving
    if not leaving and signal.sigtimedwait(STOP, max(seconds, 0)):
        leaving = True
    return leaving


def connect():
    # A request that gets no answer must not hang for ever: the term would be over long before.
    return psycopg.connect(autocommit=True, application_name=NAME, connect_timeout=5,
                           options=f"-c statement_timeout={TTL // timedelta(milliseconds=1)}")


def compete(db):
    """Ask for the lease until it is granted. Return the term, or None when asked to leave."""
    say("stands by", holder=HOLDER)
    while not asked_to_leave(RETRY):
        asked = now()   # before the request: the answer may take its time, and the ttl already runs
        token, = db.execute("SELECT lease_acquire(%s, %s, %s)", (ROLE, HOLDER, TTL)).fetchone()
        if token is not None:
            say("leads", token=token)
            return Term(token, asked + TTL.total_seconds())
    return None


def keep_alive(term):
    """Heartbeat: renew the term until it is over.

    In a thread and on a connection of its own, so that no job and no long statement delays it.
    """
    db = None
    while not term.over.wait(HEARTBEAT):
        try:
            db = db or connect()
            asked = now()
            granted, = db.execute("SELECT lease_renew(%s, %s, %s, %s)", (ROLE, HOLDER, term.token, TTL)).fetchone()
            if granted is None:
                term.over.set()
            else:
                term.deadline = asked + granted.total_seconds()
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


def lead(db, term):
    """Complete jobs until the term is over or this worker is asked to leave."""
    heartbeat = threading.Thread(target=keep_alive, args=(term,), daemon=True)
    heartbeat.start()
    start = now()
    try:
        while term.live():
            job = next_job(db)
            if job is not None:
                say("works", job=job)
                time.sleep(JOB_TAKES)   # the work itself. A pause in here goes unnoticed until the write
                complete(db, job, term)
                say("done", job=job, token=term.token)
            start += JOB_EVERY
            if asked_to_leave(start - now()):
                break
        else:
            say("lost", token=term.token)
    except psycopg.Error as error:
        if error.sqlstate != "LF001":
            raise
        say("refused", job=job, sqlstate=error.sqlstate, message=error.diag.message_primary,
            detail=error.diag.message_detail, hint=error.diag.message_hint)
    finally:
        term.over.set()     # whatever happened: no renewal after this, or a worker that does nothing would lead
        heartbeat.join()
    if leaving:
        released, = db.execute("SELECT lease_release(%s, %s, %s)", (ROLE, HOLDER, term.token)).fetchone()
        say("released" if released else "lost", token=term.token)


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    while not leaving:
        try:
            with connect() as db:
                while not leaving:
                    term = compete(db)
                    if term:
                        lead(db, term)
        except psycopg.OperationalError as error:
            say("reconnects", reason=str(error).strip())
            asked_to_leave(1)


main()
