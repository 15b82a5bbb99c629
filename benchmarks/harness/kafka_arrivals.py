"""The times at which events become readable in Kafka, by a consumer that waits for them."""

from __future__ import annotations

import json
import time
from types import TracebackType
from typing import Final, Self

from confluent_kafka import Consumer, TopicPartition

from benchmarks.data.events import KeyPosition
from benchmarks.harness.samples import BenchmarkFailed
from benchmarks.harness.servers import PARTITIONS, RunEnvironment

SILENCE_S: Final = 15.0


class Arrivals:
    """Reads a topic from its present end on, and records the time of each record.

    The time is that of this machine's clock, which also times PostgreSQL's commits.
    """

    def __init__(self, place: RunEnvironment) -> None:
        self._reader = Consumer(
            {
                "bootstrap.servers": place.bootstrap,
                "group.id": "bench-arrivals",
                "fetch.wait.max.ms": 10,
                "fetch.queue.backoff.ms": 1,
            }
        )
        self._reader.assign([TopicPartition(place.topic, n, 0) for n in range(PARTITIONS)])
        # The topic is still empty: after this poll, the consumer waits at its end.
        self._reader.poll(0.5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reader.close()

    def read(self, events: int) -> dict[KeyPosition, float]:
        """Read the given number of records; raises BenchmarkFailed if one is doubled or missing."""
        found: dict[KeyPosition, float] = {}
        while len(found) < events:
            record = self._reader.poll(SILENCE_S)
            now = time.time()
            if record is None:
                raise BenchmarkFailed(f"{len(found)} of {events} records have arrived, and no more")
            body = json.loads(record.value())
            position = KeyPosition(key=body["key"], number=body["n"])
            if position in found:
                raise BenchmarkFailed(f"{position} has arrived twice")
            found[position] = now
        return found
