#!/usr/bin/python3
"""Three more scenes that demo/run plays: many leases at once, one run a slot, and a database that has no lease.

The workers are connections here, not processes: a worker that is gone or paused is one whose connection does nothing.
The libpq variables say where the first database is, ARCHIVE where the second one is, on another server; both have to be
empty. Exits with 0 when everything went as promised.
"""

import json
import os
import sys
import time

import psycopg

from stage import MARGIN, Screen

NAMES = ("w1", "w2", "w3")
SHARDS = [f"shard/{n}" for n in range(1, 13)]
TTL = "2 s"
PATIENCE = 15

SCHEMA = """
CREATE EXTENSION leader_lease;

-- one table with the rows of all shards: the lease of a row is 'shard/' and its column shard
CREATE TABLE item (shard int PRIMARY KEY, writes int NOT NULL DEFAULT 0, token bigint);
INSERT INTO item (shard) SELECT generate_series(1, 12);
SELECT lease_protect('item', 'shard/', token_column => 'token', key_column => 'shard');

CREATE TABLE report (slot text, made_by text, token bigint);
SELECT lease_protect('report', 'reports', token_column => 'token');
"""

ARCHIVE = """
CREATE EXTENSION leader_lease;
CREATE TABLE entry (line text, token bigint NOT NULL);
SELECT lease_protect('entry', 'reports', token_column => 'token', proof => 'highest');
"""


class Worker:
    """A connection to each server, and what the worker believes that it leads."""

    def __init__(self, name):
        self.name, self.mark, self.terms = name, " ", {}
        self.db = psycopg.connect(autocommit=True, application_name=name)
        self.archive = psycopg.connect(os.environ["ARCHIVE"], autocommit=True, application_name=name)

    def query(self, query, *arguments):
        return self.db.execute(query, arguments).fetchall()

    def one(self, query, *arguments):
        return self.query(query, *arguments)[0][0]

    def take(self, most):
        """Take free shards, at most that many. Return how many that were."""
        rows = self.query("SELECT role, token FROM lease_acquire_any(%s, %s, %s, %s)", SHARDS, self.name, most, TTL)
        self.terms.update(rows)
        return len(rows)

    def renew(self):
        self.terms = dict(self.query("SELECT role, token FROM lease_renew_all(%s)", self.name))

    def write(self, shards):
        """Write the rows of shards, each with the token of its term, shown by the setting. Return how many, or the error."""
        claims = [{"role": role, "holder": self.name, "token": token} for role, token in self.terms.items()]
        try:
            with self.db.transaction():
                self.db.execute("SELECT set_config('leader_lease.fence', %s, true)", (json.dumps(claims),))
                return self.db.execute("UPDATE item SET writes = writes + 1 WHERE 'shard/' || shard = ANY (%s)",
                                       (list(shards),)).rowcount
        except psycopg.Error as error:
            return error.sqlstate

    def file(self, line, token):
        """Write to the other server, which knows nothing of the lease. Return None, or the error."""
        try:
            self.archive.execute("INSERT INTO entry VALUES (%s, %s)", (line, token))
        except psycopg.Error as error:
            return error


