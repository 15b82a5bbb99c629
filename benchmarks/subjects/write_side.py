"""One-row ORM transactions of a service, with and without an event, alternating."""

from __future__ import annotations

from sqlalchemy import BigInteger, Identity
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from benchmarks.data.events import EVENT_TYPE, KeyPosition, payload_of
from benchmarks.harness.interleaved import by_turns
from shieldtx import Event, ShieldTx


class Base(DeclarativeBase):
    """The service's tables."""


class Order(Base):
    """The row of each transaction."""

    __tablename__ = "bench_order"
    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    key: Mapped[str]
    n: Mapped[int]


def plain(app: ShieldTx, sessions: sessionmaker[Session], position: KeyPosition) -> None:  # noqa: ARG001  a kind's signature
    """Write only the row."""
    with sessions.begin() as session:
        session.add(Order(key=position.key, n=position.number))


def with_event(app: ShieldTx, sessions: sessionmaker[Session], position: KeyPosition) -> None:
    """Write the row and its event."""
    with sessions.begin() as session:
        session.add(Order(key=position.key, n=position.number))
        app.outbox.add(
            session, Event(type=EVENT_TYPE, key=position.key, payload=payload_of(position))
        )


if __name__ == "__main__":
    by_turns(plain, with_event, warm_up=plain)
