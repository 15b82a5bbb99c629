"""A service that writes business rows and events at a steady pace, in small transactions."""

from __future__ import annotations

import time

from sqlalchemy import text
from sqlalchemy.orm import Session

from benchmarks.data.events import EVENT_TYPE, Mark, mark_of, payload_of
from benchmarks.harness.child_protocol import ProgressReporter
from benchmarks.subjects.application import application
from shieldtx import Event

PER_TRANSACTION = 5
ORDER = text("INSERT INTO bench_order (key, n) VALUES (:key, :n)")


def main() -> None:
    """Write `rate` events a second, `seconds` long; with `hot`, every other one of the hot key."""
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
        marks = [_mark(index, job) for index in range(begin, begin + PER_TRANSACTION)]
        with Session(app.engine) as session, session.begin():
            session.execute(ORDER, [{"key": mark.key, "n": mark.number} for mark in marks])
            app.outbox.add_all(
                session,
                [Event(type=EVENT_TYPE, key=m.key, payload=payload_of(m)) for m in marks],
            )
    reporter.sample(events)
    reporter.await_end()
    app.close()


def _mark(index: int, job: dict[str, int]) -> Mark:
    if not job["hot"]:
        return mark_of(index, job["keys"])
    if index % 2:
        return mark_of(index // 2, job["keys"])
    return Mark(key="hot", number=index // 2 + 1)


if __name__ == "__main__":
    main()
