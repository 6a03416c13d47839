"""Runs clients against servers and troubles both by plan."""

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from pathlib import Path

import psycopg

import check
from history import History
from plan import CLIENTS, plan
from servers import Server

OVERDUE = 1.0       # seconds after which somebody else finishes a prepared transaction


class Director:
    def __init__(self, work, seed, seconds, bias, until=()):
        self.work = Path(work)
        self.seed = seed
        self.seconds = seconds
        self.bias = bias
        self.until = until          # the run ends when one of these invariants is broken
        (self.work / "history").mkdir(parents=True)
        self.history = History(self.work / "history" / "director")
        self.done = Counter()
        self.broken = []            # what went wrong apart from the invariants
        self.clients = [None] * CLIENTS
        self.runs = [0] * CLIENTS
        self.stopped = {}           # client: until when
        self.dumps = []
        self.db = None
        self.tended = 0
        self.book = None
        self.offset = None          # of the wall clock against the one that nobody sets

    # the run

    def run(self):
        self.primary = Server(self.work, 1)
        self.primary.init()
        self.announce()
        self.standby = self.new_standby()
        try:
            for number in range(CLIENTS):
                self.spawn(number)
            self.trouble()
        finally:
            for client in self.clients:
                if client is not None:
                    client.kill()
                    client.wait()
        if not self.caught():
            self.finish_prepared(0)
            self.look(final=True)
        for server in (self.primary, self.standby):
            server.kill()
        self.read_logs()

    def trouble(self):
        start = time.monotonic()
        late = 0                    # by what took its time, so that troubles do not pile up
        looked = start
        for at, kind, parameters in plan(self.seed, self.seconds, self.bias):
            while (now := time.monotonic()) < start + late + at:
                self.tend()
                if self.until and now > looked + 2:
                    self.look()
                    looked = time.monotonic()
                    if self.caught():
                        return
                if now > start + self.seconds:
                    return
                time.sleep(0.01)
            began = time.monotonic()
            getattr(self, kind)(*parameters)
            late += time.monotonic() - began

    def look(self, final=False):
        """Let the checker decide over what there is up to now."""
        book, observed = check.read(self.work / "history")
        asked = time.time()
        contents = self.ask(self.primary.contents)
        check.judge(book, observed, self.dumps + [{**contents, "t": asked}], final)
        self.book = book

    def caught(self):
        return self.book is not None and any(self.book.faults[name] for name in self.until)

    def tend(self):
        """What goes on all the time."""
        now = time.monotonic()
        self.watch_clock()
        for number, until in list(self.stopped.items()):
            if until <= now:
                del self.stopped[number]
                self.clients[number].send_signal(signal.SIGCONT)
        for number, client in enumerate(self.clients):
            if client.poll() is not None:
                self.broken.append(f"client {number} ended by itself")
                self.spawn(number)
        if now > self.tended + 0.5:
            self.finish_prepared(OVERDUE)
            self.tended = now

    def watch_clock(self):
        """The histories go by the wall clock: nobody must set it meanwhile."""
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        wall = time.time()
        after = time.clock_gettime(time.CLOCK_BOOTTIME)
        if after - before > check.SLACK / 10:
            return
        if self.offset is not None and abs(wall - after - self.offset) > check.SLACK / 2:
            self.broken.append(f"the clock was set by {wall - after - self.offset:.6f} s, which makes the verdict void")
        self.offset = wall - after

    def spawn(self, number):
        self.runs[number] += 1
        with open(self.work / "errors", "a") as errors:
            self.clients[number] = subprocess.Popen(
                [sys.executable, "-B", Path(__file__).with_name("client.py"), self.work, str(number),
                 str(self.runs[number]), self.seed, json.dumps(self.bias)],
                stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)

    # the servers

    def announce(self):
        """From now on this is the primary that clients are told of."""
        self.history.note(k="era", e=self.primary.era, t=time.time())
        new = self.work / "current.new"
        new.write_text(f"{self.primary.era} {self.primary.host}")
        new.rename(self.work / "current")

    def new_standby(self):
        standby = Server(self.work, self.primary.era + 1)
        for tries in range(5):
            self.ask(lambda db: db.execute("SELECT"))
            try:
                standby.copy(self.primary)
                return standby
            except RuntimeError as error:   # the primary may be restarting after a backend was killed
                reason = error
        raise reason

    def ask(self, question):
        """Ask the primary, over a connection that is made anew when it is lost."""
        for _ in range(400):
            try:
                if self.db is None:
                    self.db = self.primary.connect()
                return question(self.db)
            except psycopg.OperationalError:
                if self.db is not None:
                    self.db.close()
                self.db = None
                time.sleep(0.05)
        raise RuntimeError("the primary does not come back")

    def finish_prepared(self, age):
        def overdue(db):
            return [gid for gid, in db.execute("SELECT gid FROM pg_prepared_xacts "
                                               "WHERE prepared <= clock_timestamp() - %s * interval '1 second'",
                                               (age,)).fetchall()]

        for gid in self.ask(overdue):
            commit = zlib.crc32(gid.encode()) % 2 == 0
            event = {"k": "finish", "e": self.primary.era, "of": gid, "commit": commit, "c0": time.time()}
            try:
                self.db.execute(f"{'COMMIT' if commit else 'ROLLBACK'} PREPARED '{gid}'")
                self.history.note(**event, c1=time.time(), res="ok")
                self.done["prepared transactions finished for others"] += 1
            except psycopg.Error as error:      # the client was faster, or the server is gone
                self.history.note(**event, c1=time.time(), res="lost", err=error.sqlstate)

    # the troubles

    def stop(self, number, seconds):
        if number not in self.stopped:
            self.clients[number].send_signal(signal.SIGSTOP)
            self.done["stops"] += 1
        self.stopped[number] = time.monotonic() + seconds

    def kill(self, number):
        self.stopped.pop(number, None)
        self.clients[number].kill()
        self.clients[number].wait()
        self.spawn(number)
        self.done["clients killed"] += 1

    def backend(self, number, session, act):
        """Something befalls the backend of a client's connection, if there is one."""
        def do(db):
            return db.execute(f"SELECT pid, {act} FROM pg_stat_activity WHERE application_name = %s",
                              (f"torture-{number}-{session}",)).fetchone()

        row = self.ask(do)
        return row and row[0]

    def cancel(self, number, session):
        if self.backend(number, session, "pg_cancel_backend(pid)"):
            self.done["cancels"] += 1

    def terminate(self, number, session):
        if self.backend(number, session, "pg_terminate_backend(pid)"):
            self.done["terminations"] += 1

    def kill_backend(self, number, session):
        pid = self.backend(number, session, "true")
        if pid:
            os.kill(pid, signal.SIGKILL)
            self.done["backends killed"] += 1

    def crash(self):
        self.primary.kill()
        self.primary.start()
        self.done["crashes"] += 1
        asked = time.time()
        leases = self.ask(self.primary.contents)["leases"]
        self.history.note(k="seen", e=self.primary.era, t=asked, leases=leases)

    def promote(self, held):
        if held:
            self.standby.stop()
            until = time.monotonic() + held
            while time.monotonic() < until:
                self.tend()
                time.sleep(0.01)
        old = self.primary
        self.history.note(k="end", e=old.era, t=time.time())
        old.kill()
        if held:
            self.standby.start()
        self.standby.promote()
        self.primary = self.standby
        self.db = None
        self.history.note(k="seen", e=self.primary.era, t=time.time(), leases=self.ask(self.primary.contents)["leases"],
                          promoted=True)
        self.announce()
        self.done["promotions"] += 1
        self.done["promotions with a standby held back"] += held > 0
        self.tend()
        self.dumps.append({**old.last_contents(self.work), "t": float("inf")})
        self.tend()
        self.standby = self.new_standby()

    def read_logs(self):
        for log in sorted(self.work.glob("server*.log")):
            for line in log.read_text(errors="replace").splitlines():
                if any(word in line for word in ("PANIC:", "TRAP:", "runtime error:")) or \
                        "terminated by signal" in line and "signal 9" not in line and "signal 15" not in line:
                    self.broken.append(f"{log.name}: {line}")
        for (what, state), number in self.book.states.items():
            if state.startswith("XX"):
                self.broken.append(f"{number} times {state} from {what}")
        errors = (self.work / "errors").read_text()
        if errors:
            self.broken.append(errors[-2000:])
