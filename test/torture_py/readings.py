"""What a client's history proves: which terms it had and when they were live for sure, when its transactions held a
lease's lock for sure, and what it should have been refused.

The words: a term's *end* is up to when it was live for sure, its *limit* is when it was over for sure. All is reckoned
against the extension: what is not known for sure proves nothing.
"""

import json
import math

SLACK = 0.002       # between the clock of the histories and the one that decides in the server, in seconds


class Term:
    def __init__(self, event, holder, start, end, limit):
        self.x = event["x"]         # granted in this transaction
        self.era = event["e"]
        self.role = event["role"]
        self.token = event["val"]
        self.holder = holder
        self.asked = start          # granted between these two
        self.granted = event["s1"]
        self.end = end
        self.cut = math.inf         # not live for sure after this
        self.limit = limit
        self.proof = start          # was live then, as later events prove
        self.acked = None           # committed, as the client knows since then
        self.void = False           # rolled back
        self.released = math.inf


class Lock:
    """A lock on a lease that a transaction held for sure between two moments."""

    def __init__(self, role, token, depth, start):
        self.role = role
        self.token = token
        self.depth = depth
        self.start = start
        self.until = math.inf       # an error has taken it by then
        self.ended = None           # a fence whose term its transaction ended, at this depth


class Write:
    def __init__(self, event, depth):
        self.id = event["id"]
        self.role = event["role"]
        self.token = event["token"]
        self.way = event["way"]
        self.depth = depth
        self.fate = None            # committed, absent, or not known
        self.era = None
        self.durable = False


class Transaction:
    def __init__(self, event):
        self.x = event["x"]
        self.era = event["e"]
        self.one_snapshot = event["level"] != "READ COMMITTED"
        self.snapshot = None        # taken by then
        self.alive = event["c0"]
        self.savepoints = []
        self.fences = []
        self.takeovers = []
        self.claims = set()
        self.released = {}          # lease: depth at which its term was ended
        self.writes = []
        self.pending = []           # (depth, what a commit does, what an unknown outcome does)

    @property
    def depth(self):
        return len(self.savepoints)

    def fence(self, role, token=None):
        for lock in self.fences:
            if lock.role == role and lock.ended is None and token in (None, lock.token):
                return lock
        return None


