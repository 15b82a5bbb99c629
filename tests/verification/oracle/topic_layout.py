"""Distributes the records of a history over topics, by the actions of relays and stories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shieldtx.brokers.partitioning import partition_of
from shieldtx.domain.states import OutboxStatus, TxKind
from tests.verification.oracle.history import History
from tests.verification.oracle.timeline import DAY, Life
from tests.verification.oracle.topic_logs import ALWAYS, Log, Record, Topics, id_of

RETENTIONS: Final = (None, DAY // 2, DAY, 2 * DAY, 3 * DAY)
"""Minimum minutes for which topics keep their records."""


def laid_out(h: History) -> Topics:
    """Return the topics of a history, whose rows are complete."""
    r = h.random
    first = r.choice((0, 0, 0, 1))
    topics = Topics(logs={}, read_since=h.setting.nights[first].at)
    for life in h.lives:
        if life.group is None and life.source == life.service:
            log = _log(h, topics, life.columns["topic"], life.kind)
            for sent_at in _sent(h, life):
                log.records.append(_record(h, log, life, sent_at))
    for forged in h.marks.forged:
        log = _log(h, topics, forged.topic, TxKind.COMMIT)
        log.records.append(
            Record(
                partition=_partition(h, log, forged.key, forged.sent_at),
                sent_at=forged.sent_at,
                source=forged.topic,
                event_id=forged.event_id,
                key=forged.key,
                event_type=forged.event_type,
                causation_id=None,
                written_at=forged.written_at,
            )
        )
    return topics


def _log(h: History, topics: Topics, topic: str, kind: TxKind) -> Log:
    if (topic, kind) not in topics.logs:
        topics.logs[topic, kind] = _a_log(h, topic, kind)
    return topics.logs[topic, kind]


def _a_log(h: History, topic: str, kind: TxKind) -> Log:
    """Choose its first partitions, when some are added, and what its retention deletes."""
    r = h.random
    last = int(h.setting.nights[-1].at)
    number = r.choice((1, 2, 2, 3))
    partitions = [(ALWAYS, number)]
    for at in sorted(r.randint(1, last) for _ in range(r.choice((0, 0, 1, 2)))):
        number += r.choice((1, 1, 2, 3))
        partitions.append((at + 0.25, number))
    log = Log(topic=topic, kind=kind, partitions=partitions)
    if r.random() < 0.04:
        # A recreated topic is reported to lack all earlier records: so it has lost none before.
        log.recreated_at = r.randint(1, last) + 0.25
        return log
    kept = r.choice(RETENTIONS)
    if kept is not None:
        log.cuts += _cuts(h, kept, number)
    return log


def _cuts(h: History, kept: int, partitions: int) -> Iterator[tuple[float, int, float]]:
    """Cut partitions before nights: by segments, so that partitions keep different amounts."""
    r = h.random
    never_cut = {number for number in range(partitions) if r.random() < 0.25}
    for night in h.setting.nights:
        for number in range(partitions):
            if number not in never_cut and r.random() < 0.8:
                before = int(night.at) - kept - r.choice((0, 60, 300, 1000)) + 0.25
                yield night.at - 0.25, number, before


def _sent(h: History, life: Life) -> tuple[float, ...]:
    """Return when the records of an event were sent."""
    told = h.marks.sent.get(id_of(life))
    if told is not None:
        return told
    settled = [v.at for v in life.versions if v.status is OutboxStatus.PROCESSED]
    if settled:
        return tuple(settled)
    # The event has arrived, and its relay has ended before it could settle it.
    arrivals = [each.born_at for each in h.lives if each.group and id_of(each) == id_of(life)]
    return (min(arrivals),) if arrivals else ()


def _record(h: History, log: Log, life: Life, sent_at: float) -> Record:
    columns = life.columns
    return Record(
        partition=_partition(h, log, columns["key"], sent_at),
        sent_at=sent_at,
        source=life.source,
        event_id=life.event_id,
        key=columns["key"],
        event_type=columns["event_type"],
        causation_id=columns["causation_id"],
        written_at=columns["created_at"],
    )


def _partition(h: History, log: Log, key: str | None, sent_at: float) -> int:
    number = log.partitions_at(sent_at)
    return h.random.randrange(number) if key is None else partition_of(key.encode(), number)
