#!/usr/bin/python3
"""A leader worker with psycopg 3 and threads. Copy it.

Start it with ./run, as often as you like. The workers wait in turn for one lease; the
one that holds it completes the open jobs, one after the other.

    PGHOST PGPORT PGUSER PGDATABASE ...   where the database is, as for psql
    LEASE_ROLE   name of the lease (mail)
    LEASE_TTL    seconds that a leader which died blocks the others (10)
    WORK_MS      how long one job takes (200)
    WORKER_NAME  how the holder's name begins (python)

SIGTERM or SIGINT: finish the job in hand, give the lease back, exit 0.
"""

import json
import os
import random
import secrets
import signal
import socket
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress
from datetime import timedelta

import psycopg

ROLE = os.environ.get("LEASE_ROLE", "mail")
TTL = timedelta(seconds=float(os.environ.get("LEASE_TTL", "10")))
HEARTBEAT = TTL.total_seconds() / 3  # so two renewals may fail before the term is lost
WORK = float(os.environ.get("WORK_MS", "200")) / 1000
# New for every run. With a fixed name a restarted worker would carry on the term of its
# predecessor, also when that one is not quite dead.
HOLDER = f"{os.environ.get('WORKER_NAME', 'python')}-{secrets.token_hex(4)}"

STOP = {signal.SIGTERM, signal.SIGINT}
leaving = threading.Event()
waiting = None  # the connection that is inside lease_campaign


class Term:
    """One term of leadership: over when the deadline has passed or `over` is set."""

    def __init__(self, token):
        self.token = token  # an int: Python's have no limit, so a bigint stays exact
        self.deadline = 0.0
        self.over = threading.Event()
        self.why = "its time is over"

    def left(self):
        return self.deadline - now()

    def live(self):
        return self.left() > 0 and not self.over.is_set()

    def end(self, why):
        self.why = why
        self.deadline = 0.0
        self.over.set()

    def renew(self, db, limit):
        """Prolong the term. The deadline counts from before the request was sent: the
        server's ttl begins after that, so this worker stops before another may start.
        """
        asked = now()
        with answer_within(db, limit):
            (granted,) = db.execute(
                "SELECT lease_renew(%s, %s, %s, %s)", (ROLE, HOLDER, self.token, TTL)
            ).fetchone()
        if granted is None:
            self.end("the renewal was refused")
        else:
            self.deadline = asked + granted.total_seconds()


