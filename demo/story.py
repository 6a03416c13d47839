#!/usr/bin/python3
"""The story that demo/run tells: start the workers, trouble them, draw what they report, and test the outcome.

The libpq variables say where the database is; it has to be empty. Exits with 0 when everything went as promised.
"""

import os
import signal
import sys
import time
from queue import Empty, Queue

import psycopg

from stage import MARGIN, Screen, Worker

NAMES = ("w1", "w2", "w3")
PATIENCE = 15       # seconds to wait for an event before the demo has failed

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
"""

LEASE = "SELECT ttl, remaining FROM lease_status WHERE role = 'scheduler'"

# who waits, in order: the first has the queue's lock and watches the lease
QUEUE = """
SELECT array_agg(pid ORDER BY granted DESC, position) FROM lease_locks WHERE role = 'scheduler' AND mode = 'queue'
"""

HISTORY = """
SELECT h.fencing_token, h.holder_id, h.acquired_at - %(start)s, h.ended_at - %(start)s, h.end_reason,
       count(j.id), min(j.id), max(j.id)
  FROM lease_history h
  LEFT JOIN job j ON (j.completed_by_token, j.completed_by) = (h.fencing_token, h.holder_id)
 WHERE h.role = 'scheduler'
 GROUP BY 1, 2, 3, 4, 5
 ORDER BY 1
