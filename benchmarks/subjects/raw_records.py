"""The records that a relay would make of a benchmark's events."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from benchmarks.records import EVENT_TYPE, SOURCE, mark_of, payload_text
from shieldtx.brokers import codec
from shieldtx.brokers.partitioning import partition_of
from shieldtx.events import Envelope, new_event_id
from shieldtx.ports import Record


def record_at(index: int, *, keys: int, prefix: str) -> Record:
    """Return the record of the event at a place of the line."""
    mark = mark_of(index, keys)
    return codec.encode(
        Envelope(
            id=new_event_id(),
            type=EVENT_TYPE,
            source=SOURCE,
            topic=EVENT_TYPE,
            payload=payload_text(mark),
            time=datetime.now(UTC),
            key=mark.key,
        ),
        prefix,
    )


def records_of(job: Mapping[str, Any]) -> tuple[int, list[tuple[Record, int]]]:
    """Return how many records are for warming up, and all records with their partitions."""
    records = (
        record_at(index, keys=job["keys"], prefix=job["prefix"])
        for index in range(job["warm"] + job["events"])
    )
    return job["warm"], [(r, partition_of(r.key or b"", job["partitions"])) for r in records]
