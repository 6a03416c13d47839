"""One client of the torture test: it competes for leases, works while it leads and long after, and notes what it saw.

    client.py WORK NUMBER RUN SEED BIAS

It keeps no deadline of its own: that is what the server is tested for. All its choices follow from SEED, NUMBER and
RUN.
"""

import json
import random
import sys
import time
from contextlib import contextmanager

import ways
from history import TIMED, History, Lost, Refused, Session
from servers import LEASES

HAND_UPSERT = """
INSERT INTO leader_lease AS l (role, holder_id, fencing_token, expires_at)
VALUES (%(role)s, %(holder)s, 1, clock_timestamp() + %(ttl)s * interval '1 second')
ON CONFLICT (role) DO UPDATE
   SET holder_id = EXCLUDED.holder_id, expires_at = EXCLUDED.expires_at,
       fencing_token = CASE WHEN l.holder_id = EXCLUDED.holder_id AND l.expires_at > clock_timestamp()
                            THEN l.fencing_token ELSE l.fencing_token + 1 END
 WHERE l.expires_at <= clock_timestamp() OR l.holder_id = EXCLUDED.holder_id
RETURNING extract(epoch FROM expires_at)::float8, fencing_token, extract(epoch FROM clock_timestamp())::float8
"""

# One statement counts and adds to the journal. Who does not name the token is stamped by the guard.
WRITE = """
WITH c AS (UPDATE counter_{role} SET n = n + 1{set} RETURNING n)
INSERT INTO journal_{role} (n, holder, id, way, seen{column})
SELECT n, %(holder)s, %(id)s, %(way)s, (SELECT coalesce(max(n), 0) FROM journal_{role}){value} FROM c
RETURNING extract(epoch FROM clock_timestamp())::float8, token, extract(epoch FROM clock_timestamp())::float8
"""
ASSIGNMENTS = {
    "require": (", token = lease_require_fence(%(role)s, %(holder)s, %(token)s)", "", ""),
    "stamp": ("", "", ""),
    "named": (", token = %(token)s", ", token", ", %(token)s::bigint"),
}


class Term:
    def __init__(self, role, token, ttl):
        self.role = role
        self.token = token
        self.ttl = ttl


