"""One client of the soak: it leads when it can, writes while it leads, and notes what was answered.

    client.py NAME LEASE WAY TERM FILE

WAY: function (lease_acquire) or upsert (a hand-made statement). TERM: short, or long: one term of an hour, kept until
it is refused, or SIGUSR1 asks to release it and acquire anew. SIGTERM: leave. The environment's CONNINFO says how to
reach whichever node takes writes.

It does what a careless program does: it keeps its token over a lost connection and goes on with it on the node that it
finds next. Whether that is refused is the question. Each answer is one JSON object a line in FILE, outside of any
database, written at once:

    what        grant, renew, check, write
    lease token holder
    term        timeline of the server that granted the token
    timeline    timeline of the server that was asked
    link        when the connection was made
    sent done   before the request was sent, after the answer came; all clocks are CLOCK_MONOTONIC, one for all
    outcome     yes, no, a SQLSTATE, or lost (no answer: it may or may not have happened)
    id          of a write, unique
"""

import json
import os
import random
import signal
import sys
import time

import psycopg

GONE = {None, "57P01", "57P02", "57P03"}        # no answer, or the connection's last words
PAUSE = 0.05

ACQUIRE = {
    "function": "SELECT lease_acquire(%(lease)s, %(holder)s, %(ttl)s::interval)",
    "upsert": """
INSERT INTO leader_lease AS l (role, holder_id, fencing_token, expires_at)
VALUES (%(lease)s, %(holder)s, 1, clock_timestamp() + %(ttl)s::interval)
ON CONFLICT (role) DO UPDATE
   SET holder_id = EXCLUDED.holder_id, expires_at = EXCLUDED.expires_at,
       fencing_token = CASE WHEN l.holder_id = EXCLUDED.holder_id AND l.expires_at > clock_timestamp()
                            THEN l.fencing_token ELSE l.fencing_token + 1 END
 WHERE l.holder_id = EXCLUDED.holder_id OR l.expires_at <= clock_timestamp()
RETURNING fencing_token""",
}
RELEASE = {
    "function": "SELECT lease_release(%(lease)s, %(holder)s, %(token)s)",
    "upsert": """
UPDATE leader_lease SET expires_at = clock_timestamp()
 WHERE role = %(lease)s AND holder_id = %(holder)s AND fencing_token = %(token)s RETURNING true""",
}
RENEW = "SELECT lease_renew(%(lease)s, %(holder)s, %(token)s) IS NOT NULL"
CHECK = "SELECT lease_check_fence(%(lease)s, %(holder)s, %(token)s)"
# The counter's row lock makes n the order in which the writes of a lease commit. Both tables are protected.
WRITE = """
WITH c AS (UPDATE counter_{0} SET n = n + 1, token = lease_require_fence(%(lease)s, %(holder)s, %(token)s)
           RETURNING n, token)
INSERT INTO journal_{0} (n, token, id, term) SELECT n, token, %(id)s, %(term)s FROM c
RETURNING true"""


class Disconnected(Exception):
    pass


class Client:
    def __init__(self, name, lease, way, term, file):
        self.name = name
        self.lease = lease
        self.way = way
        self.long = term == "long"
        self.file = open(file, "a", buffering=1)
        self.leaving = False
        self.anew = False
        self.serial = 0
        self.db = None

    def connect(self):
        """Find the primary. A connection stays on one timeline: a demoted server closes it."""
        try:
            self.db = psycopg.connect(os.environ["CONNINFO"], autocommit=True, application_name=self.name)
            self.timeline, = self.db.execute("SELECT timeline()").fetchone()
            self.link = time.monotonic()
        except psycopg.Error:       # none there yet, or just on its way down
            raise Disconnected

    def ask(self, what, statement, **values):
        """Send it, note the answer, return outcome and value. Disconnected when none came."""
        values = {"lease": self.lease, **values}
        value = None
        sent = time.monotonic()
        try:
            row = self.db.execute(statement, values).fetchone()
            value = row and row[0]
            outcome = "yes" if value else "no"
            detail = None
        except psycopg.Error as error:
            outcome = "lost" if error.sqlstate in GONE else error.sqlstate
            detail = str(error)
        if what == "grant" and value:
            values |= {"token": value, "term": self.timeline}
        if what:
            del values["lease"]
            self.file.write(json.dumps({
                "what": what, "client": self.name, "way": self.way, "lease": self.lease, "timeline": self.timeline,
                "link": self.link, "sent": sent, "done": time.monotonic(), "outcome": outcome, "detail": detail,
                **values}) + "\n")
        if outcome == "lost" or self.db.closed:
            raise Disconnected
        return outcome, value

    def acquire(self):
        self.serial += 1
        # A new name each time, since one cannot know whether an unanswered request was granted. A long term keeps its
        # name, as somebody who comes back after the failover to what is still his by the clock.
        holder = self.name if self.long else f"{self.name}.{self.serial}"
        ttl = "1 hour" if self.long else "2 seconds"
        _, token = self.ask("grant", ACQUIRE[self.way], holder=holder, ttl=ttl)
        return token and {"holder": holder, "token": token, "term": self.timeline}

    def write(self, term):
        self.serial += 1
        outcome, _ = self.ask("write", WRITE.format(self.lease), id=f"{self.name}.{self.serial}", **term)
        return outcome

    def lead(self, term):
        """Work with the term until it is refused or given up. None when it is over, the term when the link broke."""
        left = random.randint(1, 8)
        self.anew = False
        try:
            if term["term"] != self.timeline or random.random() < 0.2:
                self.ask("renew", RENEW, **term)
                self.ask("check", CHECK, **term)
            while (self.long or left > 0) and not self.leaving and not self.anew:
                if self.write(term) == "LF001":
                    return None
                left -= 1
                time.sleep(random.uniform(0, PAUSE))
            if self.long or random.random() < 0.8:      # else others wait until its time is up
                self.ask(None, RELEASE[self.way], **term)
            return None
        except Disconnected:
            self.db.close()
            return term

    def run(self):
        term = None
        while not self.leaving:
            try:
                if self.db is None or self.db.closed:
                    self.connect()
                term = term or self.acquire()
            except Disconnected:
                if self.db:
                    self.db.close()
                time.sleep(PAUSE)
                continue
            if term:
                term = self.lead(term)
            else:
                time.sleep(random.uniform(PAUSE, 2 * PAUSE))


def main():
    client = Client(*sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: setattr(client, "leaving", True))
    signal.signal(signal.SIGUSR1, lambda *_: setattr(client, "anew", True))
    client.run()


main()
