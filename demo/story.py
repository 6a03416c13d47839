#!/usr/bin/python3
"""The story that demo/run tells: start the workers, trouble them, draw what they report, and test the outcome.

The libpq variables say where the database is; it has to be empty. Exits with 0 when everything went as promised.
"""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psycopg

WORKER = Path(__file__).with_name("worker.py")
NAMES = ("w1", "w2", "w3")
PATIENCE = 15       # seconds to wait for an event before the demo has failed
MARGIN = " " * 8    # where the lanes begin, behind the time

SCHEMA = """
CREATE EXTENSION leader_lease;
CREATE TABLE job (
    id int PRIMARY KEY,
    completed_at timestamptz,
    completed_by text,
    completed_by_token bigint,
    completions int NOT NULL DEFAULT 0
);
INSERT INTO job SELECT generate_series(1, 1000);
SELECT lease_protect('job', 'scheduler', token_column => 'completed_by_token');

-- The terms, noted whenever a worker says that it leads. Each lasts, at most, until the next one begins.
CREATE TABLE grants (token bigint PRIMARY KEY, holder text, at timestamptz);
CREATE VIEW term AS
SELECT token, holder, at AS begun, coalesce(lead(at) OVER (ORDER BY token), now()) AS ended FROM grants;
"""

NOTE_GRANT = """
INSERT INTO grants SELECT fencing_token, holder_id, acquired_at FROM lease_status WHERE role = 'scheduler'
"""

LEASE = "SELECT ttl, remaining FROM lease_status WHERE role = 'scheduler'"

SUMMARY = """
SELECT t.token, t.holder, t.begun - %(start)s, t.ended - %(start)s, count(j.id), min(j.id), max(j.id)
  FROM term t LEFT JOIN job j ON (j.completed_by_token, j.completed_by) = (t.token, t.holder)
 GROUP BY 1, 2, 3, 4
 ORDER BY 1
"""

# What must hold in the table at the end. Each query counts what breaks it.
INVARIANTS = {
    "each term has a higher token than the one before":
        "SELECT count(*) FROM term WHERE ended < begun",
    "no job was completed twice":
        "SELECT count(*) FROM job WHERE completions > 1",
    "no job was left out":
        "SELECT max(id) - count(*) FROM job WHERE completions > 0",
    "none bears a stale token: each has token and holder of the term in which it was written":
        """SELECT count(*) FROM job j WHERE completions > 0 AND NOT EXISTS (
               SELECT FROM term t
                WHERE (t.token, t.holder) = (j.completed_by_token, j.completed_by)
                  AND j.completed_at BETWEEN t.begun AND t.ended)""",
}


class Failed(Exception):
    """The story cannot go on."""


class Screen:
    """A timeline with one lane a worker. A mark in each lane shows at every line who leads."""

    LEGEND = "* leads   . stands by   = is stopped   ! is refused   x is gone"
    COLOURS = {"*": "32;1", ".": "2", "=": "33", "!": "31;1", "x": "31"}

    def __init__(self):
        self.start = time.monotonic()
        self.columns = max(40, min(100, shutil.get_terminal_size((100, 24)).columns))
        self.lane = (self.columns - len(MARGIN)) // len(NAMES)
        self.coloured = (sys.stdout.isatty() and not os.environ.get("NO_COLOR")
                         and os.environ.get("TERM", "dumb") != "dumb")

    def paint(self, text, colour):
        return f"\033[{colour}m{text}\033[0m" if self.coloured and colour and text else text

    def say(self, text="", first="", then="", colour=None):
        for line in textwrap.wrap(text, self.columns, initial_indent=first, subsequent_indent=then) or [""]:
            print(self.paint(line, colour), flush=True)

    def act(self, title, names=NAMES):
        self.say()
        self.say(title, "== ", "   ", "1")
        if names:
            print((MARGIN + "".join(f"{name:{self.lane}}" for name in names)).rstrip(), flush=True)

    def lanes(self, workers, worker, words):
        """Print one line of the timeline: what happens in one lane, and the mark of each."""
        clock = f"{time.monotonic() - self.start:5.1f} s "
        for part in textwrap.wrap(words, self.lane - 3):
            cells = [self.paint(f"{w.mark} {part if w is worker else '':{self.lane - 2}}", self.COLOURS.get(w.mark))
                     for w in workers]
            print((clock + "".join(cells)).rstrip(), flush=True)
            clock = MARGIN


