"""The ways in which a client acts for a term: to write, to prolong it, to end it, and to try what must be refused.

Each is a function of the client and the term, which may be over by then. What is refused ends the way by Refused, or by
a transaction that is rolled back; whether it should have been is for the checker to say.
"""

from history import Refused

WEIGHTS = {}


def way(weight):
    def register(function):
        WEIGHTS[function] = weight
        return function
    return register


def choose(client, term):
    ways = list(WEIGHTS) if writable(term.role) else [renew, acquire_again, check, release, transfer]
    return client.random.choices(ways, [client.bias.get(f.__name__, WEIGHTS[f]) for f in ways])[0]


def writable(role):
    """Does the lease have a journal?"""
    return not role.startswith("fresh")


def haunt(client, term):
    """A term that has been over for long tries what it can."""
    ways = (renew, release, check, statement, check_first, setting) if writable(term.role) else (renew, release, check)
    client.random.choice(ways)(client, term)


# in statements of their own

@way(10)
def renew(client, term):
    client.pause(term)
    client.renew(client.beat, term)


@way(3)
def acquire_again(client, term):
    """A renewal, or a new term where the old one is over."""
    new = client.acquire(client.beat, term.role)
    if new is not None:
        term.token, term.ttl = new.token, new.ttl


@way(3)
def check(client, term):
    client.pause(term)
    client.check(client.beat, term)


@way(2)
def release(client, term):
    client.release(client.beat, term)
    if client.chance(0.5):
        client.renew(client.beat, term)
    else:
        client.check(client.beat, term)


@way(2)
def transfer(client, term):
    """The old term is over at once, though its holder goes on."""
    client.transfer(client.beat, term)


@way(6)
def statement(client, term):
    """The fence is taken by the statement that writes."""
    client.write(client.work, term, "statement", "require")


@way(3)
def row(client, term):
    """The row itself carries the token: proof for some tables, for others none."""
    client.write(client.work, term, "row", "named")


@way(1)
def unfenced(client, term):
    client.write(client.work, term, "unfenced", "stamp")


# in transactions

@way(8)
def check_first(client, term):
    """Check, then write, with pauses around."""
    with client.transaction() as db:
        client.pause(term)
        if client.check(db, term):
            client.pause(term)
            for _ in range(client.random.randint(1, 2)):
                client.write(db, term, "check_first")
            client.pause(term)


@way(4)
def heartbeat(client, term):
    """The term is prolonged on another connection while a transaction holds its fence."""
    with client.transaction() as db:
        client.check(db, term)
        for _ in range(client.random.randint(1, 3)):
            client.pause(term)
            client.renew(client.beat, term)
        client.write(db, term, "heartbeat")


@way(5)
def setting(client, term):
    """The guard takes the fence that leader_lease.fence shows."""
    with client.transaction() as db:
        client.claim(db, term)
        client.pause(term)
        client.write(db, term, "setting")
        client.pause(term)
        client.write(db, term, "setting")
        client.pause(term)


@way(3)
def savepoint_kept(client, term):
    """Rolling back to a later savepoint leaves the fence."""
    with client.transaction() as db:
        client.check(db, term)
        client.savepoint(db, "a")
        client.fail(db)
        client.rollback_to(db, "a")
        client.pause(term)
        client.write(db, term, "savepoint_kept")


@way(3)
def savepoint_lost(client, term):
    """Rolling back to an earlier savepoint takes the fence along."""
    with client.transaction() as db:
        client.savepoint(db, "a")
        client.check(db, term)
        if client.chance(0.5):
            client.write(db, term, "savepoint_lost")
        client.rollback_to(db, "a")
        client.pause(term)
        client.write(db, term, "savepoint_lost", "stamp")


