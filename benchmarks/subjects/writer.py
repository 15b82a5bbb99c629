"""A service that writes business rows and events at a steady pace, in small transactions."""

from __future__ import annotations

import time

from sqlalchemy import text
from sqlalchemy.orm import Session

from benchmarks.data.events import EVENT_TYPE, KeyPosition, payload_of, position_of
from benchmarks.harness.child_protocol import ProgressReporter
from benchmarks.subjects.application import application
from shieldtx import Event

PER_TRANSACTION = 5
ORDER = text("INSERT INTO bench_order (key, n) VALUES (:key, :n)")


def main() -> None:
    """Write `rate` events a second for `seconds`; with `hot`, half of them have the hot key."""
    reporter = ProgressReporter()
    job = reporter.job
    app = application(url=job["url"], bootstrap=job["bootstrap"], prefix=job["prefix"])
    pause = PER_TRANSACTION / job["rate"]
    events = int(job["rate"] * job["seconds"]) // PER_TRANSACTION * PER_TRANSACTION
    with Session(app.engine) as session:
        session.execute(text("SELECT 1"))
    reporter.ready()
    began = time.monotonic()
    for place, begin in enumerate(range(0, events, PER_TRANSACTION)):
        time.sleep(max(0.0, began + place * pause - time.monotonic()))
        positions = [_position(index, job) for index in range(begin, begin + PER_TRANSACTION)]
        with Session(app.engine) as session, session.begin():
            session.execute(
                ORDER, [{"key": position.key, "n": position.number} for position in positions]
            )
            app.outbox.add_all(
                session,
                [Event(type=EVENT_TYPE, key=m.key, payload=payload_of(m)) for m in positions],
            )
    reporter.sample(events)
    reporter.await_end()
    app.close()


def _position(index: int, job: dict[str, int]) -> KeyPosition:
    if not job["hot"]:
        return position_of(index, job["keys"])
    if index % 2:
        return position_of(index // 2, job["keys"])
    return KeyPosition(key="hot", number=index // 2 + 1)


if __name__ == "__main__":
    main()
