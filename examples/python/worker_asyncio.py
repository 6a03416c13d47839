#!/usr/bin/python3
"""A leader worker with psycopg 3 and asyncio. Copy it.

Start it with ./run-asyncio, as often as you like. The workers compete for one lease;
the one that holds it completes the open jobs, one after the other.

    PGHOST PGPORT PGUSER PGDATABASE ...   where the database is, as for psql
    LEASE_ROLE   name of the lease (mail)
    LEASE_TTL    seconds that a leader which died blocks the others (10)
    WORK_MS      how long one job takes (200)
    WORKER_NAME  how the holder's name begins (python-asyncio)

SIGTERM or SIGINT: finish the job in hand, give the lease back, exit 0.

Python 3.11 or later.
"""

import asyncio
import os
import random
import secrets
import signal
import socket
import sys
import time
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import psycopg

ROLE = os.environ.get("LEASE_ROLE", "mail")
TTL = timedelta(seconds=float(os.environ.get("LEASE_TTL", "10")))
HEARTBEAT = TTL.total_seconds() / 3  # so two renewals may fail before the term is lost
WORK = float(os.environ.get("WORK_MS", "200")) / 1000
# New for every run. With a fixed name a restarted worker would carry on the term of its
# predecessor, also when that one is not quite dead.
HOLDER = f"{os.environ.get('WORKER_NAME', 'python-asyncio')}-{secrets.token_hex(4)}"

leaving = asyncio.Event()


class TermOver(Exception):
    """This worker leads no more. Raised by one task, it cancels the others."""


class Term:
    def __init__(self, token, deadline):
        self.token = token  # an int: Python's have no limit, so a bigint stays exact
        self.deadline = deadline

    def left(self):
        return self.deadline - now()

    def check(self):
        if self.left() <= 0:
            raise TermOver("its time is over")


def now():
    """Seconds on a clock that nobody can set and that runs on in suspend (Linux)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def say(event):
    print(HOLDER, event, flush=True)


def complain(what, error):
    print(HOLDER, f"{what}:", reason(error), file=sys.stderr, flush=True)


def reason(error):
    return str(error).partition("\n")[0] or type(error).__name__


@asynccontextmanager
async def connection():
    # The limit is for all of it: look-up of the name, TCP, TLS, the server's welcome.
    # Without prepare_threshold=None psycopg would prepare what it runs often on the
    # server, and behind a transaction pooler the next statement may go to another one.
    async with asyncio.timeout(3):
        db = await psycopg.AsyncConnection.connect(
            autocommit=True, prepare_threshold=None, application_name=HOLDER
        )
    try:
        yield db
    finally:
        await db.close()  # not `async with db`: that would talk to the server once more


async def ask(db, limit, query, args=()):
    """Execute one statement. Cut the connection if there is no answer in time, or if
    the calling task is cancelled.

    The statement runs in a task of its own, which is never cancelled: depending on its
    version, psycopg would then leave the connection in the middle of the statement, or
    wait for a server that may be gone. When the connection is cut, the statement fails
    without any help from there.
    """
    loop = asyncio.get_running_loop()
    with socket.socket(fileno=os.dup(db.fileno())) as sock:
        request = loop.create_task(db.execute(query, args))
        timer = loop.call_later(max(limit, 0), cut, sock)
        try:
            return await asyncio.shield(request)
        except psycopg.OperationalError:
            if loop.time() >= timer.when():
                raise TimeoutError("no answer in time") from None
            raise
        except asyncio.CancelledError:
            cut(sock)
            await asyncio.wait([request])
            request.exception()  # looked at, or asyncio complains that nobody did
            raise
        finally:
            timer.cancel()


def cut(sock):
    with suppress(OSError):  # the other side may have been faster
        sock.shutdown(socket.SHUT_RDWR)


async def pause(seconds):
    """Sleep, but only until asked to leave."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await leaving.wait()


async def compete(db):
    """Try until this worker leads. None when it was asked to leave."""
    while not leaving.is_set():
        asked = now()
        # An attempt may wait for open transactions of the term before, by default for
        # 1 s. It is not interrupted, or a worker that has gone might get the lease.
        cursor = await ask(
            db,
            5,
            "SELECT token, ttl, retry_after FROM lease_attempt(%s, %s, %s)",
            (ROLE, HOLDER, TTL),
        )
        token, ttl, retry_after = await cursor.fetchone()
        if token is not None:
            # From before the request was sent: the server's ttl begins after that, so
            # this worker stops before another may start.
            return Term(token, asked + ttl.total_seconds())
        wait = min(retry_after.total_seconds(), 1, TTL.total_seconds() / 2)
        await pause(wait + random.uniform(0, 0.1))
    return None


