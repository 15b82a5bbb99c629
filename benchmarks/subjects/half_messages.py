"""Transactions with one event, and half messages prepared and committed, alternating."""

from __future__ import annotations

from sqlalchemy.orm import Session, sessionmaker

from benchmarks.data.events import EVENT_TYPE, KeyPosition, payload_of
from benchmarks.harness.interleaved import by_turns
from shieldtx import Event, ShieldTx


def plain(app: ShieldTx, sessions: sessionmaker[Session], position: KeyPosition) -> None:
    """Write an event."""
    with sessions.begin() as session:
        app.outbox.add(
            session, Event(type=EVENT_TYPE, key=position.key, payload=payload_of(position))
        )


def half(app: ShieldTx, sessions: sessionmaker[Session], position: KeyPosition) -> None:  # noqa: ARG001  a kind's signature
    """Prepare a half message and commit it."""
    with app.half(EVENT_TYPE, payload_of(position), key=position.key):
        return


if __name__ == "__main__":
    by_turns(plain, half, warm_up=half)
