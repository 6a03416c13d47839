"""The checker: decides over the histories of all clients and what the servers had committed."""

import json
import math
from collections import Counter, defaultdict
from pathlib import Path

from readings import SLACK, Reader

INVARIANTS = {
    "live": "never two live holders of a lease at once, by the server's clock",
    "tokens": "tokens rise with every grant, and none is granted twice, also across promotions",
    "grants": "no acknowledged grant is lost but by a promotion",
    "order": "protected writes commit in the order of their tokens",
    "fences": "no takeover while a fence is open",
    "revive": "no renewal revives a term",
    "ended": "no fence, write or release for a term that is over",
    "unfenced": "no write without a fence, and a fence holds until its transaction ends",
    "snapshot": "who writes has seen all that older terms wrote",
    "outcomes": "what was committed is there, and what was refused or rolled back is not",
}

BLINK = 0.00005     # two readings of one clock, in seconds


class Book:
    """All that the histories prove."""

    def __init__(self):
        self.faults = {name: [] for name in INVARIANTS}
        self.terms = []
        self.writes = []
        self.locks = defaultdict(list)      # (kind, era, lease): (start, end, token, transaction)
        self.events = Counter()
        self.states = Counter()
        self.eras = {}                      # era: [start, end]
        self.revoked = defaultdict(list)    # (era, lease): (asked, done, token) of revocations
        self.came_over = {}                 # era: the leases as a promotion brought them

    def blame(self, invariant, words):
        self.faults[invariant].append(words)

    def lock(self, kind, era, role, token, start, end, x):
        self.locks[kind, era, role].append((start, end, token, x))

    def count(self, event):
        word = event["res"]
        if word == "ok" and event["k"] in ("acquire", "renew", "release", "transfer", "check"):
            word = "yes" if event.get("val") not in (None, False) else "no"
        self.events[event["k"], word] += 1
        if event["res"] == "err":
            self.states[event["k"], event["err"]] += 1


def read(folder):
    """The book of a folder of histories, which may still be written to."""
    book = Book()
    finishes = {}
    observed = []
    folder = Path(folder)
    for line in (folder / "director").read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        event = json.loads(line)
        if event["k"] == "era":
            book.eras[event["e"]] = [event["t"], math.inf]
        elif event["k"] == "end":
            book.eras[event["e"]][1] = event["t"]
        elif event["k"] == "finish" and event["res"] == "ok":
            finishes[event["of"]] = event
        elif event["k"] == "seen":
            observed.append(event)
            if event.get("promoted"):
                book.came_over[event["e"]] = event["leases"]
    for path in sorted(folder.glob("c*")):
        Reader(book, finishes).read(path)
    return book, observed


def judge(book, observed, dumps, final=True):
    """Look for what spans clients. dumps: contents of servers, each at the end of its era or, not final, right now."""
    terms = defaultdict(list)
    for term in book.terms:
        if term.acked is not None:
            terms[term.role].append(term)
    for role, those in terms.items():
        live(book, role, those)
        tokens(book, role, those)
    for look in observed + [{"e": dump["era"], "t": dump["t"], "leases": dump["leases"]} for dump in dumps]:
        grants(book, terms, look)
    for dump in dumps:
        journals(book, dump, final)
    fences(book)
    outcomes(book, dumps, final)


def live(book, role, terms):
    spans = []
    for term in terms:
        promised = min([term.end] + [start for start, end, token in book.revoked[term.era, role]
                                     if end > term.granted and token != term.token])
        end = min(max(promised, term.proof), term.cut, book.eras[term.era][1])
        if end > term.granted:
            spans.append((term.era, term.granted, end, term))
    spans.sort(key=lambda span: span[:3])
    last = None
    for span in spans:
        if last is not None and last[0] == span[0] and span[1] + SLACK < last[2] and last[3].token != span[3].token:
            book.blame("live", f"lease {role}: {name(last[3])} was live until {last[2]:.6f}, "
                               f"{name(span[3])} from {span[1]:.6f}")
        if last is None or last[0] != span[0] or span[2] > last[2]:
            last = span


