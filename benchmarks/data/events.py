"""The events of all benchmarks, and the check of their delivery."""

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
class KeyPosition:
    """The position of an event among the events of its key, as in its payload."""

    key: str
    number: int
    """Counts the events of a key from 1."""


def position_of(index: int, keys: int) -> KeyPosition:
    """Return the position of the event at an index (from 0) of a benchmark's events."""
    return KeyPosition(key=f"key-{index % keys}", number=index // keys + 1)


def payload_of(position: KeyPosition) -> dict[str, object]:
    """Return an event's payload."""
    return {"n": position.number, "key": position.key, "note": NOTE}


def payload_text(position: KeyPosition) -> str:
    """Return an event's payload as the outbox stores it."""
    return json.dumps(payload_of(position), separators=(",", ":"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The result of a check."""

    records: int
    missing: int
    foreign: int
    """Events that were never written."""
    doubled: int
    inversions: int
    """Records that came after a later record of their key."""

    def require_whole(self, what: str, *, ordered: bool = True) -> None:
        """Raise BenchmarkFailed unless each event is there once, and in order."""
        wrong = self.missing or self.foreign or self.doubled or (ordered and self.inversions)
        if wrong:
            raise BenchmarkFailed(
                f"{what}: of {self.records} records {self.doubled} are doubled, {self.foreign} "
                f"were never written, {self.inversions} are out of order; "
                f"{self.missing} are missing"
            )


def check(found: Iterable[KeyPosition], expected: Iterable[KeyPosition]) -> Reading:
    """Compare the positions, in the order of their reading, with the expected positions."""
    last: dict[str, int] = {}
    counts: Counter[KeyPosition] = Counter()
    inversions = 0
    for position in found:
        counts[position] += 1
        inversions += position.number < last.get(position.key, 0)
        last[position.key] = position.number
    wanted = set(expected)
    return Reading(
        records=counts.total(),
        missing=len(wanted - counts.keys()),
        foreign=len(counts.keys() - wanted),
        doubled=sum(count - 1 for count in counts.values()),
        inversions=inversions,
    )


def check_beginning(found: Sequence[KeyPosition], events: int) -> Reading:
    """Compare the positions with the first events of each key.

    `events` is the total number of events; the counts of the keys give the expected positions.
    """
    counts = Counter(position.key for position in dict.fromkeys(found))
    expected = (
        KeyPosition(key=key, number=n) for key, count in counts.items() for n in range(1, count + 1)
    )
    reading = check(found, expected)
    return replace(reading, missing=max(reading.missing, events - counts.total()))


def written(events: int, keys: int) -> Iterator[KeyPosition]:
    """Return the positions of the first events of a benchmark."""
    return (position_of(index, keys) for index in range(events))


def read_topic(bootstrap: str, topic: str) -> list[KeyPosition]:
    """Read a whole topic, with a client that shieldtx does not use for consuming."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-check"})
    try:
        partitions = reader.list_topics(topic, timeout=10).topics[topic].partitions
        offsets = [TopicPartition(topic, number, 0) for number in partitions]
        ends = [reader.get_watermark_offsets(offset, timeout=10)[1] for offset in offsets]
        reader.assign(offsets)
        found: list[KeyPosition] = []
        while len(found) < sum(ends):
            records = reader.consume(num_messages=2_000, timeout=10)
            if not records:
                raise BenchmarkFailed(f"{topic}: {sum(ends) - len(found)} records cannot be read")
            found.extend(_position_in(record.value()) for record in records)
        return found
    finally:
        reader.close()


def _position_in(value: bytes) -> KeyPosition:
    body = json.loads(value)
    return KeyPosition(key=sys.intern(body["key"]), number=body["n"])