class Client:
    def __init__(self, work, number, run, seed, bias):
        self.random = random.Random(f"{seed}/{number}/{run}")
        self.number = number
        self.holder = f"c{number}.{run}"
        self.history = History(f"{work}/history/{self.holder}")
        self.serial = 0
        self.old = []           # terms of before
        self.bias = bias
        durable = self.random.random() < 0.15
        wait = self.random.choice(("0", "200ms", "1s"))
        options = f"-c statement_timeout=5s -c leader_lease.takeover_timeout={wait}"
        options += f" -c synchronous_commit={'on' if durable else 'off'}"
        self.history.note(k="client", holder=self.holder, durable=durable)
        self.work = Session(work, f"torture-{number}-work", self.history, options)
        self.beat = Session(work, f"torture-{number}-beat", self.history, options)

    def chance(self, probability):
        return self.random.random() < probability

    def sleep(self, low, high):
        time.sleep(self.random.uniform(low, high))

    def pause(self, term):
        """None, a short one, or one that may well outlive the term."""
        if self.chance(0.35):
            return
        if self.chance(0.4):
            self.sleep(0, 0.03)
        else:
            ttl = min(term.ttl, 0.4)
            self.sleep(0.5 * ttl, 2 * ttl)

    def choose_ttl(self):
        """Some outlive a promotion."""
        low, high = (1, 2.5) if self.chance(self.bias.get("long", 0.04)) else (0.1, 0.35)
        return round(self.random.uniform(low, high), 3)

    def next_id(self):
        self.serial += 1
        return f"{self.holder}:{self.serial}"

    # what is asked of a lease

    def acquire(self, session, role, by=None):
        """Ask once. The term, or None."""
        ttl = self.choose_ttl()
        by = by or self.random.choice(("acquire", "attempt"))
        if role == "hand" and by != "revoke" and self.chance(0.6):
            by = "hand"
        facts = {"role": role, "ttl": ttl, "by": by}
        if by == "hand":
            row = session.run("acquire", HAND_UPSERT, {"role": role, "holder": self.holder, "ttl": ttl}, **facts)
            token = row and row[1]
        else:
            function = {"acquire": "lease_acquire(%s, %s, %s * interval '1 second')",
                        "revoke": "lease_revoke(%s, %s, %s * interval '1 second')",
                        "attempt": "(SELECT token FROM lease_attempt(%s, %s, %s * interval '1 second'))"}[by]
            token = session.call("acquire", function, (role, self.holder, ttl), **facts)
        return Term(role, token, ttl) if token is not None else None

    def transfer(self, session, term):
        """Hand the term over to ourselves. True when there is a new one."""
        ttl = self.choose_ttl()
        token = session.call("transfer", "lease_transfer(%s, %s, %s, %s, %s * interval '1 second')",
                             (term.role, self.holder, term.token, self.holder, ttl),
                             role=term.role, token=term.token, ttl=ttl)
        if token is not None:
            self.old = self.old[-4:] + [Term(term.role, term.token, term.ttl)]
            term.token, term.ttl = token, ttl
        return token is not None

    def renew(self, session, term):
        ttl = self.choose_ttl()
        granted = session.call("renew", "extract(epoch FROM lease_renew(%s, %s, %s, %s * interval '1 second'))::float8",
                               (term.role, self.holder, term.token, ttl), role=term.role, token=term.token, ttl=ttl)
        if granted is not None:
            term.ttl = granted
        return granted is not None

    def release(self, session, term):
        return session.call("release", "lease_release(%s, %s, %s)", (term.role, self.holder, term.token),
                            role=term.role, token=term.token)

    def check(self, session, term):
        """The fence, by either function. False when it is refused without an error."""
        params = (term.role, self.holder, term.token)
        facts = {"role": term.role, "token": term.token}
        if self.chance(0.5):
            return session.call("check", "lease_check_fence(%s, %s, %s)", params, **facts)
        return session.call("check", "lease_require_fence(%s, %s, %s) IS NOT NULL", params, **facts)

    def write(self, session, term, way, assign=None):
        """Add a row to the lease's journal; its fence comes from the statement, from before, or from nowhere."""
        assign = assign or self.random.choice(("stamp", "named"))
        if term.role == "row" and assign == "stamp" and way == "row":
            assign = "named"
        id = self.next_id()
        change, column, value = ASSIGNMENTS[assign]
        session.run("write", WRITE.format(role=term.role, set=change, column=column, value=value),
                    {"role": term.role, "holder": self.holder, "token": term.token, "id": id, "way": way},
                    role=term.role, token=term.token, id=id, way=way,
                    proof=assign == "require" or assign == "named" and term.role == "row")

    def claim(self, session, term):
        """Show the term in the setting leader_lease.fence, for this transaction."""
        value = {"role": term.role, "holder": self.holder, "token": term.token}
        session.run("claim", "SELECT set_config('leader_lease.fence', %s, true)", (json.dumps(value),),
                    role=term.role, token=term.token)

    def call_block(self, session, term, fails):
        """The fence, in a block that is rolled back if it fails."""
        session.call("check", "fence_in_block(%s, %s, %s, %s)", (term.role, self.holder, term.token, fails),
                     role=term.role, token=term.token)

    def declare(self, session, term):
        """A cursor that takes the fence with its first row and fails at its second."""
        check = f"lease_check_fence('{term.role}', '{self.holder}', {term.token})"
        value = f"CASE g WHEN 1 THEN {check} ELSE 1 / (2 - g) = 0 END"
        session.run("step", f"DECLARE c CURSOR FOR {TIMED.format(value)} FROM generate_series(1, 3) g")

    def fetch(self, session, term):
        session.run("check", "FETCH c", role=term.role, token=term.token)

    # transactions

    @contextmanager
    def transaction(self, session=None, level=None, commit=0.9):
        """A transaction that is committed or, by choice, rolled back at the end; what is refused rolls it back."""
        session = session or self.work
        level = level or self.random.choice(("READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"))
        session.connect()
        session.x = self.next_id()
        session.committed = False
        commit = self.chance(commit)
        try:
            session.run("begin", f"BEGIN ISOLATION LEVEL {level}", level=level)
        except Refused:
            session.end()
            raise
        try:
            yield session
            if session.x is not None:
                session.run("commit" if commit else "rollback", "COMMIT" if commit else "ROLLBACK")
                session.committed = commit
        except Refused:
            if session.x is not None:
                session.run("rollback", "ROLLBACK")
        finally:
            session.end()

    def savepoint(self, session, name):
        session.run("savepoint", f"SAVEPOINT {name}", name=name)

    def rollback_to(self, session, name):
        session.run("rollback_to", f"ROLLBACK TO {name}", name=name)

    def release_savepoint(self, session, name):
        session.run("release_savepoint", f"RELEASE {name}", name=name)

    def fail(self, session, sql="SELECT 1 / 0"):
        """A statement that fails as it is meant to."""
        try:
            session.run("fail", sql)
        except Refused:
            return
        raise AssertionError(f"{sql} succeeded")

    # life

    def choose_role(self):
        if self.chance(0.06):
            # one that may be made in the very moments that a promotion loses
            return f"fresh{int(time.time() / 8) % 1000}"
        if self.chance(0.75):
            return LEASES[self.number % len(LEASES)]
        return self.random.choice(LEASES)

    def compete(self):
        """Ask for a lease some times. The term, or None."""
        role = self.choose_role()
        for _ in range(self.random.randint(1, 10)):
            if self.chance(self.bias.get("acquire_in_transaction", 0.1)):
                term = ways.acquire_in_transaction(self, role)
            else:
                term = self.acquire(self.beat, role, "revoke" if self.chance(0.01) else None)
            if term is not None:
                return term
            self.sleep(0.01, 0.06)
        return None

    def lead(self, term):
        """Act for a term, also when it is over."""
        try:
            for _ in range(self.random.randint(1, 7)):
                way = ways.choose(self, term)
                way(self, term)
                if self.chance(0.3):
                    self.pause(term)
        finally:
            self.old = self.old[-4:] + [term]

    def live(self):
        while True:
            try:
                if self.old and self.chance(0.3):
                    ways.haunt(self, self.random.choice((self.old[-1], self.random.choice(self.old))))
                term = self.compete()
                if term is not None:
                    self.lead(term)
            except (Lost, Refused):
                pass


if __name__ == "__main__":
    Client(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], json.loads(sys.argv[5])).live()
