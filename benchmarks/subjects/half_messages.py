"""Events written alone in a transaction, and half messages prepared and committed, by turns."""

from __future__ import annotations

from sqlalchemy.orm import Session, sessionmaker

from benchmarks.data.events import EVENT_TYPE, Mark, payload_of
from benchmarks.harness.interleaved import by_turns
from shieldtx import Event, ShieldTx


def plain(app: ShieldTx, sessions: sessionmaker[Session], mark: Mark) -> None:
    """Write an event."""
    with sessions.begin() as session:
        app.outbox.add(session, Event(type=EVENT_TYPE, key=mark.key, payload=payload_of(mark)))


def half(app: ShieldTx, sessions: sessionmaker[Session], mark: Mark) -> None:  # noqa: ARG001  a kind's signature
    """Prepare a half message and commit it."""
    with app.half(EVENT_TYPE, payload_of(mark), key=mark.key):
        return


if __name__ == "__main__":
    by_turns(plain, half, warm_up=half)
