"""The events of all benchmarks, and the check of what became of them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from benchmarks.harness.samples import BenchmarkFailed

EVENT_TYPE: Final = "bench.happened"
SOURCE: Final = "bench"
NOTE: Final = "x" * 240
"""Makes a payload of about 300 bytes, together with the key and the number."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What an event's payload says of it."""

    key: str
    number: int
    """Counts the events of a key from 1."""


def mark_of(index: int, keys: int) -> Mark:
    """Return the mark of the event at a place (from 0) of a benchmark's line of events."""
    return Mark(key=f"key-{index % keys}", number=index // keys + 1)


def payload_of(mark: Mark) -> dict[str, object]:
    """Return an event's payload."""
    return {"n": mark.number, "key": mark.key, "note": NOTE}


def payload_text(mark: Mark) -> str:
    """Return an event's payload as the outbox stores it."""
    return json.dumps(payload_of(mark), separators=(",", ":"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What a check found."""

    records: int
    missing: int
    foreign: int
    """Never written."""
    doubled: int
    inversions: int
    """Records that came after a later one of their key."""

    def require_whole(self, what: str, *, ordered: bool = True) -> None:
        """Raise BenchmarkFailed unless each event is there once, and in order."""
        wrong = self.missing or self.foreign or self.doubled or (ordered and self.inversions)
        if wrong:
            raise BenchmarkFailed(
                f"{what}: of {self.records} records {self.doubled} are doubled, {self.foreign} "
                f"were never written, {self.inversions} are out of order; "
                f"{self.missing} are missing"
            )


def check(found: Iterable[Mark], expected: Iterable[Mark]) -> Reading:
    """Compare marks, those of each key in the order in which they were found, with the expected."""
    last: dict[str, int] = {}
    counts: Counter[Mark] = Counter()
    inversions = 0
    for mark in found:
        counts[mark] += 1
        inversions += mark.number < last.get(mark.key, 0)
        last[mark.key] = mark.number
    wanted = set(expected)
    return Reading(
        records=counts.total(),
        missing=len(wanted - counts.keys()),
        foreign=len(counts.keys() - wanted),
        doubled=sum(count - 1 for count in counts.values()),
        inversions=inversions,
    )


def check_beginning(found: Sequence[Mark], events: int) -> Reading:
    """Compare marks with a line of events of which each key's first ones have come so far.

    `events` have come in all; which ones is told apart by nothing but their keys' counts.
    """
    counts = Counter(mark.key for mark in dict.fromkeys(found))
    expected = (
        Mark(key=key, number=n) for key, count in counts.items() for n in range(1, count + 1)
    )
    reading = check(found, expected)
    return replace(reading, missing=max(reading.missing, events - counts.total()))


def written(events: int, keys: int) -> Iterator[Mark]:
    """Return the marks of the first events of a benchmark."""
    return (mark_of(index, keys) for index in range(events))


def read_topic(bootstrap: str, topic: str) -> list[Mark]:
    """Read a topic whole, with a client that shieldtx does not consume with."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-check"})
    try:
        partitions = reader.list_topics(topic, timeout=10).topics[topic].partitions
        places = [TopicPartition(topic, number, 0) for number in partitions]
        ends = [reader.get_watermark_offsets(place, timeout=10)[1] for place in places]
        reader.assign(places)
        found: list[Mark] = []
        while len(found) < sum(ends):
            records = reader.consume(num_messages=2_000, timeout=10)
            if not records:
                raise BenchmarkFailed(f"{topic}: {sum(ends) - len(found)} records cannot be read")
            found.extend(_mark_in(record.value()) for record in records)
        return found
    finally:
        reader.close()


def _mark_in(value: bytes) -> Mark:
    body = json.loads(value)
    return Mark(key=sys.intern(body["key"]), number=body["n"])
