"""shieldtx's relay, pass after pass; it owns its share of the shards before it begins."""

from __future__ import annotations

import threading
import time
from typing import Any

import psutil

from benchmarks.harness.child_protocol import ProgressReporter
from benchmarks.subjects.application import application
from shieldtx import ShieldTx
from shieldtx.scheduling.gc_tuning import few_collections
from shieldtx.store.schema_settings import DEFAULT_SHARDS

IDLE_S = 0.002


@few_collections()
def main() -> None:
    """Relay until the harness ends the run."""
    reporter = ProgressReporter()
    job = reporter.job
    app = application(
        url=job["url"], bootstrap=job["bootstrap"], prefix=job["prefix"], client=job["client"]
    )
    registry = None
    if job.get("metrics"):
        from prometheus_client import CollectorRegistry  # noqa: PLC0415  only where it is measured

        registry = CollectorRegistry()
        registry.register(app.metrics)
    relay = app.build_relay()
    share = DEFAULT_SHARDS // job.get("relays", 1)
    deadline = time.monotonic() + 60
    while len(relay.shards) != share:
        relay.renew()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(relay.shards)} shards are owned instead of {share}")
        time.sleep(IDLE_S)
    reporter.ready()
    purge = _Purge(app, reporter)
    if job.get("purge"):
        purge.start()
    if registry is not None:
        threading.Thread(target=_scrape, args=[registry, reporter], daemon=True).start()
    process = psutil.Process()
    published = 0
    while not reporter.is_over:
        done = relay.run_once()
        published += done.published
        reporter.sample(published, purged=purge.removed, rss=process.memory_info().rss)
        if done.outage or done.retried or done.failed or done.lost:
            raise RuntimeError(f"the relay was disturbed: {done}")
        if not done.more:
            time.sleep(IDLE_S)
    if job.get("metrics") and not _published(app) >= published:
        raise RuntimeError(f"{published} events were published, and {_published(app)} counted")
    relay.close()
    app.close()


def _scrape(registry: Any, reporter: ProgressReporter) -> None:
    """Read the metrics once a second, as Prometheus would."""
    from prometheus_client import generate_latest  # noqa: PLC0415

    while not reporter.is_over:
        generate_latest(registry)
        time.sleep(1)


def _published(app: ShieldTx) -> float:
    """Return how many events the metrics count as published."""
    samples = (sample for metric in app.metrics.collect() for sample in metric.samples)
    return sum(s.value for s in samples if s.name == "shieldtx_relay_events_total")


class _Purge(threading.Thread):
    """Retention in a separate thread, as in the worker process."""

    def __init__(self, app: ShieldTx, reporter: ProgressReporter) -> None:
        super().__init__(name="purge", daemon=True)
        self.removed = 0
        self._retention = app.build_retention()
        self._reporter = reporter

    def run(self) -> None:
        """Purge until nothing is left."""
        more = True
        while more and not self._reporter.is_over:
            done = self._retention.run_once()
            self.removed += done.removed
            more = done.more


if __name__ == "__main__":
    main()
