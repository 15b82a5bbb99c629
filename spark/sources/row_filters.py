"""The rows of a table that are read, as SQL conditions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby
from uuid import UUID

from shieldtx.reconcile.digest_buckets import Buckets

_PARTS = 4
"""Parts of a read of everything. Measured on 2 cores: four, with the fetch size of `sources.jdbc`,
take at most half the time of Spark's single one."""
MOST_LOOKUPS = 200_000
"""The most events that are looked up by id; for more, the whole table is read."""
_IDS = 5_000
"""The most ids in one query."""
_RANGES = 200
"""The most ranges in one query; PostgreSQL estimates each of them by the index."""


_FIRST_ID = UUID(int=0)
_EARLIEST = "'0001-01-02 00:00:00+00'::timestamptz"
LATEST = "'9998-12-31 00:00:00+00'::timestamptz"


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """The rows of a table that are read."""

    condition: str = "true"
    """The condition on the row: `o` of an outbox, `i` of an inbox."""
    parts: Sequence[str] | None = None
    """Conditions of separate reads, each at its own time; None: one read."""
    bucket: str = "NULL::int"
    """The bucket of a row, `{row}`, if digests were compared."""

    @property
    def is_everything(self) -> bool:
        """Return whether all rows are read."""
        return self.condition == "true" and self.parts is EVERYTHING.parts

    def or_ids(self, row: str, ids: Collection[str]) -> Read:
        """Return a read that includes the rows of some events, so that no row is read twice.

        `row` is the name of the row, as in `condition`.
        """
        if not ids:
            return self
        if len(ids) > MOST_LOOKUPS:
            return EVERYTHING
        # PostgreSQL looks up ids in an array by the index only if the array is a constant.
        texts = ", ".join(f"'{UUID(one)}'" for one in sorted(ids))
        either = f"({self.condition} OR {row}.event_id = ANY (ARRAY[{texts}]::uuid[]))"
        return replace(self, condition=either)


# Cut by `seq`, which never changes: each row is in exactly one part, despite concurrent changes.
EVERYTHING = Read(parts=[f"seq % {_PARTS} = {part}" for part in range(_PARTS)])


NOTHING = Read(condition="false")


def by_ids(ids: Iterable[str]) -> Read:
    """Return a read of the rows of some events."""
    texts = [f"'{UUID(one)}'" for one in ids]
    if not texts:
        return NOTHING
    return Read(
        parts=[
            f"event_id IN ({', '.join(texts[start : start + _IDS])})"
            for start in range(0, len(texts), _IDS)
        ]
    )


Range = tuple[UUID | None, UUID | None]
"""A range of ids; the upper end is exclusive."""


TopicAndType = tuple[str, str]
"""The topic and the type of an event."""


def by_buckets(
    buckets: Buckets,
    numbers: Mapping[TopicAndType, Collection[int]],
    *,
    and_ids: Iterable[tuple[str, TopicAndType]] = (),
) -> Read:
    """Return a read of rows by types and buckets, and of some more ids; no row is read twice."""
    ranges = {topic_and_type: buckets.ranges(some) for topic_and_type, some in numbers.items()}
    # A part has one type: as a condition next to its ranges, the type costs the least for each row.
    parts = [
        f"topic = {quoted(topic)} AND event_type = {quoted(event_type)} AND {part}"
        for (topic, event_type), some in ranges.items()
        for part in _range_parts(some)
    ]
    parts += _id_parts(
        (one, topic_and_type)
        for one, topic_and_type in and_ids
        if not _is_in(UUID(one), ranges.get(topic_and_type, ()))
    )
    if not parts:
        return NOTHING
    every = {number for some in numbers.values() for number in some}
    return Read(parts=parts, bucket=buckets.sql_of(every))


def range_of(buckets: Buckets, numbers: Collection[int]) -> str:
    """Return an SQL condition: an event lies in one of some neighbouring buckets."""
    (condition,) = _range_parts(buckets.ranges(numbers))
    return condition


def _is_in(event_id: UUID, ranges: Sequence[Range]) -> bool:
    """Return whether an id is in one of some ranges, which are sorted and disjoint."""
    place = bisect_right(ranges, event_id, key=lambda one: one[0] or _FIRST_ID)
    if place == 0:
        return False
    _, high = ranges[place - 1]
    return high is None or event_id < high


def _id_parts(events: Iterable[tuple[str, TopicAndType]]) -> list[str]:
    """Return SQL conditions for events with one of some ids and its type, at most `_IDS` in a part.

    By the id alone, a row of another type with the same id would be read once more.
    """
    by_type = sorted(set(events), key=lambda event: event[1])
    parts = []
    for start in range(0, len(by_type), _IDS):
        conditions = [
            f"topic = {quoted(topic)} AND event_type = {quoted(event_type)} AND {ids}"
            for (topic, event_type), of_type in groupby(
                by_type[start : start + _IDS], key=lambda event: event[1]
            )
            for ids in by_ids(one for one, _ in of_type).parts or ()
        ]
        parts.append(f"({' OR '.join(f'({one})' for one in conditions)})")
    return parts


def _range_parts(ranges: Sequence[Range]) -> list[str]:
    conditions = [
        " AND ".join(
            [
                *([f"event_id >= '{low}'"] if low else []),
                *([f"event_id < '{high}'"] if high else []),
            ]
        )
        or "true"
        for low, high in ranges
    ]
    return [
        f"({' OR '.join(f'({one})' for one in conditions[start : start + _RANGES])})"
        for start in range(0, len(conditions), _RANGES)
    ]


def inside_calendar(time: str) -> str:
    """Return an SQL expression for a time, limited to the years that Python supports.

    PostgreSQL has more times, also `infinity`, and an operator may have set one by hand.
    """
    return (
        f"(CASE WHEN {time} < {_EARLIEST} THEN {_EARLIEST} "
        f"WHEN {time} > {LATEST} THEN {LATEST} ELSE {time} END)"
    )


_WRITTEN_MEANWHILE = timedelta(minutes=1)
"""The minimum tolerance: clocks of a primary and its replica may differ by that much."""


def is_ahead(*times: str, margin: timedelta) -> str:
    """Return an SQL condition: one of some times is in the future, because a clock was ahead."""
    seconds = max(margin, _WRITTEN_MEANWHILE).total_seconds()
    return f"coalesce(greatest({', '.join(times)}) > now() + interval '{seconds} s', false)"


def quoted(text: str) -> str:
    """Return a text as an SQL literal, for any setting of `standard_conforming_strings`."""
    literal = "'" + text.replace("'", "''") + "'"
    return literal if "\\" not in text else "E" + literal.replace("\\", "\\\\")


def literal_time(when: datetime) -> str:
    """Return a time as an SQL literal."""
    return f"'{when.isoformat()}'::timestamptz"


def listed(texts: Iterable[str]) -> str:
    """Return texts as SQL literals, separated by commas."""
    return ", ".join(map(quoted, texts))


def rows_of_texts(rows: Iterable[tuple[str, ...]]) -> str:
    """Return rows of texts as the sorted operands of an SQL IN."""
    return ", ".join(f"({', '.join(map(quoted, row))})" for row in sorted(rows))


def array_of(texts: Iterable[str]) -> str:
    """Return texts as an SQL array, which may be empty."""
    return f"ARRAY[{listed(texts)}]::text[]"
