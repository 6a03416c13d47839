"""What a client sees of its server, written down as it happens.

One JSON object a line, in a file a client, each written at once, so that a kill loses none. Every event has

    k       what was asked: acquire, renew, release, transfer, check, write, or a transaction's step
    e       era of the server that was asked
    x       transaction, null outside of one
    c0 c1   the client's clock before and after; server and client run on the same one
    res     ok, err (the server refused; err is its SQLSTATE), lost (no answer: it may or may not have happened)

without c1 and res where the client asks for what may end a term early: it may not live to see the answer;
and functions of leases also s0 and s1, the server's clock right before and after the call, and val, what it returned.
"""

import json
import os
import time
from pathlib import Path

import psycopg
from psycopg.pq import TransactionStatus

TIMED = "SELECT extract(epoch FROM clock_timestamp())::float8, {}, extract(epoch FROM clock_timestamp())::float8"
ENDING = {"acquire", "renew", "release", "transfer"}
GONE = {None, "57P01", "57P02", "57P03"}     # without an answer, or with the connection's last words


class Refused(Exception):
    """The server said no."""


class Lost(Exception):
    """The server did not answer."""


class History:
    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, **event):
        os.write(self.file, (json.dumps(event) + "\n").encode())


class Session:
    """One connection to whatever server is the primary, made anew when it is lost."""

    def __init__(self, work, name, history, options):
        self.work = Path(work)
        self.name = name
        self.history = history
        self.options = options
        self.db = None
        self.era = None
        self.x = None           # the open transaction

    def connect(self):
        while self.db is None:
            try:
                era, host = (self.work / "current").read_text().split()
                self.db = psycopg.connect(host=host, port=5432, user="postgres", dbname="postgres", autocommit=True,
                                          application_name=self.name, options=self.options, prepare_threshold=None)
                self.era = int(era)
            except (OSError, ValueError, psycopg.OperationalError):
                time.sleep(0.05)

    def drop(self):
        self.x = None
        if self.db is not None:
            self.db.close()
        self.db = None

    def end(self):
        """The transaction is over. Where the server was not told, the connection goes, and the transaction with it."""
        if self.db is not None and self.db.info.transaction_status != TransactionStatus.IDLE:
            self.drop()
        self.x = None

    def run(self, k, sql, params=(), **facts):
        """Run a statement, note what came of it, and return its row. Raises Refused or Lost."""
        if self.x is None:
            self.connect()
        event = {"k": k, "e": self.era, "x": self.x, **facts, "c0": time.time()}
        if k in ENDING:
            self.history.note(**event)
        try:
            result = self.db.execute(sql, params)
            row = result.fetchone() if result.description else None
        except psycopg.Error as error:
            lost = error.sqlstate in GONE or self.db.closed
            self.history.note(**event, c1=time.time(), res="lost" if lost else "err", err=error.sqlstate)
            if lost:
                self.drop()
                raise Lost from None
            raise Refused(error.sqlstate) from None
        if row is not None and len(row) == 3:
            event.update(s0=row[0], val=row[1], s1=row[2])
        self.history.note(**event, c1=time.time(), res="ok")
        return row

    def call(self, k, function, params, **facts):
        """Call a function between two looks at the server's clock."""
        return self.run(k, TIMED.format(function), params, **facts)[1]
