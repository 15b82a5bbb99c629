"""Events written alone in a transaction, and half messages prepared and committed, by turns."""

from __future__ import annotations

from sqlalchemy.orm import Session, sessionmaker

from benchmarks.records import EVENT_TYPE, mark_of, payload_of
from benchmarks.subjects.application import application
from benchmarks.subjects.telling import Telling
from shieldtx import Event, ShieldTx

BLOCK = 100
"""Messages before it is the other kind's turn."""


def main() -> None:
    """Run blocks by turns, every other one of half messages; a sample before and after each."""
    telling = Telling()
    job = telling.job
    app = application(url=job["url"], bootstrap=job["bootstrap"], prefix=job["prefix"])
    sessions = sessionmaker(app.engine)
    write(app, sessions, begin=0, half=True)
    telling.ready()
    for block in range(2 * job["transactions"] // BLOCK):
        telling.sample(2 * block)
        write(app, sessions, begin=(block + 1) * BLOCK, half=block % 2 == 1)
        telling.sample(2 * block + 1)
    telling.await_end()
    app.close()


def write(app: ShieldTx, sessions: sessionmaker[Session], *, begin: int, half: bool) -> None:
    """Write one block."""
    for index in range(begin, begin + BLOCK):
        mark = mark_of(index, 1_000)
        if half:
            with app.half(EVENT_TYPE, payload_of(mark), key=mark.key):
                continue
        with sessions.begin() as session:
            app.outbox.add(session, Event(type=EVENT_TYPE, key=mark.key, payload=payload_of(mark)))


if __name__ == "__main__":
    main()
