"""The expected result of a run over outboxes and topics: plain Python, for the real rules.

The reconciliation itself, without Spark, determines since when partitions are complete and exist,
and whether topics differ from those of the last good run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from shieldtx.brokers.kafka.range_reader import OffsetRange
from shieldtx.brokers.kafka.topic_offsets import TopicOffsets
from shieldtx.brokers.partitioning import partition_of
from shieldtx.domain.events import physical_topic
from shieldtx.domain.states import OutboxStatus
from shieldtx.reconcile.facts import Fact, Value
from shieldtx.reconcile.findings import TOPICS as BESIDE_TOPICS
from shieldtx.reconcile.observed import ObservedTopic, ObservedTopics
from shieldtx.reconcile.rules import TOPICS
from shieldtx.reconcile.verdicts import Verdict
from spark.sources import topic_completeness
from spark.sources.kafka_data_source import Log as NamedLog
from spark.sources.topic_completeness import Contents
from tests.verification.oracle.facts import Row, Rows
from tests.verification.oracle.history import Pair
from tests.verification.oracle.setting import Judged
from tests.verification.oracle.topic_logs import EventId, Log, Record

PREFIX: Final = "h."
CLUSTER: Final = "cluster"
_BEGAN: Final = datetime(2020, 1, 1, tzinfo=UTC)
_CLOCK_STEP: Final = 10 / 60
Place = tuple[int, int, Record]
"""A record with its partition and its offset."""


@dataclass(kw_only=True, slots=True)
class TopicReading:
    """One run over outboxes and topics."""

    night: Judged
    rows: Rows
    logs: list[Log]
    """The logs that the run reads."""
    looked_at: set[EventId] | None
    """The events whose outbox rows a further run reads; None: all."""
    moved_since: Mapping[str, float] = field(default_factory=dict)

    def verdicts(self) -> dict[Pair, Verdict]:
        """Return the verdict of the run on each event and its topic."""
        found: dict[Pair, Verdict] = {}
        for log in self.logs:
            beside = _Beside(reading=self, log=log)
            for (source, event_id), facts in beside.facts():
                pair = Pair(log.kind.value, source, BESIDE_TOPICS, log.topic, event_id)
                found[pair] = TOPICS.judge(facts)
        return found

    def ambiguous(self) -> list[EventId]:
        """Return the events that would be missed if the last partition was known to be old.

        Also those without a row that, by their header, are too old for a row, and were sent
        recently.
        """
        of_logs = (_Beside(reading=self, log=log) for log in self.logs)
        return [event for beside in of_logs for event in beside.ambiguous()]

    def obstacles(self) -> list[str]:
        """Return why something cannot be judged."""
        since: dict[tuple[str, str, int], datetime | None] = {}
        for log in self.logs:
            beside = _Beside(reading=self, log=log)
            if beside.has_rows:
                since |= beside.complete_since
        return list(topic_completeness.unjudged(since))

    def read_since(self) -> float | None:
        """Return the time from which records are read; None: all."""
        return min(self.moved_since.values()) - 2 * self.night.margin if self.moved_since else None

    def is_covered(self, source: str, *times: float | str | None) -> bool:
        """Return whether a further run reads an event because of its time of writing or sending."""
        since = self.moved_since.get(source)
        known = [time for time in times if isinstance(time, float | int)]
        return since is None or max(known) >= since


class _Beside:
    """The rows of one topic, and its records."""

    def __init__(self, *, reading: TopicReading, log: Log) -> None:
        self._reading, self._log, self._night = reading, log, reading.night
        self._offsets = offsets_of(log, reading.night.at, reading.read_since())
        self._rows: dict[EventId, Row] = {
            (row["source"], row["event_id"]): row
            for row in reading.rows.outbox
            if row["source"] == row["service"]
            and (row["topic"], row["kind"]) == (log.topic, log.kind)
        }
        self._records: dict[EventId, list[Place]] = defaultdict(list)
        for number, partition in enumerate(log.at(reading.night.at)):
            start = self._offsets.ranges[number].start
            for offset, record in partition.records:
                if offset >= start and record.source != reading.night.renamed_service:
                    event = record.source, record.event_id
                    self._records[event].append((number, offset, record))
        since = reading.read_since()
        given = (
            self._contents(),
            [NamedLog(topic=log.topic, kind=log.kind.value, name=name_of(log))],
            {name_of(log): self._offsets},
            None if since is None else _moment(since),
        )
        self.complete_since = topic_completeness.complete_since(*given)
        self._as_many_since = topic_completeness.as_many_since(*given)

    def facts(self) -> list[tuple[EventId, dict[Fact, Value]]]:
        """Return the facts about each event that the run reads."""
        return [
            (event, self._facts(event, self._rows.get(event), self._records.get(event, [])))
            for event in self._rows.keys() | self._records.keys()
            if self._is_looked_at(event)
        ]

    @property
    def has_rows(self) -> bool:
        """Return whether an outbox has a row of the topic, whose record may be missing."""
        return bool(self._rows)

    def ambiguous(self) -> list[EventId]:
        """Return the events of which nothing shows whether a row or record was lost."""
        return [
            event for event, facts in self.facts() if self._is_ambiguous(event, TOPICS.judge(facts))
        ]

    def _is_ambiguous(self, event: EventId, verdict: Verdict) -> bool:
        """Return whether its records were lost or in another partition, or its row was lost."""
        if verdict is Verdict.TOO_OLD:
            return _first_sent(self._records[event]) >= self._night.horizon(event[0])
        return (
            verdict is Verdict.BEFORE_TOPIC
            and (row := self._rows[event])["key"] is not None
            and self._keeps_since(row) is None
            and self._as_many_since[self._log.topic, self._log.kind.value] is None
            and self._was_sent_since(row, self._own_since(row))
        )

    def _is_looked_at(self, event: EventId) -> bool:
        reading, records = self._reading, self._records.get(event, [])
        if event in self._rows:
            is_read = reading.looked_at is None or event in reading.looked_at
            return is_read or any(
                reading.is_covered(event[0], r.sent_at, r.written_at) for _, _, r in records
            )
        sent_at, written_at = _first_sent(records), _written_at(records)
        return reading.is_covered(event[0], sent_at, written_at)

    def _facts(self, event: EventId, row: Row | None, records: list[Place]) -> dict[Fact, Value]:
        sent_at = _first_sent(records) if records else None
        moves = [] if sent_at is None else [sent_at]
        moves += [] if row is None else [_moved_at(row)]
        return {
            Fact.UPSTREAM: None if row is None else row["status"],
            Fact.RECORDED: bool(records),
            Fact.REPEATED: len(records) > 1,
            Fact.IN_ORDER: not self._is_inverted(event, row, records),
            Fact.QUIET: max(moves) < self._night.watermark,
            Fact.KEPT: self._is_kept(event, row, records),
        }

    def _is_kept(self, event: EventId, row: Row | None, records: list[Place]) -> bool:
        if row is None:
            times = [t for t in (_first_sent(records), _written_at(records)) if t is not None]
            return min(times) >= self._night.horizon(event[0])
        return bool(records) or self._was_sent_since(row, self._keeps_since(row))

    def _was_sent_since(self, row: Row, since: datetime | None) -> bool:
        if since is None:
            return False
        margin = timedelta(minutes=self._night.margin)
        was_sent = row["status"] is OutboxStatus.PROCESSED
        return _moment(row["created_at"]) >= since + margin or (
            was_sent and _moment(row["settled_at"]) >= since + 2 * margin
        )

    def _keeps_since(self, row: Row) -> datetime | None:
        """Return since when the topic certainly has the record of a row, if it existed."""
        since = [self.complete_since[self._place(n)] for n in range(len(self._offsets.ranges))]
        told = [when for when in since if when is not None]
        known = [max(told)] if len(told) == len(since) else []
        if row["key"] is not None:
            own = self._own_since(row)
            as_many = self._as_many_since[self._log.topic, self._log.kind.value]
            known += [max(own, as_many)] if own and as_many else []
        return min(known, default=None)

    def _own_since(self, row: Row) -> datetime | None:
        number = partition_of(row["key"].encode(), len(self._offsets.ranges))
        return self.complete_since[self._place(number)]

    def _is_inverted(self, event: EventId, row: Row | None, records: list[Place]) -> bool:
        places = {number for number, _, _ in records}
        if row is None or len(places) != 1 or row["key"] is None:
            return False
        if row["status"] is not OutboxStatus.PROCESSED:
            return False
        (number,) = places
        since = self.complete_since[self._place(number)]
        margin = timedelta(minutes=self._night.margin)
        if since is None or _moment(row["created_at"]) < since + margin:
            return False
        before = [
            self._rows[other]["created_at"]
            for other, of_other in self._records.items()
            if other[0] == event[0]
            and other in self._rows
            and {n for n, _, _ in of_other} == places
            and of_other[0][2].key == row["key"]
            and of_other[0][1] < records[0][1]
        ]
        return max(before, default=0) > row["settled_at"] + _CLOCK_STEP

    def _place(self, number: int) -> tuple[str, str, int]:
        return self._log.topic, self._log.kind.value, number

    def _contents(self) -> Contents:
        first: dict[int, tuple[int, float]] = {}
        for number, offset, record in (p for places in self._records.values() for p in places):
            at = offset, record.sent_at
            first[number] = min(at, first.get(number, at))
        return Contents(
            first_sent={self._place(n): _moment(sent_at) for n, (_, sent_at) in first.items()},
            lost=frozenset(),
            unfit={},
            foreign=0,
            writers={},
        )


def offsets_of(log: Log, at: float, since: float | None) -> TopicOffsets:
    """Return a broker's answer about a topic; with `since`, from the first record of that time."""
    ranges, later = [], set()
    for number, partition in enumerate(log.at(at)):
        young = (o for o, r in partition.records if since is None or r.sent_at >= since)
        start = next(young, partition.end) if since is not None else partition.begin
        if start > partition.begin:
            later.add(number)
        range_ = OffsetRange(topic=name_of(log), partition=number, start=start, end=partition.end)
        ranges.append(range_)
    return TopicOffsets(ranges=tuple(ranges), later=frozenset(later), topic_id=log.topic_id(at))


def topics_at(logs: Iterable[Log], at: float) -> ObservedTopics:
    """Return the topics at one moment, as the broker reports them."""
    return ObservedTopics(
        cluster=CLUSTER,
        topics={
            name_of(log): ObservedTopic(
                topic_id=log.topic_id(at), ends={n: p.end for n, p in enumerate(log.at(at))}
            )
            for log in logs
        },
    )


def name_of(log: Log) -> str:
    """Return the broker's name of a topic."""
    return physical_topic(PREFIX, log.topic, log.kind)


def _first_sent(records: list[Place]) -> float:
    return min(record.sent_at for _, _, record in records)


def _written_at(records: list[Place]) -> float | None:
    times = [r.written_at for _, _, r in records if isinstance(r.written_at, float | int)]
    return min(times, default=None)


def _moved_at(row: Row) -> float:
    times = (row["created_at"], row["settled_at"], row["lease_until"])
    return max(float(time) for time in times if time is not None)


def _moment(minutes: float) -> datetime:
    return _BEGAN + timedelta(minutes=minutes)
