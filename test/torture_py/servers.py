"""The servers of a torture run: one primary at a time and, mostly, an asynchronous standby of it.

Each server has a folder of its own for data and for its socket. Its number is its era: a server that was promoted
begins one, and the server before it never comes back, but for a look at what it had committed.
"""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psycopg

LEASES = ("mail", "bills", "cron", "row", "hand")

CONFIG = """
listen_addresses = ''
port = 5432
fsync = off
shared_buffers = 16MB
max_connections = 100
max_prepared_transactions = 100
max_wal_senders = 8
wal_level = replica
wal_keep_size = 256MB
wal_writer_delay = 10s          # what is not flushed at commit is lost in a crash
wal_receiver_status_interval = 1s
wal_retrieve_retry_interval = 100ms
deadlock_timeout = 200ms
log_line_prefix = '%m [%p] %a '
max_stack_depth = 1MB
jit = off
"""

SCHEMA = """
CREATE EXTENSION leader_lease;

-- A fence taken in a block that may fail.
CREATE FUNCTION fence_in_block(role text, holder text, token bigint, fails boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lease_require_fence(role, holder, token);
    IF fails THEN
        RAISE division_by_zero;
    END IF;
    RETURN true;
EXCEPTION WHEN division_by_zero THEN
    RETURN false;
END $$;
"""

# The rows of a journal count on from one to the next, by a counter in the same transaction: the counter's row is locked
# until the transaction ends, so that n is the order of the commits.
TABLES = """
CREATE TABLE counter_{0} (n bigint NOT NULL, token bigint);
INSERT INTO counter_{0} VALUES (0);
CREATE TABLE journal_{0} (n bigint PRIMARY KEY, token bigint, holder text, id text, seen bigint, way text);
SELECT lease_protect('counter_{0}', '{0}', 'token', proof => '{1}');
SELECT lease_protect('journal_{0}', '{0}', 'token', proof => '{1}');
"""


def run(*command):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stdout}")


def processes(folder):
    """The pids of all processes that work in a folder."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd") == str(folder):
                pids.append(int(process.name))
        except OSError:     # gone, or not ours
            pass
    return pids


class Server:
    def __init__(self, work, era):
        self.bin = Path(os.environ["PGBIN"])
        self.era = era
        self.data = work.resolve() / f"data{era}"
        self.host = work / f"s{era}"
        self.log = work / f"server{era}.log"
        self.host.mkdir()

    def init(self):
        run(self.bin / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C",
            "--no-sync")
        with open(self.data / "postgresql.conf", "a") as file:
            file.write(CONFIG)
        self.start()
        with self.connect() as db:
            db.execute(SCHEMA)
            for lease in LEASES:
                db.execute(TABLES.format(lease, "row" if lease == "row" else "fence"))

    def copy(self, primary):
        """Make this server a standby of the primary."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)
        run(self.bin / "pg_basebackup", "-h", primary.host, "-U", "postgres", "-D", self.data, "-R", "-X", "stream",
            "-c", "fast", "--no-sync")
        self.start()

    def start(self, host=None):
        # its output goes to the log: whoever else holds a pipe's end would be waited for
        run(self.bin / "pg_ctl", "-D", self.data, "-l", self.log, "-o", f"-k {host or self.host}", "-t", "60", "-w",
            "start")

    def stop(self):
        run(self.bin / "pg_ctl", "-D", self.data, "-m", "fast", "-t", "60", "-w", "stop")

    def promote(self):
        run(self.bin / "pg_ctl", "-D", self.data, "-t", "60", "-w", "promote")

    def kill(self):
        """Kill all of it, until none of its processes is left that could commit anything more."""
        while pids := processes(self.data):
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.002)

    def connect(self, **options):
        return psycopg.connect(host=str(self.host), port=5432, user="postgres", dbname="postgres", autocommit=True,
                               application_name="director", **options)

    def contents(self, db):
        """The leases, and all rows of the journals."""
        return {
            "era": self.era,
            "leases": {role: [token, holder] for role, token, holder in
                       db.execute("SELECT role, fencing_token, holder_id FROM leader_lease")},
            "journal": {lease: db.execute("SELECT n, token, holder, id, seen "
                                          f"FROM journal_{lease} ORDER BY n").fetchall() for lease in LEASES},
        }

    def last_contents(self, work):
        """What a server that was killed had committed; then remove it."""
        host = work / f"look{self.era}"
        host.mkdir()
        self.start(host)
        with psycopg.connect(host=str(host), port=5432, user="postgres", dbname="postgres", autocommit=True) as db:
            contents = self.contents(db)
        self.kill()
        shutil.rmtree(self.data)
        return contents
