"""The verdicts: over what the clients noted outside of the database, and the rows that the last primary has."""

from collections import Counter, defaultdict

INVARIANTS = {
    "rise": "tokens of each lease rise in the order of acknowledged grants",
    "repeat": "no token is granted twice, those that were lost with an old primary included",
    "double": "tokens stay exact in a double",
    "stale": "no write, check or renewal with a token of before a failover is accepted",
    "paused": "in each round, clients that slept through the failover were refused with LF001",
    "order": "in the rows that survived, the token never falls in the order of commits",
    "rows": "each row that survived was written in its term's own timeline, by a write that was not refused",
    "errors": "no error but the expected",
    "primary": "never two primaries at once, in which case nothing is promised",
    "enough": "as many failovers as asked for, and those meant to lose acknowledged grants did",
}
NO_ANSWER = {"lost", "25006"}       # 25006: a server on its way down
# LF001: the point of it all. 55P03: a takeover by hand with a fence open.
EXPECTED = {"yes", "no", "LF001", "55P03"} | NO_ANSWER


class Book:
    """What is known at the end."""

    def __init__(self, records, rows, rounds, wanted, trouble):
        self.records = records
        self.grants = [r for r in records if r["what"] == "grant" and r["outcome"] == "yes"]
        self.rows = rows            # lease: [(n, token, id, term, timeline)] in the order of n
        self.rounds = rounds
        self.wanted = wanted        # number of failovers
        self.trouble = trouble      # what the soak waited for in vain


def show(record):
    words = (f"{key} {record[key]}" for key in ("token", "term", "timeline", "outcome", "detail") if record.get(key))
    return f"{record['client']} {record['what']} of {record['lease']}: " + ", ".join(words)


def rise(book):
    """A grant that was asked for after another was acknowledged has a higher token.

    Of two that overlap in time nobody can say from outside which was first.
    """
    leases = defaultdict(list)
    for grant in book.grants:
        leases[grant["lease"]].append(grant)
    for grants in leases.values():
        done = sorted(grants, key=lambda g: g["done"])
        earlier, highest = 0, None
        for grant in sorted(grants, key=lambda g: g["sent"]):
            while done[earlier]["done"] < grant["sent"]:
                if highest is None or done[earlier]["token"] > highest["token"]:
                    highest = done[earlier]
                earlier += 1
            if highest and grant["token"] <= highest["token"]:
                yield f"{show(grant)}\n    after {show(highest)}"


def repeat(book):
    for (lease, token), count in Counter((g["lease"], g["token"]) for g in book.grants).items():
        if count > 1:
            yield f"token {token} of {lease} was granted {count} times"


def double(book):
    return (show(g) for g in book.grants if g["token"] > 2 ** 53)


def stale(book):
    return (show(r) for r in book.records
            if r["what"] != "grant" and r["outcome"] == "yes" and r["term"] != r["timeline"])


def paused(book):
    """Each of them tried, and its first try was refused as stale."""
    for one in book.rounds:
        for client in one["paused"]:
            tries = [r for r in book.records if r["client"] == client and r["what"] == "write"
                     and r["term"] <= one["before"] and r["timeline"] == one["after"]
                     and r["outcome"] not in NO_ANSWER]
            if not tries:
                yield f"round {one['number']}: no try of {client}"
            elif tries[0]["outcome"] != "LF001":
                yield f"round {one['number']}: {show(tries[0])}"


def order(book):
    for lease, rows in book.rows.items():
        for row, following in zip(rows, rows[1:]):
            if following[1] < row[1]:
                yield f"{lease}: row {following} after {row}"


def rows(book):
    written = {r["id"]: r for r in book.records if r["what"] == "write"}
    for lease, found in book.rows.items():
        for row in found:
            record = written.get(row[2])
            if row[3] != row[4]:
                yield f"{lease}: {row}, term of timeline {row[3]} on timeline {row[4]}"
            # of who was stopped before it could note the answer there is no record
            elif record and (record["outcome"] not in ("yes", "lost") or record["token"] != row[1]):
                yield f"{lease}: {row}, but {show(record)}"


def errors(book):
    return (show(r) for r in book.records if r["outcome"] not in EXPECTED)


def primary(book):
    """No answer of an older timeline to what was asked after an answer of a newer one."""
    answered = [r for r in book.records if r["outcome"] == "yes"]
    done = sorted(answered, key=lambda r: r["done"])
    earlier, newest = 0, None
    for record in sorted(answered, key=lambda r: r["sent"]):
        while done[earlier]["done"] < record["sent"]:
            if newest is None or done[earlier]["timeline"] > newest["timeline"]:
                newest = done[earlier]
            earlier += 1
        if newest and record["timeline"] < newest["timeline"]:
            yield f"{show(record)}\n    after {show(newest)}"


def enough(book):
    yield from book.trouble
    if len(book.rounds) < book.wanted:
        yield f"{len(book.rounds)} failovers of {book.wanted}"
    for one in book.rounds:
        if one["lossy"] and not (one["lost"]["grants"] and one["lost"]["writes"]):
            yield f"round {one['number']} was to lose grants and did not"
    for way in ("function", "upsert"):
        missing = {r["after"] for r in book.rounds} - {g["timeline"] for g in book.grants if g["way"] == way}
        if missing:
            yield f"no grant by {way} on timeline {missing}"
    if not any(book.rows.values()):
        yield "no row survived"


def lost(records, timeline, ids):
    """What of a timeline was acknowledged and is not among the ids that its successor has."""
    terms = defaultdict(list)
    for r in records:
        if r["what"] == "write" and r["outcome"] == "yes" and r["timeline"] == timeline:
            terms[r["lease"], r["token"]].append(r["id"] in ids)
    return {"grants": sum(not any(kept) for kept in terms.values()),
            "writes": sum(kept.count(False) for kept in terms.values())}


def verdicts(book):
    """For each invariant its words and what breaks it."""
    return [(words, list(globals()[name](book))) for name, words in INVARIANTS.items()]
