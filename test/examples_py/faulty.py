"""A small worker with one fault planted in it, or none; see self_test.py.

    faulty.py FAULT

It has no thread: it asks for the lease before each job, which renews its term as well.
"""

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback

import psycopg

FAULT = sys.argv[1]
ROLE = os.environ["LEASE_ROLE"]
TTL = float(os.environ["LEASE_TTL"])
WORK = int(os.environ["WORK_MS"]) / 1000
HOLDER = os.environ["WORKER_NAME"] + "-" + ("0123abcd" if FAULT == "same name" else secrets.token_hex(4))

UPDATE = """
UPDATE job SET worker = %s, completed_at = clock_timestamp(), completed_by_token = {}
 WHERE slot = %s AND completed_at IS NULL"""
FENCED = UPDATE.format("lease_require_fence(%s, %s, %s)")
UNFENCED = UPDATE.format("%s")

leaving = threading.Event()


def connect():
    db = psycopg.connect(autocommit=True, connect_timeout=5)
    db.prepare_threshold = 0 if FAULT == "prepares" else None
    return db


def attempt(db):
    return db.execute("SELECT token FROM lease_attempt(%s, %s, make_interval(secs => %s))",
                      (ROLE, HOLDER, TTL)).fetchone()[0]


def open_slot(db, skip):
    return db.execute("SELECT slot FROM job WHERE completed_at IS NULL ORDER BY slot OFFSET %s LIMIT 1",
                      (skip,)).fetchone()[0]


def lead(db):
    """Until asked to leave. The last token."""
    token = None
    while not leaving.is_set():
        old = token
        if FAULT != "no heartbeat" or token is None:
            token = attempt(db)
        if FAULT == "late" and old not in (None, token):
            db.execute(UNFENCED, (HOLDER, old, open_slot(db, 0)))
        if token is None:
            leaving.wait(0.3)
            continue
        slot = open_slot(db, 2 if FAULT == "leaves out" else 0)
        time.sleep(WORK)
        try:
            db.execute(FENCED, (HOLDER, ROLE, HOLDER, token, slot))
            if FAULT == "twice":
                db.execute(FENCED.removesuffix(" AND completed_at IS NULL"), (HOLDER, ROLE, HOLDER, token, slot))
            if FAULT == "strange":
                db.execute(UNFENCED, (HOLDER, token - 1, slot + 1))
        except psycopg.Error as error:
            if error.sqlstate != "LF001":
                raise
            if FAULT == "no heartbeat":
                token = None
    return token


def work():
    while not leaving.is_set():
        try:
            with connect() as db:
                token = lead(db)
                if token is not None and FAULT != "no release":
                    db.execute("SELECT lease_release(%s, %s, %s)", (ROLE, HOLDER, token))
        except psycopg.OperationalError:
            if FAULT == "gives up":
                sys.exit(3)
            if FAULT == "hangs":
                leaving.wait()
            if FAULT == "prints a traceback":
                traceback.print_exc()
            leaving.wait(0.3)


if FAULT == "outlives" and os.fork() == 0:      # a heartbeat that does not notice
    with connect() as db:
        while True:
            attempt(db)
            time.sleep(0.3)
signal.signal(signal.SIGTERM, lambda *_: FAULT != "deaf" and leaving.set())
work()
if FAULT == "leaves a child":
    subprocess.Popen(["sleep", "600"])
sys.exit(FAULT == "bad exit")