def name(term):
    return f"token {term.token} of {term.holder} in era {term.era}"


def tokens(book, role, terms):
    holders = {}
    for term in terms:
        other = holders.setdefault(term.token, term)
        if other is not term:
            book.blame("tokens", f"lease {role}: granted twice: {name(other)} and {name(term)}")
    before = 0          # the highest of earlier eras
    for era in sorted({term.era for term in terms}):
        own = sorted((term for term in terms if term.era == era), key=lambda term: term.asked)
        by_end = sorted(own, key=lambda term: term.granted)
        highest, done = None, 0
        for term in own:
            while done < len(by_end) and by_end[done].granted < term.asked:
                if highest is None or by_end[done].token > highest.token:
                    highest = by_end[done]
                done += 1
            if term.token <= before:
                book.blame("tokens", f"lease {role}: {name(term)} is not above {before} of before the promotion")
            if highest is not None and highest.token > term.token:
                book.blame("tokens", f"lease {role}: {name(term)} was granted after {name(highest)}")
        before = max([before] + [term.token for term in own])


def grants(book, terms, look):
    for role, those in terms.items():
        known = [term for term in those if term.era == look["e"] and term.acked < look["t"]]
        if not known:
            continue
        last = max(known, key=lambda term: term.token)
        token, holder = look["leases"].get(role, (0, None))
        if token < last.token or token == last.token and holder != last.holder:
            book.blame("grants", f"lease {role}: {name(last)} was acknowledged, "
                                 f"but the server has token {token} of {holder}")


def journals(book, dump, final):
    known = defaultdict(set)
    for term in book.terms:
        known[term.role, term.token].add(term.holder)
    for role, rows in dump["journal"].items():
        last_n, last_token, older = 0, 0, 0
        for n, token, holder, id, seen in rows:
            where = f"lease {role}, era {dump['era']}, row {n} ({id})"
            if n != last_n + 1:
                book.blame("order", f"{where}: follows row {last_n}")
            if token < last_token:
                book.blame("order", f"{where}: token {token} was committed after token {last_token}")
            if token > last_token:
                older = last_n      # all rows up to here are of older terms
            if seen < older:
                book.blame("snapshot", f"{where}: had seen rows up to {seen}, but an older term wrote up to {older}")
            if holder not in known[role, token] and (final or known[role, token]):
                book.blame("order", f"{where}: token {token} was not granted to {holder}")
            last_n, last_token = n, max(token, last_token)


def fences(book):
    for (kind, era, role), takeovers in book.locks.items():
        if kind != "takeover":
            continue
        for i, (start, end, token, x) in enumerate(takeovers):
            for a, b, held, other in book.locks.get(("fence", era, role), ()):
                if a + BLINK < end and start + BLINK < b and (x is None or x != other):
                    book.blame("fences", f"lease {role}, era {era}: token {token} was granted at {start:.6f}, "
                                         f"but a fence of token {held} was held {a:.6f} to {b:.6f} in {other}")
            for a, b, held, other in takeovers[:i]:
                if a + BLINK < end and start + BLINK < b and (x is None or x != other):
                    book.blame("fences", f"lease {role}, era {era}: tokens {held} and {token} were granted at once")


def outcomes(book, dumps, final):
    there = {dump["era"]: {row[3] for rows in dump["journal"].values() for row in rows} for dump in dumps}
    everywhere = set().union(*there.values()) if there else set()
    for write in book.writes:
        # a prepared transaction that was rolled back may be there again after a promotion
        if write.fate == "absent" and write.id in (everywhere if write.era is None else there.get(write.era, ())):
            book.blame("outcomes", f"lease {write.role}: {write.id} ({write.way}) was refused or rolled back, "
                                   "but it is there")
        if write.fate == "committed" and write.durable and write.era in there and write.id not in there[write.era]:
            book.blame("outcomes", f"lease {write.role}: {write.id} ({write.way}) was committed, but it is gone")
