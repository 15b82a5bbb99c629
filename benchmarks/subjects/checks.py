"""A checker that answers at once, for every half message that is due."""

from __future__ import annotations

from benchmarks.data.events import EVENT_TYPE
from benchmarks.harness.child_protocol import ProgressReporter
from benchmarks.subjects.application import application
from shieldtx import LocalOutcome


def main() -> None:
    """Check until nothing is due any more."""
    reporter = ProgressReporter()
    job = reporter.job
    app = application(url=job["url"], bootstrap=job["bootstrap"], prefix=job["prefix"])
    app.checks(EVENT_TYPE)(lambda _: LocalOutcome.COMMIT)
    (check_back,) = app.half_messages.check_backs()
    reporter.ready()
    reporter.sample(0)
    done = 0
    while (found := check_back.run_once()).checked:
        done += found.checked
    reporter.sample(done)
    reporter.await_end()
    app.close()


if __name__ == "__main__":
    main()