class Scenes:
    def __init__(self):
        self.screen = Screen(NAMES)
        with psycopg.connect(autocommit=True) as db:
            db.execute(SCHEMA)
        with psycopg.connect(os.environ["ARCHIVE"], autocommit=True) as db:
            db.execute(ARCHIVE)
        self.workers = [Worker(name) for name in NAMES]
        self.promises = []

    def tell(self, worker, words, mark=None):
        worker.mark = mark or worker.mark
        self.screen.lanes(self.workers, worker, words)

    def promise(self, text, kept):
        self.promises.append((text, bool(kept)))

    def shards(self):
        self.screen.act("Twelve shards, three workers: each takes four in one call, and writes the rows of its own.")
        first, gone, third = self.workers
        for worker in self.workers:
            worker.take(4)
            self.tell(worker, "leads " + ", ".join(sorted((r[6:] for r in worker.terms), key=int)), "*")
        self.promise("each of three workers got four of twelve shards, no shard two",
                     all(len(w.terms) == 4 for w in self.workers) and
                     len(set().union(*(w.terms for w in self.workers))) == 12)
        self.promise("each wrote the rows of its shards in one statement", all(w.write(w.terms) == 4 for w in self.workers))
        self.promise("and none of another's", first.write(third.terms) == "LF002")

        self.screen.act(f"{gone.name} falls silent. The others renew with lease_renew_all, and take what gets free.")
        self.tell(gone, "falls silent", "=")
        silent = time.monotonic()
        free = 0
        while free < 4:
            if time.monotonic() > silent + PATIENCE:
                sys.exit(f"the shards of {gone.name} were not taken over in {PATIENCE} s")
            time.sleep(0.05)
            for worker in (first, third):
                worker.renew()
                free += worker.take(6 - len(worker.terms))
        took = time.monotonic() - silent
        for worker in (first, third):
            self.tell(worker, "leads " + ", ".join(sorted((r[6:] for r in worker.terms), key=int)))
        self.promise(f"after {took:.2f} s, with a ttl of {TTL}, the others led its shards, six each",
                     len(first.terms) == len(third.terms) == 6 and took < 4)

        self.screen.act(f"{gone.name} wakes, and writes its four shards.")
        code = gone.write(gone.terms)
        self.tell(gone, f"REFUSED with {code}", "!")
        gone.renew()
        self.tell(gone, "renews: leads nothing" if not gone.terms else "leads still", ".")
        self.promise("the writes of the silent one were refused with LF001", code == "LF001")
        self.promise("and lease_renew_all told it that it leads nothing", not gone.terms)

    def slot(self):
        early, late, _ = self.workers
        self.screen.act("A report for 09:00. It takes 20 ms, then the lease is free again, and a replica whose timer is "
                        "late gets it: a lock alone would let it run the report twice.")
        for worker in (early, late):
            worker.mark = "."
        for worker in (early, late):
            token = worker.one("SELECT lease_acquire('reports', %s, %s)", worker.name, TTL)
            with worker.db.transaction():
                first = worker.one("SELECT lease_claim_slot('reports', %s, %s, '09:00')", worker.name, token)
                if first:
                    worker.db.execute("INSERT INTO report VALUES ('09:00', %s)", (worker.name,))
                    time.sleep(0.02)
            worker.one("SELECT lease_release('reports', %s, %s)", worker.name, token)
            self.tell(worker, f"leads, token {token}: " + ("claims 09:00, reports" if first else "09:00 is claimed"), "*")
            worker.mark = "."
            time.sleep(0.1)
        rows = early.query("SELECT slot, made_by, token FROM report")
        self.promise("the late replica had the lease, but not the slot: one report for 09:00",
                     [row[1] for row in rows] == [early.name])

    def archive(self):
        old, new, _ = self.workers
        self.screen.act("A second server, which has no lease, only a table with proof => 'highest'. It refuses what is "
                        "older than the newest token that it has seen.")
        term = {}
        for worker, line in (old, "written in time"), (new, "written by the successor"):
            term[worker] = worker.one("SELECT lease_acquire('reports', %s, %s)", worker.name, TTL)
            error = worker.file(line, term[worker])
            self.tell(worker, f"token {term[worker]}: " + ("REFUSED" if error else "written there"), "*")
            self.promise(f"the second server took token {term[worker]}", not error)
            worker.one("SELECT lease_release('reports', %s, %s)", worker.name, term[worker])
            worker.mark = "."
        error = old.file("written too late", term[old])
        self.tell(old, f"token {term[old]}: REFUSED" if error else "token written", "!")
        if error:
            self.screen.say(f"ERROR {error.sqlstate}: {error.diag.message_primary}", MARGIN, MARGIN + "  ", "31")
            self.screen.say(f"DETAIL: {error.diag.message_detail}", MARGIN, MARGIN + "  ", "31")
        self.promise("and refused the token before it with LF001", error is not None and error.sqlstate == "LF001")

        newest = old.one("SELECT lease_acquire('reports', %s, %s)", old.name, TTL)
        error = new.file("written between", term[new])
        self.screen.say(f"Token {newest} is granted, but has not been shown there yet: token {term[new]} still passes. A "
                        "new leader writes there first, then.", MARGIN, MARGIN)
        self.promise(f"what it cannot do: token {term[new]} passed until token {newest} was shown", not error)
        error = old.file("first write of the new term", newest) or new.file("written too late", term[new])
        self.promise("and no longer", error is not None and error.sqlstate == "LF001")

    def summary(self):
        self.screen.say()
        for text, kept in self.promises:
            self.screen.say(text, "   ok    " if kept else "   FAIL  ", " " * 9, None if kept else "31;1")
        return all(kept for _, kept in self.promises)


def main():
    scenes = Scenes()
    for scene in scenes.shards, scenes.slot, scenes.archive:
        scene()
    sys.exit(0 if scenes.summary() else 1)


main()
