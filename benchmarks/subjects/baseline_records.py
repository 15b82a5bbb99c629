"""The records that a relay would make of a benchmark's events."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from benchmarks.data.events import EVENT_TYPE, SOURCE, payload_text, position_of
from shieldtx.brokers import cloudevents
from shieldtx.brokers.partitioning import partition_of
from shieldtx.domain.events import Envelope, new_event_id
from shieldtx.ports.broker import Record


class Ready(NamedTuple):
    """A record as a bare client receives it."""

    value: bytes
    key: bytes | None
    headers: list[tuple[str, bytes]]
    partition: int


def record_at(index: int, *, keys: int, prefix: str) -> Record:
    """Return the record of the event at an index of the sequence."""
    position = position_of(index, keys)
    return cloudevents.encode(
        Envelope(
            id=new_event_id(),
            type=EVENT_TYPE,
            source=SOURCE,
            topic=EVENT_TYPE,
            payload=payload_text(position),
            time=datetime.now(UTC),
            key=position.key,
        ),
        prefix,
    )


def records_of(job: Mapping[str, Any]) -> tuple[int, list[Ready]]:
    """Return how many records are for the warm-up, and all records, ready to be sent."""
    records = (
        record_at(index, keys=job["keys"], prefix=job["prefix"])
        for index in range(job["warm"] + job["events"])
    )
    return job["warm"], [
        Ready(r.value, r.key, list(r.headers), partition_of(r.key or b"", job["partitions"]))
        for r in records
    ]