def now():
    """Seconds on a clock that nobody can set and that runs on in suspend (Linux)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def say(event):
    print(HOLDER, event, flush=True)


def reason(error):
    return str(error).partition("\n")[0] or type(error).__name__


def connect():
    # Without prepare_threshold=None psycopg would prepare what it runs often on the
    # server, and behind a transaction pooler the next statement may go to another one.
    return psycopg.connect(
        autocommit=True,
        prepare_threshold=None,
        connect_timeout=3,
        application_name=HOLDER,
    )


@contextmanager
def answer_within(db, seconds):
    """Cut the connection if the block takes longer, so that its statement fails.

    psycopg waits for an answer for as long as it takes, and a statement_timeout is of
    no use where the server, the pooler or the network has fallen silent.
    """
    late = threading.Event()

    def give_up():
        late.set()
        cut(db)

    timer = threading.Timer(max(seconds, 0), give_up)
    timer.start()
    try:
        yield
    except psycopg.OperationalError:
        if late.is_set():
            raise TimeoutError("no answer in time") from None
        raise
    finally:
        timer.cancel()
        timer.join()


def cut(db):
    """Break the connection, from another thread: whoever waits gets an error."""
    with suppress(psycopg.Error, OSError):  # it may be closed by now
        with socket.socket(fileno=os.dup(db.fileno())) as sock:
            sock.shutdown(socket.SHUT_RDWR)


def heed_signals():
    """Wait for SIGTERM or SIGINT, which are blocked in all threads, and act on them."""
    signal.sigwait(STOP)
    leaving.set()
    if db := waiting:
        timer = threading.Timer(1, cut, [db])  # if nobody answers the cancel request
        timer.daemon = True
        timer.start()
    # Again and again, since a cancel request that comes before the call does nothing.
    while db := waiting:
        with suppress(psycopg.Error):
            db.cancel()
        time.sleep(0.1)


heeding = threading.Thread(target=heed_signals, daemon=True)


def campaign(db):
    """Wait in turn for the lease. Return a token, or None after a ttl.

    Not for longer, to notice a connection that died in silence. It needs autocommit.
    """
    global waiting
    # Before the look at `leaving`. heed_signals() does it the other way round, so that
    # at least one of the two sees what the other has done.
    waiting = db
    try:
        if leaving.is_set():
            return None
        with answer_within(db, TTL.total_seconds() + 2):
            (token,) = db.execute(
                "CALL lease_campaign(%s, %s, %s, %s)", (ROLE, HOLDER, TTL, TTL)
            ).fetchone()
        return token
    except psycopg.errors.QueryCanceled:
        if not leaving.is_set():
            raise
        return None  # it may have been granted all the same: see give_back()
    finally:
        waiting = None
        if leaving.is_set():
            heeding.join(1)  # nobody closes the connection under the cancel request


def keep_alive(term):
    """Heartbeat, in a thread and on a connection of its own: no job delays it."""
    db = None
    pause = HEARTBEAT
    while not term.over.wait(pause) and term.live():
        try:
            db = db or connect()
            if term.live():  # connecting takes time
                term.renew(db, min(HEARTBEAT, term.left()))
            pause = HEARTBEAT
        except Exception as error:  # try again soon; until then the deadline stands
            print(HOLDER, "heartbeat:", reason(error), file=sys.stderr, flush=True)
            if db:
                db.close()
            db = None
            pause = min(HEARTBEAT, 0.3)
    if db:
        db.close()


def next_slot(db, term):
    with answer_within(db, term.left()):
        row = db.execute(
            "SELECT slot FROM job WHERE completed_at IS NULL ORDER BY slot LIMIT 1"
        ).fetchone()
    return row and row[0]


def perform(term):
    """The work itself, in slices: between two of them it looks whether it may go on.

    True if the work is done and the term is not over.
    """
    end = now() + WORK
    while term.live():
        left = end - now()
        if left <= 0:
            return True
        # No longer slices: this wait runs on a clock that stands still in suspend.
        term.over.wait(min(left, 0.1))
    return False


def complete(db, term, slot):
    """Write the result. True if the slot was still open.

    The transaction carries its claim in a setting, and the guard on the table does the
    rest: it refuses the write with LF001 if the term is over, and stamps the row with
    the token. `true` makes the settings end with the transaction: behind a transaction
    pooler the next one on this server connection may be somebody else's. The two limits
    are there because an open transaction with a fence holds up the next leader.
    """
    claim = json.dumps({"role": ROLE, "holder": HOLDER, "token": term.token})
    limit = f"{TTL // timedelta(milliseconds=1)}ms"
    with answer_within(db, term.left()), db.transaction():
        db.execute(
            """
            SELECT set_config('leader_lease.fence', %s, true),
                   set_config('statement_timeout', %s, true),
                   set_config('idle_in_transaction_session_timeout', %s, true)
            """,
            (claim, limit, limit),
        )
        done = db.execute(
            """
            UPDATE job SET worker = %s, completed_at = clock_timestamp()
             WHERE slot = %s AND completed_at IS NULL
            """,
            (HOLDER, slot),
        )
    return done.rowcount == 1


def work(db, term):
    """Complete jobs until asked to leave. Return why the term was lost, or None."""
    while term.live() and not leaving.is_set():
        slot = next_slot(db, term)
        if slot is None:
            leaving.wait(0.3)
        elif perform(term):
            # A pause right here goes unnoticed. That is what the fence is for.
            try:
                if complete(db, term, slot):
                    say(f"completed slot={slot} token={term.token}")
            except psycopg.Error as error:
                if error.sqlstate != "LF001":
                    raise
                term.end(error.diag.message_detail)
    return None if term.live() else term.why


def lead(db, term):
    """Work as the leader, until asked to leave or the term is over."""
    # How long ago the lease was granted is not known, since the call waited. So the
    # deadline begins with a renewal.
    term.renew(db, TTL.total_seconds())
    if not term.live():
        return
    say(f"leads token={term.token}")
    heartbeat = threading.Thread(target=keep_alive, args=[term], daemon=True)
    heartbeat.start()
    try:
        lost = work(db, term)
    except Exception as error:
        lost = reason(error)
        raise
    finally:
        term.over.set()  # no more heartbeats, or a worker that does nothing would lead
        if lost:
            say(f"lost token={term.token}: {lost}")


def give_back(until):
    """Release whatever this worker has. At errors try until the term is over anyway.

    It asks the database what that is: a campaign that was cancelled, or that lost its
    connection, may have been granted the lease in that very moment.
    """
    while True:
        try:
            with closing(connect()) as db, answer_within(db, 3):
                for token, released in db.execute(
                    """
                    SELECT fencing_token, lease_release(role, holder_id, fencing_token)
                      FROM lease_status WHERE role = %s AND holder_id = %s AND live
                    """,
                    (ROLE, HOLDER),
                ):
                    if released:
                        say(f"released token={token}")
            return
        except Exception as error:
            print(HOLDER, "release:", reason(error), file=sys.stderr, flush=True)
        if now() >= until:
            return
        time.sleep(0.3)


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    heeding.start()
    term = None
    backoff, failed = 0.1, float("-inf")
    while not leaving.is_set():
        try:
            with closing(connect()) as db:
                while not leaving.is_set():
                    token = campaign(db)
                    if token is not None and not leaving.is_set():
                        term = Term(token)
                        lead(db, term)
        except Exception as error:  # whatever it was: no work without a token
            say(f"reconnecting: {reason(error)}")
            backoff = min(backoff * 2, 2) if now() - failed < 10 else 0.1
            failed = now()
            leaving.wait(backoff * random.uniform(0.5, 1))
    give_back(until=term.deadline if term else 0)
    say("exits")


main()
