#!/usr/bin/python3
"""An SQLAlchemy application whose table gets a guard, with none of its saves changed.

Start it with ./run. It plays the whole story by itself, says what happens, and exits 0
only if all of it was as it must be. The database comes from PGHOST, PGPORT, PGUSER,
PGDATABASE ..., as for psql; a transaction pooler may be in between. It makes its table,
sqlalchemy_account, anew and uses the lease "sqlalchemy".

What the adoption takes is the event listener show_claim() and, if the application wants
to see the stamp, the mapping of the token column. The rest is the story.

SQLAlchemy 1.4 in the style of 2.0, with psycopg2.
"""

import json
import secrets
import time
from datetime import timedelta

from sqlalchemy import (
    BigInteger,
    Column,
    Text,
    create_engine,
    event,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, declarative_base, sessionmaker
from sqlalchemy.orm.attributes import flag_modified
from sqlalchemy.schema import FetchedValue

ROLE = "sqlalchemy"

# Two connections for all actors of the story, so that a claim which stayed behind on
# one would meet the next. psycopg2 prepares nothing on the server, and the claim lives
# in the transaction: so a transaction pooler in between makes no difference.
engine = create_engine(
    "postgresql+psycopg2://",  # the rest comes from the PG* variables
    future=True,
    pool_size=2,
    max_overflow=0,
    pool_timeout=10,
    connect_args={"connect_timeout": 5},
)
Base = declarative_base()


class Account(Base):
    __tablename__ = "sqlalchemy_account"

    id = Column(BigInteger, primary_key=True, autoincrement=False)
    owner = Column(Text, nullable=False)
    balance = Column(BigInteger, nullable=False)
    # Stamped by the guard, at INSERT and UPDATE; FetchedValue makes SQLAlchemy read it
    # again after a save. A token has 64 bits; in Python it is an int and stays exact.
    token = Column(
        BigInteger, server_default=FetchedValue(), server_onupdate=FetchedValue()
    )


@event.listens_for(Session, "after_begin")
def show_claim(session, transaction, connection):
    """Give each transaction the claim of its leader, before its first statement.

    The guard takes the fence from it at the first write. `true` makes the setting end
    with the transaction: otherwise it would stay on the connection, and whoever gets
    that from the pool next would write in this leader's name.

    The story has several actors, so the claim is the session's. An application would
    take it from the term that its heartbeat keeps alive: see the workers in ../python.
    """
    claim = session.info.get("claim")
    if claim is not None:
        connection.execute(
            text("SELECT set_config('leader_lease.fence', :claim, true)"),
            {"claim": json.dumps(claim)},
        )


def lease(query, **values):
    """Call a function of leader_lease. In autocommit: a grant counts once committed."""
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        return connection.execute(text(query), {"role": ROLE, **values}).scalar()


class Leader:
    """A process that leads, or believes that it does."""

    def __init__(self, name, ttl):
        self.holder = f"{name}-{secrets.token_hex(4)}"
        patience = time.monotonic() + 60
        while True:
            self.token = lease(
                "SELECT lease_acquire(:role, :holder, :ttl)",
                holder=self.holder,
                ttl=timedelta(seconds=ttl),
            )
            if self.token is not None:
                break
            must(time.monotonic() < patience, "the lease can be had")
            time.sleep(0.1)
        claim = {"role": ROLE, "holder": self.holder, "token": self.token}
        self.sessions = sessionmaker(engine, future=True, info={"claim": claim})
        say(f"{name} leads with token {self.token}")


def say(line):
    print(line, flush=True)


def must(fact, what):
    if not fact:
        raise SystemExit(f"FAILED: {what}")


def rows():
    with engine.connect() as connection:
        return connection.execute(select(Account.__table__).order_by("id")).all()


def passes(what, sessions, save, token):
    """The save is done, and all rows that it changed bear the token."""
    before = rows()
    with sessions.begin() as session:
        save(session)
    after = rows()
    must(after != before, f"{what}: something has changed")
    for row in set(after) - set(before):
        must(row.token == token, f"{what}: {row} bears token {token}")
    say(f"  {what}: saved")


def refused(what, sessions, save, sqlstate):
    """The save fails with that SQLSTATE, and nothing has changed."""
    before = rows()
    try:
        with sessions.begin() as session:
            save(session)
    except DBAPIError as error:
        diag = error.orig.diag
        must(error.orig.pgcode == sqlstate, f"{what}: {sqlstate}, not {error}")
        say(f"  {what}: {sqlstate}, {diag.message_detail or diag.message_primary}")
    else:
        must(False, f"{what}: is refused")
    must(rows() == before, f"{what}: nothing has changed")


def add(session):
    session.add_all(Account(id=i, owner=f"owner {i}", balance=100) for i in (1, 2, 3))


def change(session):
    session.get(Account, 1).balance += 1


def bulk(session):
    session.execute(update(Account).values(balance=Account.balance + 1))


def delete(session):
    session.delete(session.scalars(select(Account).order_by(Account.id.desc())).first())


def write_back(copy):
    """Save a detached copy with all columns, changed or not, the token among them."""

    def save(session):
        account = session.merge(copy)
        account.balance += 1
        for column in ("owner", "balance", "token"):
            flag_modified(account, column)

    return save


def detached_copy(sessions):
    with sessions() as session:
        account = session.get(Account, 1)
        session.expunge(account)
    return account


def no_claim_stays():
    """Look at both connections of the pool."""
    query = text("SELECT current_setting('leader_lease.fence', true)")
    with engine.connect() as one, engine.connect() as two:
        for connection in (one, two):
            claim = connection.execute(query).scalar()
            must(not claim, f"no claim stays on a connection: {claim}")
    say("  no claim stays on a connection of the pool")


def main():
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    lease("SELECT lease_protect('sqlalchemy_account', :role, token_column => 'token')")
    strangers = sessionmaker(engine, future=True)

    a = Leader("A", ttl=60)
    passes("new objects", a.sessions, add, a.token)
    passes("a changed attribute", a.sessions, change, a.token)
    passes("a bulk update", a.sessions, bulk, a.token)
    form = Account(id=1, owner="from a form", balance=50, token=None)
    passes("all columns, without a token", a.sessions, write_back(form), a.token)
    copy = detached_copy(a.sessions)
    passes("all columns, with the row's token", a.sessions, write_back(copy), a.token)
    passes("a deleted object", a.sessions, delete, a.token)

    say("a session without a claim, on the same connections")
    no_claim_stays()
    refused("a changed attribute", strangers, change, "LF002")
    refused("a deleted object", strangers, delete, "LF002")

    # A has changed an object and not flushed it yet. Then it is paused, for longer than
    # its last heartbeat gave it.
    copy = detached_copy(a.sessions)
    paused = a.sessions()
    change(paused)
    before = rows()
    lease(
        "SELECT lease_renew(:role, :holder, :token, :ttl)",
        holder=a.holder,
        token=a.token,
        ttl=timedelta(seconds=1),
    )
    say("A is paused in the middle of a transaction")
    patience = time.monotonic() + 60
    while lease("SELECT live FROM lease_status WHERE role = :role"):
        must(time.monotonic() < patience, "the term of A runs out")
        time.sleep(0.05)
    b = Leader("B", ttl=60)
    must(b.token > a.token, "the token rises")

    say("A wakes up")
    try:
        paused.flush()
    except DBAPIError as error:
        must(error.orig.pgcode == "LF001", f"the flush: LF001, not {error}")
        detail = error.orig.diag.message_detail
        say(f"  the flush of what it had changed: LF001, {detail}")
    else:
        must(False, "the flush is refused")
    paused.close()
    must(rows() == before, "nothing has changed")
    refused("a changed attribute", a.sessions, change, "LF001")
    refused("a bulk update", a.sessions, bulk, "LF001")
    refused("all columns", a.sessions, write_back(copy), "LF001")
    refused("a deleted object", a.sessions, delete, "LF001")

    say("B works on")
    # The row bears the token of A, and so does the copy. Only the balance changes.
    passes("all columns, with the row's token", b.sessions, write_back(copy), b.token)
    passes("a changed attribute", b.sessions, change, b.token)
    passes("a bulk update", b.sessions, bulk, b.token)
    passes("a deleted object", b.sessions, delete, b.token)
    # By now the copy is out of date. It would undo what B has saved, and its token
    # tells: it is neither the row's nor B's. Who leads and meets this must read again.
    refused("all columns of an old copy", b.sessions, write_back(copy), "LF001")
    refused("A, which read what B has saved", a.sessions, change, "LF001")

    say("a session without a claim")
    no_claim_stays()
    refused("a changed attribute", strangers, change, "LF002")

    must(
        lease(
            "SELECT lease_release(:role, :holder, :token)",
            holder=b.holder,
            token=b.token,
        ),
        "B still leads",
    )
    say("B has released the lease")
    refused("a changed attribute", b.sessions, change, "LF001")
    say("all as it must be")


main()