@way(3)
def savepoint_released(client, term):
    """The fence passes to the parent, and goes with the parent's savepoint."""
    with client.transaction() as db:
        client.savepoint(db, "a")
        client.savepoint(db, "b")
        client.check(db, term)
        client.release_savepoint(db, "b")
        client.pause(term)
        if client.chance(0.4):
            client.rollback_to(db, "a")
        client.write(db, term, "savepoint_released", "stamp")
        client.pause(term)


@way(3)
def block(client, term):
    """The fence is taken in a block of plpgsql, which may be rolled back."""
    fails = client.chance(0.5)
    with client.transaction() as db:
        client.call_block(db, term, fails)
        client.pause(term)
        client.write(db, term, "block", "stamp")
        client.pause(term)


@way(5)
def cursor(client, term):
    """The fence is taken through a cursor that fails in a later savepoint, or that is closed."""
    with client.transaction() as db:
        client.declare(db, term)
        client.fetch(db, term)
        if client.chance(0.7):
            client.savepoint(db, "a")
            client.fail(db, "FETCH c")
            client.rollback_to(db, "a")
        else:
            db.run("step", "CLOSE c")
        client.pause(term)
        client.write(db, term, "cursor", "stamp")
        client.pause(term)


@way(4)
def prepared(client, term):
    """A prepared transaction keeps the fence. Who prepared it may fail to finish it."""
    with client.transaction() as db:
        client.check(db, term)
        client.write(db, term, "prepared")
        client.pause(term)
        x = gid = db.x
        db.run("prepare", f"PREPARE TRANSACTION '{gid}'", gid=gid)
        db.x = None
        client.pause(term)
        if client.chance(0.8):
            word = client.random.choice(("COMMIT", "COMMIT", "ROLLBACK"))
            try:
                client.beat.run("finish", f"{word} PREPARED '{gid}'", of=x, commit=word == "COMMIT")
            except Refused:
                pass


@way(2)
def release_inside(client, term):
    """The transaction ends the term that it holds a fence of, and may take that back."""
    with client.transaction(level="READ COMMITTED") as db:
        client.check(db, term)
        client.savepoint(db, "a")
        client.release(db, term)
        if client.chance(0.5):
            client.rollback_to(db, "a")
        client.write(db, term, "release_inside", "stamp")


@way(3)
def renew_inside(client, term):
    """A renewal and a write in one transaction, which may be rolled back."""
    with client.transaction(commit=0.6) as db:
        client.renew(db, term)
        client.pause(term)
        client.check(db, term)
        client.write(db, term, "renew_inside")


@way(2)
def two_leases(client, term):
    """One transaction writes for two leases."""
    others = [old for old in client.old if old.role != term.role and writable(old.role)]
    with client.transaction() as db:
        for each in [term] + others[-1:]:
            client.pause(each)
            if client.check(db, each):
                client.write(db, each, "two_leases")


@way(3)
def early_snapshot(client, term):
    """A term that begins after the transaction's snapshot."""
    with client.transaction(level=client.random.choice(("REPEATABLE READ", "SERIALIZABLE"))) as db:
        db.run("step", f"SELECT count(*) FROM journal_{term.role}")
        client.pause(term)
        new = None
        for _ in range(8):
            new = client.acquire(client.beat, term.role)
            if new is not None:
                break
            client.sleep(0.02, 0.06)
        if new is not None:
            term.token, term.ttl = new.token, new.ttl
            client.check(db, term)
            client.write(db, term, "early_snapshot")


def acquire_in_transaction(client, role):
    """A grant that is committed late or not at all, with a write of the new term perhaps. The term, or None."""
    granted = None
    with client.transaction(client.beat, commit=0.7) as db:
        if client.chance(0.3):
            client.savepoint(db, "a")
            client.acquire(db, role)
            client.rollback_to(db, "a")
        term = client.acquire(db, role)
        if term is not None:
            if client.chance(0.5):
                client.sleep(0, 1.5 * term.ttl)
            if writable(role) and client.chance(0.4):
                client.check(db, term)
                client.write(db, term, "acquire_in_transaction")
            granted = term
    return granted if client.beat.committed else None
