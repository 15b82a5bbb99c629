"""The topics of a history as input of the job on Spark: records and offsets without a broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self
from unittest.mock import patch

from pyspark.sql import DataFrame, SparkSession

from shieldtx.brokers.kafka.range_reader import OffsetRange
from shieldtx.brokers.kafka.topic_offsets import TopicEnds, TopicOffsets
from spark import job
from spark.sources import topics
from spark.sources.kafka_data_source import SCHEMA
from spark.sources.kafka_data_source import Log as NamedLog
from tests.verification.oracle.history import History
from tests.verification.oracle.setting import Judged
from tests.verification.oracle.topic_logs import Log, Record
from tests.verification.oracle.topic_reading import name_of, offsets_of, topics_at


@contextmanager
def topics_of(history: History, night: Judged, began: datetime) -> Iterator[None]:
    """Let a run find the topics of a night; times count from `began`."""
    if history.topics is None:
        yield
        return
    logs = {name_of(log): log for log in history.topics.logs.values()}
    broker = _Broker(logs=logs, at=night.at, began=began)
    with (
        patch.object(topics, "TopicOffsetReader", lambda _: broker),
        patch.object(topics, "frame_of", broker.frame),
        # For a few rows, compiling plans takes most of the time.
        patch.object(job, "_expect", lambda *_, **__: None),
    ):
        yield


@dataclass(frozen=True, kw_only=True, slots=True)
class _Broker:
    """A broker's answers for a run, and the records that the run reads."""

    logs: Mapping[str, Log]
    at: float
    began: datetime

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def of(self, topic: str, *, since: datetime | None = None) -> TopicOffsets:
        minutes = None if since is None else (since - self.began) / timedelta(minutes=1)
        return offsets_of(self.logs[topic], self.at, minutes)

    def existing(self, names: Sequence[str]) -> frozenset[str]:
        return frozenset(self.logs.keys() & set(names))

    def ends(self, names: Sequence[str]) -> Mapping[str, TopicEnds | None]:
        known = topics_at((self.logs[name] for name in names), self.at).topics
        return {
            name: TopicEnds(topic_id=topic.topic_id, ends=topic.ends)
            for name, topic in known.items()
            if topic is not None
        }

    def cluster_id(self) -> str | None:
        return topics_at((), self.at).cluster

    def is_compacted(self, _: str) -> bool:
        return False

    def frame(
        self,
        spark: SparkSession,
        connection: object,
        named: Iterable[NamedLog],
        ranges: Iterable[OffsetRange],
    ) -> DataFrame:
        """Return the records of ranges, as the data source does."""
        del connection, named
        rows = [row for range_ in ranges for row in self._rows(range_)]
        return spark.createDataFrame(rows, SCHEMA)

    def _rows(self, range_: OffsetRange) -> Iterator[tuple[Any, ...]]:
        log = self.logs[range_.topic]
        for offset, record in log.at(self.at)[range_.partition].records:
            if range_.start <= offset < range_.end:
                yield self._row(log, offset, record)

    def _row(self, log: Log, offset: int, record: Record) -> tuple[Any, ...]:
        cause, written_at = record.causation_id, record.written_at
        if not isinstance(written_at, str):
            written_at = self._moment(written_at).isoformat()
        return (
            *(log.topic, log.kind.value, record.partition, offset, self._moment(record.sent_at)),
            *(str(record.event_id), record.source, record.key, record.event_type),
            *(None if cause is None else str(cause), written_at, None),
        )

    def _moment(self, minutes: float) -> datetime:
        return self.began + timedelta(minutes=minutes)