"""

# What must hold in the table at the end. Each query counts what breaks it.
INVARIANTS = {
    "each term has a higher token than the one before, and began when that one had ended":
        """SELECT count(*)
             FROM (SELECT acquired_at, lag(ended_at, 1, '-infinity') OVER (ORDER BY fencing_token) AS ended_before
                     FROM lease_history) h
            WHERE ended_before IS NULL OR acquired_at < ended_before""",
    "no job was completed twice":
        "SELECT count(*) FROM job WHERE completions > 1",
    "no job was left out":
        "SELECT max(id) - count(*) FROM job WHERE completions > 0",
    "none bears a stale token: each has token and holder of the term in which it was written":
        """SELECT count(*) FROM job j WHERE completions > 0 AND NOT EXISTS (
               SELECT FROM lease_history h
                WHERE (h.fencing_token, h.holder_id) = (j.completed_by_token, j.completed_by)
                  AND j.completed_at BETWEEN h.acquired_at AND h.ended_at)""",
}


class Failed(Exception):
    """The story cannot go on."""


class Story:
    def __init__(self, db):
        self.db = db
        self.screen = Screen(NAMES)
        self.events = Queue()
        self.workers = [Worker(name, self.events) for name in NAMES]
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
        elif kind == "done":
            self.reported[event["job"]] = event["token"]
        worker.mark, words = {
            "waits": (".", "waits"),
            "leads": ("*", "LEADS, token {token}"),
            "done": ("*", "job {job} done"),
            "refused": ("!", "job {job} REFUSED"),
            "released": (".", "releases token {token}"),
            "leaves": (".", "stops waiting"),
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
            except Empty:
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

    def join(self, worker, *options):
        """Start a worker, and wait until it stands in the queue."""
        worker.start(*options)
        self.wait_queued(worker)

    def wait_queued(self, worker):
        pid = self.wait("waits", worker)["pid"]     # right after it has said so, it joins
        until = time.monotonic() + PATIENCE
        while pid not in (self.one(QUEUE) or ()):
            if time.monotonic() > until:
                raise Failed(f"{worker.name} is not in the queue after {PATIENCE} s")
            time.sleep(0.02)

    def begin(self):
        self.screen.act("Three workers want the lease: the first leads, the others wait in turn. "
                        "Its holder does one job a second.")
        first, second, third = self.workers
        first.start()
        self.wait("leads", first)
        self.join(second)
        self.join(third, "--bind")
        self.jobs(2)

    def kill(self):
        """kill -9: the dead leader tells nobody, so the others wait until the lease has run out."""
        victim, job = self.leader, self.wait("works", self.leader)["job"]
        killed = victim.signal(signal.SIGKILL)
        ttl, left = (interval.total_seconds() for interval in self.db.execute(LEASE).fetchone())
        self.screen.act(f"kill -9 for {victim.name}, in the middle of job {job}. "
                        f"Of {ttl:g} s, the lease has {left:.1f} s left.")
        event = self.wait("leads")
        self.unbound = event["at"] - killed
        self.screen.say(f"Takeover {self.unbound:.2f} s after the kill.", MARGIN, MARGIN)
        self.promise(f"after kill -9 the lease had {left:.2f} s left, and the next one led after {self.unbound:.2f} s",
                     left - 0.1 < self.unbound < left + 1)
        self.promise("it was the one that had waited longest", event["worker"] is self.workers[1])
        self.screen.say(f"{victim.name} is started again, and waits in turn.", MARGIN, MARGIN)
        self.join(victim)
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
        self.wait_queued(sleeper)
        self.promise(f"the write of the paused leader was refused with {event['sqlstate']}",
                     (event["sqlstate"], event["job"]) == ("LF001", job))
        self.promise(f"and job {job} stayed as its successor had written it",
                     job in self.reported and self.written(job) == before)
        self.jobs(1)

    def kill_bound(self):
        """kill -9 again: this leader's term is bound to its connection, whose end the server notices at once."""
        victim, job = self.leader, self.wait("works", self.leader)["job"]
        killed = victim.signal(signal.SIGKILL)
        left = self.one("SELECT extract(epoch FROM expires_at - clock_timestamp()) FROM lease_status")
        self.screen.act(f"kill -9 for {victim.name}, in the middle of job {job}. Its term is bound to its connection. "
                        f"Without that, it would have {left:.1f} s left.")
        took = self.wait("leads")["at"] - killed
        self.screen.say(f"Takeover {took:.2f} s after the kill. Unbound, it took {self.unbound:.2f} s.", MARGIN, MARGIN)
        self.promise(f"after kill -9 of a leader bound to its connection the next one led after {took:.2f} s",
                     took < min(1, left))
        self.screen.say(f"{victim.name} is started again, and waits in turn.", MARGIN, MARGIN)
        self.join(victim, "--bind")
        self.jobs(2)

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
        self.jobs(1)

    def end(self):
        waiter, leader = next(w for w in self.workers if w.mark == "."), self.leader
        self.screen.act(f"The end: SIGTERM for {waiter.name}, which waits, and then for {leader.name}.")
        waiter.signal(signal.SIGTERM)
        self.promise("after SIGTERM the waiting one left the queue and exited with 0",
                     self.wait("ended", waiter)["code"] == 0 and self.one(QUEUE) is None)
        leader.signal(signal.SIGTERM)
        self.wait("ended", leader)

    def summary(self, start):
        """Read the outcome back from the tables. Return whether all is as promised."""
        say = self.screen.say
        self.screen.act("What the history and the table say", lanes=False)
        say("token  holder     term (s)      ended by       jobs", "   ")
        reasons = []
        for token, holder, begun, ended, reason, count, first, last in self.db.execute(HISTORY, {"start": start}):
            term = f"{begun.total_seconds():4.1f} to {ended.total_seconds():4.1f}" if ended else "not ended"
            say(f"{token:5}  {holder:9}  {term:12}  {reason or '':13}  {count} ({first} to {last})", "   ")
            reasons.append(reason)
        say()

        self.promise("the history tells how each term ended",
                     reasons == ["expired", "expired", "session_ended", "released", "released"])
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
            for act in story.begin, story.kill, story.pause, story.kill_bound, story.leave, story.end:
                act()
            kept = story.summary(start)
        except Failed as failure:
            story.screen.say(f"The demo failed: {failure}", colour="31;1")
            kept = False
        finally:
            for process in [w.process for w in story.workers if w.process]:
                process.kill()
                process.wait()
    sys.exit(0 if kept else 1)


main()
