"""shieldtx's consumer, pass after pass."""

from __future__ import annotations

from benchmarks.harness.child_protocol import ProgressReporter
from benchmarks.subjects.application import application, handle, handle_refusing, handle_waiting
from shieldtx.ports.inbox import AttemptOutcome
from shieldtx.scheduling.gc_tuning import few_collections


@few_collections()
def main() -> None:
    """Consume until the harness ends the run."""
    reporter = ProgressReporter()
    job = reporter.job
    waits, concurrency = job.get("waits"), job.get("concurrency", 1)
    app = application(
        url=job["url"], bootstrap=job["bootstrap"], prefix=job["prefix"], concurrency=concurrency
    )
    if waits:
        handle_waiting(app, job["group"], waits, coroutine=job["coroutine"])
    elif "refuses" in job:
        handle_refusing(app, job["group"], job["refuses"])
    else:
        handle(app, job["group"], lists=job["lists"])
    consumer = app.build_consumer(job["group"])
    reporter.ready()
    dealt_with = 0
    while not reporter.is_over:
        done = consumer.run_once()
        finished = done.outcomes[AttemptOutcome.APPLIED] + done.outcomes[AttemptOutcome.REFUSED]
        dealt_with += finished + done.duplicates
        reporter.sample(dealt_with)
        if done.parked or done.ignored or done.outcomes[AttemptOutcome.RETRIED]:
            raise RuntimeError(f"the consumer was not left alone: {done}")
    consumer.close()
    app.close()


if __name__ == "__main__":
    main()
