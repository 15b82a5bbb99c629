"""One-row ORM transactions of a service, with and without an event in each, by turns."""

from __future__ import annotations

from sqlalchemy import BigInteger, Identity
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from benchmarks.records import EVENT_TYPE, Mark, mark_of, payload_of
from benchmarks.subjects.application import application
from benchmarks.subjects.telling import Telling
from shieldtx import Event, ShieldTx

BLOCK = 100
"""Transactions before it is the other kind's turn."""


class Base(DeclarativeBase):
    """The service's tables."""


class Order(Base):
    """The one row."""

    __tablename__ = "bench_order"
    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    key: Mapped[str]
    n: Mapped[int]


def main() -> None:
    """Run blocks by turns, every other one with events; a sample before and after each."""
    telling = Telling()
    job = telling.job
    app = application(url=job["url"], bootstrap=job["bootstrap"], prefix=job["prefix"])
    sessions = sessionmaker(app.engine)
    run(app, sessions, begin=0, events=False)
    telling.ready()
    for block in range(2 * job["transactions"] // BLOCK):
        telling.sample(2 * block)
        run(app, sessions, begin=(block + 1) * BLOCK, events=block % 2 == 1)
        telling.sample(2 * block + 1)
    telling.await_end()
    app.close()


def run(app: ShieldTx, sessions: sessionmaker[Session], *, begin: int, events: bool) -> None:
    """Run one block."""
    for index in range(begin, begin + BLOCK):
        mark: Mark = mark_of(index, 1_000)
        with sessions.begin() as session:
            session.add(Order(key=mark.key, n=mark.number))
            if events:
                event = Event(type=EVENT_TYPE, key=mark.key, payload=payload_of(mark))
                app.outbox.add(session, event)


if __name__ == "__main__":
    main()