class Worker:
    """A worker process, and a thread that puts what it reports into the queue of events."""

    def __init__(self, name, events):
        self.name, self.mark, self.dismissed = name, " ", False
        self.process = subprocess.Popen([sys.executable, "-I", WORKER, name],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self.listen, args=(events,), daemon=True).start()

    def listen(self, events):
        for line in self.process.stdout:
            events.put({"worker": self, "at": time.monotonic(), **json.loads(line)})
        events.put({"worker": self, "at": time.monotonic(), "event": "ended", "code": self.process.wait()})

    def signal(self, number):
        self.dismissed = number in (signal.SIGKILL, signal.SIGTERM)
        self.process.send_signal(number)
        return time.monotonic()


class Story:
    def __init__(self, db):
        self.db = db
        self.screen = Screen()
        self.events = queue.Queue()
        self.workers = []
        self.leader = None
        self.reported = {}      # job -> token, as the workers said
        self.promises = []      # (what was promised, was it kept?)

    def one(self, query, *arguments):
        return self.db.execute(query, arguments).fetchone()[0]

    def written(self, job):
        return self.db.execute("SELECT * FROM job WHERE id = %s", (job,)).fetchone()

    def promise(self, text, kept):
        self.promises.append((text, bool(kept)))

    def note(self, event):
        """Keep what an event tells, and draw it."""
        worker, kind = event["worker"], event["event"]
        if kind == "works":
            return
        if kind == "leads":
            self.leader = worker
            self.db.execute(NOTE_GRANT)
        elif kind == "done":
            self.reported[event["job"]] = event["token"]
        worker.mark, words = {
            "stands by": (".", "stands by"),
            "leads": ("*", "LEADS, token {token}"),
            "done": ("*", "job {job} done"),
            "refused": ("!", "job {job} REFUSED"),
            "released": (".", "releases token {token}"),
            "ended": ("x", "killed" if event.get("code") == -signal.SIGKILL else "exits with {code}"),
        }.get(kind, (worker.mark, kind))
        self.screen.lanes(self.workers, worker, words.format(**event))
        if kind == "done" and worker is not self.leader:
            raise Failed(f"{worker.name} wrote job {event['job']} with the stale token {event['token']}")

    def wait(self, kind, worker=None):
        """Take events until one of this kind comes, from this worker if one is given."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                event = self.events.get(timeout=max(until - time.monotonic(), 0))
            except queue.Empty:
                raise Failed(f"{worker.name if worker else 'nobody'} reported no {kind!r} in {PATIENCE} s") from None
            self.note(event)
            if event["event"] == kind and worker in (None, event["worker"]):
                return event
            if event["event"] == "ended" and not event["worker"].dismissed:
                raise Failed(f"{event['worker'].name} ended by itself")

    def jobs(self, count):
        """Wait until the leader has done that many more."""
        for _ in range(count):
            self.wait("done", self.leader)

    def begin(self):
        self.screen.act("Three workers compete for the lease. Its holder does one job a second.")
        self.workers += [Worker(name, self.events) for name in NAMES]
        self.wait("leads")
        self.jobs(3)

    def kill(self):
        """kill -9: the dead leader tells nobody, so the others wait until the lease has run out."""
        victim, job = self.leader, self.wait("works", self.leader)["job"]
        killed = victim.signal(signal.SIGKILL)
        ttl, left = (interval.total_seconds() for interval in self.db.execute(LEASE).fetchone())
        self.screen.act(f"kill -9 for {victim.name}, in the middle of job {job}. "
                        f"Of {ttl:g} s, the lease has {left:.1f} s left.")
        took = self.wait("leads")["at"] - killed
        self.screen.say(f"Takeover {took:.2f} s after the kill.", MARGIN, MARGIN)
        self.promise(f"after kill -9 the lease had {left:.2f} s left, and the next one led after {took:.2f} s",
                     left - 0.1 < took < left + 1)
        self.jobs(2)
        self.promise(f"and it did job {job}, which the killed one had begun", job in self.reported)

    def pause(self):
        """SIGSTOP between the look at the clock and the write: only the database can refuse that write."""
        sleeper = self.leader
        while True:
            job = self.wait("works", sleeper)["job"]
            stopped = sleeper.signal(signal.SIGSTOP)
            os.waitid(os.P_PID, sleeper.process.pid, os.WSTOPPED)
            if not self.one("SELECT completions FROM job WHERE id = %s", job):
                break
            sleeper.signal(signal.SIGCONT)      # so slow a machine that the write was out already: the next job
        sleeper.mark = "="
        self.screen.act(f"SIGSTOP for {sleeper.name}. It has looked at its clock, works on job {job} and has not "
                        "written it yet.")
        self.screen.lanes(self.workers, sleeper, f"stopped in job {job}")
        took = self.wait("leads")["at"] - stopped
        self.screen.say(f"Takeover {took:.2f} s after the stop.", MARGIN, MARGIN)
        self.jobs(2)
        before = self.written(job)

        self.screen.act(f"SIGCONT for {sleeper.name}. It still believes that it leads, and writes job {job}.")
        sleeper.signal(signal.SIGCONT)
        event = self.wait("refused", sleeper)
        for word, part in (f"ERROR {event['sqlstate']}", "message"), ("DETAIL", "detail"), ("HINT", "hint"):
            if event[part]:
                self.screen.say(f"{word}: {event[part]}", MARGIN, MARGIN + "  ", "31")
        self.wait("stands by", sleeper)
        self.promise(f"the write of the paused leader was refused with {event['sqlstate']}",
                     (event["sqlstate"], event["job"]) == ("LF001", job))
        self.promise(f"and job {job} stayed as its successor had written it",
                     job in self.reported and self.written(job) == before)
        self.jobs(1)

    def leave(self):
        """SIGTERM: the leader gives the lease back, and nobody has to wait for its end."""
        leaver, job = self.leader, self.wait("works", self.leader)["job"]
        leaver.signal(signal.SIGTERM)
        self.screen.act(f"SIGTERM for {leaver.name}. It finishes job {job} and gives the lease back.")
        released = self.wait("released", leaver)["at"]
        took = self.wait("leads")["at"] - released
        self.screen.say(f"Takeover {took:.2f} s after the release.", MARGIN, MARGIN)
        self.promise(f"after SIGTERM the leader finished job {job} and exited with 0",
                     job in self.reported and leaver.process.wait(PATIENCE) == 0)
        self.promise(f"and the next one led at once: {took:.2f} s after the release", took < 1)
        self.jobs(2)

    def end(self):
        self.screen.act(f"The end: SIGTERM for {self.leader.name} too.")
        self.leader.signal(signal.SIGTERM)
        self.wait("ended", self.leader)

    def summary(self, start):
        """Read the outcome back from the table. Return whether all is as promised."""
        say = self.screen.say
        self.screen.act("What the table says", names=())
        say("token  holder     term (s)       jobs", "   ")
        for token, holder, begun, ended, count, first, last in self.db.execute(SUMMARY, {"start": start}):
            term = f"{begun.total_seconds():4.1f} to {ended.total_seconds():4.1f}"
            say(f"{token:5}  {holder:9}  {term}   {count} ({first} to {last})", "   ")
        say()

        for text, query in INVARIANTS.items():
            self.promise(text, self.one(query) == 0)
        done = self.db.execute("SELECT id, completed_by_token FROM job WHERE completions > 0").fetchall()
        self.promise(f"all {len(done)} jobs are there as the workers reported them", dict(done) == self.reported)
        try:
            self.db.execute("UPDATE job SET completed_by = 'me' WHERE id = 1")
            code = "nothing"
        except psycopg.Error as error:
            code = error.sqlstate
        self.promise(f"a write by hand, without a fence, was refused with {code}", code == "LF002")

        for text, kept in self.promises:
            say(text, "   ok    " if kept else "   FAIL  ", " " * 9, None if kept else "31;1")
        return all(kept for _, kept in self.promises)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with psycopg.connect(autocommit=True, application_name="story") as db:
        db.execute(SCHEMA)
        start = db.execute("SELECT clock_timestamp()").fetchone()[0]
        story = Story(db)
        story.screen.say(Screen.LEGEND, MARGIN)
        try:
            for act in story.begin, story.kill, story.pause, story.leave, story.end:
                act()
            kept = story.summary(start)
        except Failed as failure:
            story.screen.say(f"The demo failed: {failure}", colour="31;1")
            kept = False
        finally:
            for worker in story.workers:
                worker.process.kill()
                worker.process.wait()
    sys.exit(0 if kept else 1)


main()