class Reader:
    """Reads one client's history. What it finds is collected in `book`."""

    def __init__(self, book, finishes):
        self.book = book
        self.finishes = finishes    # of prepared transactions, by the director
        self.terms = {}
        self.unsure = set()         # leases that an unanswered request may have got
        self.open = {}
        self.prepared = {}
        self.durable = False
        self.holder = None

    def read(self, path):
        asked = None
        with open(path) as file:
            for line in file:
                if line.endswith("\n"):
                    event = json.loads(line)
                    asked = event if "c0" in event and "res" not in event else None
                    if asked is None:
                        self.event(event)
        if asked is not None:
            self.event({**asked, "c1": math.inf, "res": "lost"})
        for tx in self.open.values():
            self.close(tx, tx.alive, None)
        for tx in self.prepared.values():
            self.conclude(tx, self.finishes.get(tx.x))
        self.book.terms += [term for term in self.terms.values()]

    def event(self, event):
        if event["k"] == "client":
            self.holder, self.durable = event["holder"], event["durable"]
            return
        self.book.count(event)
        if event["k"] == "begin" and event["res"] == "ok":
            self.open[event["x"]] = Transaction(event)
        tx = self.open.get(event["x"])
        if tx is not None:
            tx.alive = max(tx.alive, event["c0"]) if event["res"] == "ok" else tx.alive
        handler = getattr(self, event["k"], None)
        if handler is not None:
            handler(event, tx)
        if tx is not None and event["res"] == "ok" and event["k"] not in ("begin", "savepoint", "claim") and \
                tx.snapshot is None:
            tx.snapshot = event["c1"]
        if event["res"] == "err" and tx is not None:
            # the server has rolled back to the last savepoint, or all, and waits to be told so
            for lock in tx.fences + tx.takeovers:
                if lock.depth >= tx.depth:
                    lock.until = min(lock.until, tx.alive)
        if event["res"] == "lost" and event["x"] in self.open:
            del self.open[event["x"]]
            self.close(tx, tx.alive, False)

    def blame(self, invariant, event, words):
        self.book.blame(invariant, f"{self.holder}, lease {event['role']}: {words}; {json.dumps(event)}")

    def term_of(self, event):
        return self.terms.get((event["role"], event["token"]))

    def act(self, event, tx, term, start, invariant, what):
        """Something was done for a term. It must not be over."""
        if term is None:
            self.blame(invariant, event, f"{what} for a term that was never granted")
        elif event["e"] != term.era:
            self.blame(invariant, event, f"{what} for a term of before a promotion")
        elif start > term.limit + SLACK:
            self.blame(invariant, event, f"{what} {start - term.limit:.3f} s after the term had run out")
        elif start > term.released + SLACK or tx is not None and event["role"] in tx.released:
            self.blame(invariant, event, f"{what} after the term was released")
        else:
            term.proof = max(term.proof, start)

    # functions that begin, prolong and end terms

    def prolong(self, event, tx, term, end, limit):
        def sure():
            term.end = end

        def unsure():
            term.end = min(term.end, end)

        if tx is None:
            term.end, term.limit = end, limit
        else:
            term.limit = max(term.limit, limit)
            tx.pending.append([tx.depth, sure, unsure])

    def unanswered(self, event, term):
        term.limit = max(term.limit, event["c1"] + event["ttl"])
        term.end = min(term.end, event["c0"] + event["ttl"])

    def acquire(self, event, tx):
        role = event["role"]
        if event["by"] == "revoke" and event["res"] != "err":
            self.book.revoked[event["e"], role].append((event["c0"], event["c1"], event.get("val")))
        if event["res"] == "lost":
            self.unsure.add(role)
            for term in self.terms.values():
                if term.role == role:
                    self.unanswered(event, term)
        if event["res"] != "ok" or event.get("val") is None:
            return
        if event["by"] == "hand":
            start, end, limit = event["c0"], event["s0"], event["s0"]
        else:
            start, end, limit = event["s0"], event["s0"] + event["ttl"], event["s1"] + event["ttl"]

        term = self.terms.get((role, event["val"]))
        if term is not None and term.era != event["e"]:
            self.book.terms.append(term)    # for the checker to compare
        elif term is not None and term.acked is None and term.x != event["x"]:
            self.unsure.add(role)           # was it rolled back? then this is a grant, else a renewal
        elif term is not None and not term.void:
            self.act(event, tx, term, start, "revive", "was acquired again with the same token,")
            self.prolong(event, tx, term, end, limit)
            return
        self.grant(event, tx, start, end, limit)

    def grant(self, event, tx, start, end, limit):
        role = event["role"]
        term = self.terms[role, event["val"]] = Term(event, self.holder, start, end, limit)
        sure = role not in self.unsure
        self.unsure.discard(role)
        if tx is None:
            term.acked = event["c1"]
            if sure:
                self.book.lock("takeover", event["e"], role, term.token, event["s1"], event["s1"], None)
            return
        for lock in tx.fences:
            if lock.role == role and lock.ended is None:
                lock.ended = tx.depth
        if sure:
            tx.takeovers.append(Lock(role, term.token, tx.depth, event["s1"]))
        tx.pending.append([tx.depth, lambda: None, lambda: None, term])

    def transfer(self, event, tx):
        """From the client to itself."""
        term = self.term_of(event)
        if event["res"] == "lost":
            self.unsure.add(event["role"])
            if term is not None:
                term.cut = min(term.cut, event["c0"])
        if event["res"] != "ok" or event["val"] is None:
            return
        self.act(event, tx, term, event["s0"], "ended", "was transferred")
        if term is not None:
            term.cut = min(term.cut, event["s0"])
            term.released = min(term.released, event["c1"])
        self.grant(event, tx, event["s0"], event["s0"] + event["ttl"], event["s1"] + event["ttl"])

    def renew(self, event, tx):
        term = self.term_of(event)
        if event["res"] == "lost" and term is not None:
            self.unanswered(event, term)
        if event["res"] != "ok" or event["val"] is None:
            return
        self.act(event, tx, term, event["s0"], "revive", "was renewed")
        if term is not None:
            self.prolong(event, tx, term, event["s0"] + event["val"], event["s1"] + event["val"])

    def release(self, event, tx):
        term = self.term_of(event)
        if term is None:
            return
        if event["res"] == "lost":
            term.cut = min(term.cut, event["c0"])
        if event["res"] != "ok" or not event["val"]:
            return
        self.act(event, tx, term, event["s0"], "ended", "was released")
        term.cut = min(term.cut, event["s0"])

        def sure():
            term.released = min(term.released, event["c1"])

        if tx is None:
            sure()
            return
        tx.released.setdefault(event["role"], tx.depth)
        for lock in tx.fences:
            if lock.role == event["role"] and lock.ended is None:
                lock.ended = tx.depth
        tx.pending.append([tx.depth, sure, lambda: None])

    # fences and writes

    def look_at_snapshot(self, event, tx, term):
        if tx is not None and tx.one_snapshot and tx.snapshot is not None and term is not None and \
                term.asked > tx.snapshot:
            self.blame("snapshot", event, "a fence of a term that the transaction's snapshot has not seen begin")

    def check(self, event, tx):
        if event["res"] != "ok" or not event["val"]:
            return
        if tx is not None and tx.fence(event["role"], event["token"]):
            return
        term = self.term_of(event)
        self.act(event, tx, term, event["s0"], "ended", "a fence was given")
        self.look_at_snapshot(event, tx, term)
        if tx is not None:
            tx.fences.append(Lock(event["role"], event["token"], tx.depth, event["s1"]))

    def claim(self, event, tx):
        if event["res"] == "ok":
            tx.claims.add(event["role"])

    def write(self, event, tx):
        role = event["role"]
        fence = tx.fence(role) if tx is not None else None
        write = Write(event, tx.depth if tx is not None else 0)
        self.book.writes.append(write)
        if event["res"] == "err":
            write.fate = "absent"
            if fence is not None and event["err"] in ("LF001", "LF002"):
                self.blame("unfenced", event, "a write was refused though its transaction holds the fence")
        if event["res"] != "ok":
            if tx is not None:
                tx.writes.append(write)
            return

        term = self.term_of(event)
        if event["val"] != event["token"]:
            self.blame("order", event, "the row was stamped with another token")
        if fence is None and not event["proof"] and (tx is None or role not in tx.claims):
            self.blame("unfenced", event, "a write without a fence")
        elif fence is None:
            self.act(event, tx, term, event["c0"], "ended", "a write")
        if fence is None or fence.token != event["token"]:
            self.look_at_snapshot(event, tx, term)
        if tx is None:
            write.fate, write.era, write.durable = "committed", event["e"], self.durable
            self.book.lock("fence", event["e"], role, event["token"], event["s0"], event["s0"], None)
            return
        if fence is None:
            tx.fences.append(Lock(role, event["token"], tx.depth, event["s0"]))
        tx.writes.append(write)

    # savepoints

    def savepoint(self, event, tx):
        if event["res"] == "ok":
            tx.savepoints.append(event["name"])

    def rollback_to(self, event, tx):
        if event["res"] != "ok":
            return
        depth = tx.savepoints.index(event["name"]) + 1
        del tx.savepoints[depth:]
        for kind in ("fences", "takeovers"):
            for lock in getattr(tx, kind):
                if lock.depth >= depth:
                    self.lock(kind[:-1], tx, lock, event["c0"])
            setattr(tx, kind, [lock for lock in getattr(tx, kind) if lock.depth < depth])
        for lock in tx.fences:
            if lock.ended is not None and lock.ended >= depth:
                lock.ended = None
        tx.released = {role: at for role, at in tx.released.items() if at < depth}
        for entry in tx.pending:
            if entry[0] >= depth and len(entry) > 3:
                entry[3].void = True
        tx.pending = [entry for entry in tx.pending if entry[0] < depth]
        for write in tx.writes:
            if write.depth >= depth:
                write.fate = "absent"

    def release_savepoint(self, event, tx):
        if event["res"] != "ok":
            return
        depth = tx.savepoints.index(event["name"]) + 1
        del tx.savepoints[depth - 1:]
        for thing in tx.fences + tx.takeovers + tx.writes:
            thing.depth = min(thing.depth, depth - 1)
        for lock in tx.fences:
            if lock.ended is not None:
                lock.ended = min(lock.ended, depth - 1)
        for entry in tx.pending:
            entry[0] = min(entry[0], depth - 1)
        tx.released = {role: min(at, depth - 1) for role, at in tx.released.items()}

    # how transactions end

    def commit(self, event, tx):
        del self.open[tx.x]
        if event["res"] == "ok":
            self.close(tx, event["c0"], True, event)
        else:
            self.close(tx, tx.alive, None if event["res"] == "lost" else False)

    def rollback(self, event, tx):
        if tx is not None:
            del self.open[tx.x]
            self.close(tx, event["c0"] if event["res"] == "ok" else tx.alive, False)

    def prepare(self, event, tx):
        del self.open[tx.x]
        if event["res"] == "ok":
            self.prepared[tx.x] = tx
        else:
            self.close(tx, tx.alive, None if event["res"] == "lost" else False)

    def finish(self, event, tx):
        if event["res"] == "ok":
            self.conclude(self.prepared.pop(event["of"]), event)

    def conclude(self, tx, event):
        """The end of a prepared transaction, by the client or by the director, or none that is known."""
        if event is None:
            self.close(tx, tx.alive, None)
        elif event["e"] == tx.era:
            self.close(tx, event["c0"], event["commit"], event)
        else:
            # it came over to the new server, and so did its locks
            start = self.book.eras[event["e"]][0]
            for lock in tx.fences:
                self.book.lock("fence", event["e"], lock.role, lock.token, start, event["c0"], tx.x)
            self.close(tx, tx.alive, event["commit"], event)

    def lock(self, kind, tx, lock, end):
        self.book.lock(kind, tx.era, lock.role, lock.token, lock.start, min(end, lock.until), tx.x)

    def close(self, tx, end, committed, event=None):
        for kind in ("fences", "takeovers"):
            for lock in getattr(tx, kind):
                self.lock(kind[:-1], tx, lock, end)
        for entry in tx.pending:
            if committed:
                entry[1]()
            elif committed is None:
                entry[2]()
            if len(entry) > 3 and committed is not None:
                entry[3].void = not committed
                entry[3].acked = event["c1"] if committed else None
        for write in tx.writes:
            if write.fate is None and committed is not None:
                write.fate = "committed" if committed else "absent"
                if committed or event is not None and event["k"] == "finish":
                    write.era = event["e"]
                    write.durable = self.durable or bool(tx.pending) or event["k"] == "finish"
