"""A relay with a backlog of constant length: an event is written for each event sent."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from benchmarks.data.events import check_beginning, read_topic
from benchmarks.data.fill_outbox import Feeder, fill, waits
from benchmarks.harness.context import Bench, run_subjects
from benchmarks.harness.samples import Run, Sample
from benchmarks.harness.servers import RunEnvironment


class SteadyBacklog:
    """An outbox with a backlog of constant length, and the measurements of its relays."""

    def __init__(self, bench: Bench, place: RunEnvironment, *, backlog: int) -> None:
        self.place = place
        self._bench = bench
        self._reached = backlog
        self._sent = 0
        self._rows = 0
        with place.connect() as connection:
            fill(connection, begin=0, end=backlog, keys=bench.sizes.keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.require_order()

    def measure(
        self, events: int, *, is_over: Callable[[Sample], bool] = lambda _: False, **job: Any
    ) -> Run:
        """Measure a new relay process over the given events; `is_over` may end it earlier."""
        self._top_up()
        feeder = Feeder(self.place, begin=self._reached, keys=self._bench.sizes.keys)
        try:
            run = run_subjects(
                self.place,
                "relay",
                [{"client": "kafka-python"} | job],
                events=events,
                feeder=feeder,
                is_over=is_over,
            )
        finally:
            feeder.close()
        self._reached = feeder.reached
        self._sent += run.events
        return run

    def _top_up(self) -> None:
        """Write the events by which the previous relay has shortened the backlog."""
        with self.place.connect() as connection:
            now = waits(connection)
            self._rows = max(self._rows, now)
            missing = self._rows - now
            fill(
                connection,
                begin=self._reached,
                end=self._reached + missing,
                keys=self._bench.sizes.keys,
            )
        self._reached += missing

    def require_order(self) -> None:
        """Raise BenchmarkFailed unless all sent events are in the topic, once and in order."""
        found = read_topic(self.place.bootstrap, self.place.topic)
        check_beginning(found, self._sent).require_whole("the relay with a backlog")