async def keep_alive(term):
    """Heartbeat, on a connection of its own: no job delays it."""
    await asyncio.sleep(HEARTBEAT)
    while True:
        try:
            async with connection() as db:
                while True:
                    asked = now()
                    cursor = await ask(
                        db,
                        min(HEARTBEAT, term.left()),
                        "SELECT lease_renew(%s, %s, %s, %s)",
                        (ROLE, HOLDER, term.token, TTL),
                    )
                    (granted,) = await cursor.fetchone()
                    if granted is None:
                        term.deadline = 0
                        raise TermOver("the renewal was refused")
                    term.deadline = asked + granted.total_seconds()
                    await asyncio.sleep(HEARTBEAT)
        except (psycopg.Error, OSError) as error:  # TimeoutError is an OSError
            complain("heartbeat", error)  # try again; until then the deadline stands
            await asyncio.sleep(min(HEARTBEAT, 0.3))


async def watch(term):
    """End the term when its time is over, if nobody else does."""
    while True:
        term.check()
        # In slices: the loop's timers run on a clock that stands still in suspend.
        await asyncio.sleep(min(term.left(), 0.1))


async def complete(db, term, slot):
    """Write the result. True if the slot was still open.

    The same statement takes the fence and stamps the row, or fails with LF001.
    """
    try:
        cursor = await ask(
            db,
            term.left(),
            """
            UPDATE job
               SET worker = %(holder)s,
                   completed_at = clock_timestamp(),
                   completed_by_token =
                       lease_require_fence(%(role)s, %(holder)s, %(token)s)
             WHERE slot = %(slot)s AND completed_at IS NULL
            """,
            {"role": ROLE, "holder": HOLDER, "token": term.token, "slot": slot},
        )
    except psycopg.Error as error:
        if error.sqlstate != "LF001":
            raise
        term.deadline = 0
        raise TermOver(error.diag.message_detail) from error
    return cursor.rowcount == 1


async def work(db, term):
    """Complete jobs until asked to leave."""
    while not leaving.is_set():
        term.check()
        cursor = await ask(
            db,
            term.left(),
            "SELECT slot FROM job WHERE completed_at IS NULL ORDER BY slot LIMIT 1",
        )
        row = await cursor.fetchone()
        if row is None:
            await pause(0.3)
            continue
        (slot,) = row
        await asyncio.sleep(WORK)  # the work itself; the end of the term cancels it
        # A process that was stopped and woken finds the timer due and goes on here,
        # before any other task could cancel it. So the clock is asked, not a timer.
        term.check()
        # A pause right here goes unnoticed. That is what the fence is for.
        if await complete(db, term, slot):
            say(f"completed slot={slot} token={term.token}")


async def lead(db, term):
    """Work as the leader, until asked to leave or the term is over."""
    say(f"leads token={term.token}")
    try:
        async with asyncio.TaskGroup() as group:
            helpers = [
                group.create_task(keep_alive(term)),
                group.create_task(watch(term)),
            ]
            await work(db, term)
            for task in helpers:
                task.cancel()
    except ExceptionGroup as ended:
        error = ended.exceptions[0]
        say(f"lost token={term.token}: {reason(error)}")
        if not isinstance(error, TermOver):
            raise error


async def give_back(until):
    """Release whatever this worker has. At errors try until the term is over anyway.

    It asks the database what that is: an attempt that lost its connection may have been
    granted the lease all the same.
    """
    while True:
        try:
            async with connection() as db:
                cursor = await ask(
                    db,
                    3,
                    """
                    SELECT fencing_token, lease_release(role, holder_id, fencing_token)
                      FROM lease_status WHERE role = %s AND holder_id = %s AND live
                    """,
                    (ROLE, HOLDER),
                )
                async for token, released in cursor:
                    if released:
                        say(f"released token={token}")
            return
        except Exception as error:
            complain("release", error)
        if now() >= until:
            return
        await asyncio.sleep(0.3)


async def main():
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leaving.set)
    term = None
    backoff, failed = 0.1, float("-inf")
    while not leaving.is_set():
        try:
            async with connection() as db:
                while not leaving.is_set():
                    term = await compete(db)
                    if term is not None:
                        await lead(db, term)
        except Exception as error:  # whatever it was: no work without a token
            say(f"reconnecting: {reason(error)}")
            backoff = min(backoff * 2, 2) if now() - failed < 10 else 0.1
            failed = now()
            await pause(backoff * random.uniform(0.5, 1))
    await give_back(until=term.deadline if term else 0)
    say("exits")


asyncio.run(main())
