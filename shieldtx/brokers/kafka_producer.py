"""kafka-python's producer, with what publishing needs besides."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from kafka import KafkaProducer
from kafka.errors import KafkaError
from kafka.net.compat import KafkaNetClient

# How long to wait for one partition before looking at the clock again.
_LOOK_S: Final = 0.25


class Producer(KafkaProducer):
    """A producer that can be waited for up to a moment, and let go of with records under way."""

    network: KafkaNetClient
    _abandoned = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self.asked_for: set[str] = set()
        """Topics that it keeps track of: ten times a second when they are gone."""

    def knows(self, topic: str) -> bool:
        """Whether the metadata at hand tell of this topic."""
        return self.network.cluster.partitions_for_topic(topic) is not None

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has; raises KafkaTimeoutError for an unknown one."""
        self.asked_for.add(topic)
        return len(self.partitions_for(topic))  # type: ignore[no-untyped-call]

    def settle(self, futures: Sequence[Any], deadline: float) -> None:
        """Have everything sent and wait for all `futures`, until `deadline` (monotonic) at most."""
        done = 0
        while True:
            while done < len(futures) and futures[done].is_done:
                done += 1
            left = deadline - time.monotonic()
            if done == len(futures) or left <= 0:
                return
            # It raises when time is up, and also when a batch is divided because it was too large.
            with suppress(KafkaError):
                self.flush(timeout=min(left, _LOOK_S))

    def flush(self, timeout: float | None = None) -> None:
        """Send everything and wait for it, up to `timeout` seconds for each batch."""
        if not self._abandoned:
            super().flush(timeout)  # type: ignore[no-untyped-call]

    def abandon(self) -> None:
        """Close without waiting; what is not acknowledged yet may or may not be in the log.

        The client's own close() waits for its batches first, and raises without having closed
        anything when they do not end.
        """
        self._abandoned = True
        self.close(timeout=0)  # type: ignore[no-untyped-call]

    def __del__(self) -> None:
        """Abandon what nobody closed: the client's own would wait, and switch its logger off."""
        with suppress(Exception):
            self.abandon()
