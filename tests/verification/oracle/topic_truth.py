"""The truth about events and their topics, by what was planted, which runs have to report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from shieldtx.brokers.partitioning import partition_of
from shieldtx.domain.states import OutboxStatus, TxKind
from shieldtx.reconcile.findings import TOPICS
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle.history import History, Pair
from tests.verification.oracle.setting import Judged
from tests.verification.oracle.timeline import Life
from tests.verification.oracle.topic_logs import ALWAYS, EventId, Log, Partition, Topics, id_of

O, V = OutboxStatus, Verdict  # noqa: E741  short names for verdicts on rows
_PERHAPS_SENT: Final = {O.INIT, O.PROCESSING, O.PROCESSED}


def expected(h: History, night: Judged) -> dict[Pair, Verdict]:
    """Return what a run of this night certainly has to report about events and their topics."""
    found: dict[Pair, Verdict] = {}
    for log in read(h, night):
        lives = {id_of(life): life for life in _lives(h, log)}
        recorded = {(r.source, r.event_id) for p in log.at(night.at) for _, r in p.records}
        for source, event_id in lives.keys() | recorded:
            verdict = _verdict(h, night, log, (source, event_id), lives.get((source, event_id)))
            if verdict is not None:
                found[Pair(log.kind.value, source, TOPICS, log.topic, event_id)] = verdict
    return found


def lost_once_judged(h: History, night: Judged) -> dict[Pair, Verdict]:
    """Return the verdicts on events whose rows were lost after an earlier run judged them.

    A further run reads neither those rows nor their records again, unless the rows that the
    database lacks cause a full run.
    """
    return {
        pair: verdict
        for pair, verdict in expected(h, night).items()
        if verdict is V.RECORD_WITHOUT_ROW and _was_judged(h, night, pair)
    }


def _was_judged(h: History, night: Judged, pair: Pair) -> bool:
    earlier = [n for n in h.setting.nights if n.at < night.at and h.topics.are_read(n.at)]
    return any(
        (row := life.at(each.at)) is not None and _moved_at(row) < each.watermark
        for life in h.lives
        if life.group is None and id_of(life) == (pair.upstream, pair.event_id)
        for each in earlier
    )


def must_tell(h: History, night: Judged) -> bool:
    """Return whether a read topic has no partition that shows since when it is complete.

    Or a topic has lost records, which only its empty last partition hides. Or a topic has records
    without rows whose events are, by their headers, too old for rows.
    """
    is_hidden = any(
        all(_complete_since(partition) is None for partition in _partitions(log, night))
        or any(
            _is_lost(log, e, night) and _is_new(h, log, e, night) for e in _hidden(h, night, log)
        )
        for log in _with_rows(h, night)
    )
    return is_hidden or any(
        verdict is V.TOO_OLD and pair.upstream != night.renamed_service
        for pair, verdict in expected(h, night).items()
    )


def _is_new(h: History, log: Log, event: EventId, night: Judged) -> bool:
    """Return whether no earlier run can have judged an event, so that a further run reads it.

    The last partition may have become empty since an earlier run.
    """
    life = next(each for each in _lives(h, log) if id_of(each) == event)
    earlier = [each for each in h.setting.nights if each.at < night.at]
    return all(life.settled_at >= each.watermark for each in earlier)


def may_tell(h: History, night: Judged) -> bool:
    """Return whether deleted records look lost because of an empty last partition."""
    return any(any(_hidden(h, night, log)) for log in read(h, night))


def _hidden(h: History, night: Judged, log: Log) -> Iterator[EventId]:
    """Yield the events without records that would be missed if the last partition was old."""
    partitions = _partitions(log, night)
    whole = [_complete_since(each) for each in partitions]
    if None not in whole or partitions[-1].first_sent is not None:
        return
    for life in _lives(h, log):
        row = life.at(night.at)
        if row is None or row["status"] is not O.PROCESSED or row["key"] is None:
            continue
        own = whole[partition_of(row["key"].encode(), len(partitions))]
        known = [] if own is None else [own]
        is_there = log.there(id_of(life), night.at)
        if not is_there and _was_sent_since(row, known, night):
            yield id_of(life)


def read(h: History, night: Judged) -> list[Log]:
    """Return the topics that a night reads, perhaps without any rows left.

    They are the topics that outbox rows name now, or named in an earlier night that read topics,
    and those for others.
    """
    topics: Topics | None = h.topics
    if topics is None or not topics.are_read(night.at):
        return []
    nights = [n for n in h.setting.nights if n.at <= night.at and topics.are_read(n.at)]
    named = {name for each in nights for name in (*_named(h, each), *for_others(h, each))}
    return [log for name, log in sorted(topics.logs.items()) if name in named]


def _with_rows(h: History, night: Judged) -> list[Log]:
    """Return the topics with rows among those that a night reads."""
    named = _named(h, night)
    return [log for log in read(h, night) if (log.topic, log.kind) in named]


def _named(h: History, night: Judged) -> set[tuple[str, TxKind]]:
    return {
        (life.columns["topic"], life.kind)
        for life in h.outboxes(night)
        if life.source == life.service != night.renamed_service
    }


def for_others(h: History, night: Judged) -> set[tuple[str, TxKind]]:
    """Return the topics that a night's configuration declares to be for others."""
    setting = h.setting
    topics = {t for name in setting.services for t in setting.others(name, night).topics}
    return {(topic, kind) for topic in topics for kind in TxKind}


def _lives(h: History, log: Log) -> Iterator[Life]:
    for life in h.lives:
        is_here = (life.columns["topic"], life.kind) == (log.topic, log.kind)
        if is_here and life.group is None and life.source == life.service:
            yield life


def _verdict(
    h: History, night: Judged, log: Log, event: EventId, life: Life | None
) -> Verdict | None:
    records = [record for _, _, record in log.there(event, night.at)]
    row = None if life is None else life.at(night.at)
    if row is None:
        return _without_row(night, event[0], records) if records else None
    if records:
        return _with_records(h, night, log, event, row, [record.sent_at for record in records])
    is_lost = row["status"] is O.PROCESSED and _is_lost(log, event, night)
    return V.ABSENT_FROM_TOPIC if is_lost and _is_missed(log, row, night) else None


def _with_records(
    h: History, night: Judged, log: Log, event: EventId, row: dict[str, Any], sent: list[float]
) -> Verdict | None:
    is_quiet = max(_moved_at(row), min(sent)) < night.watermark
    if row["status"] not in _PERHAPS_SENT:
        return V.STATUS_DISAGREES if is_quiet else None
    if is_quiet and _is_inverted(h, night, log, event, row):
        return V.ORDER_INVERTED
    if row["status"] is not O.PROCESSED or row["settled_at"] - min(sent) > night.margin:
        # A further run reads recent records alone, and the row if it was sent before.
        return None
    return V.DUPLICATE_RECORDS if len(sent) > 1 else V.ON_TOPIC


def _without_row(night: Judged, service: str, records: list[Any]) -> Verdict | None:
    """Return the verdict on a record whose row does not exist, and was not purged."""
    sent_at = min(record.sent_at for record in records)
    written = [r.written_at for r in records if isinstance(r.written_at, float | int)]
    horizon = night.horizon(service)
    if not horizon <= sent_at < night.watermark:
        return None
    return V.RECORD_WITHOUT_ROW if min([sent_at, *written]) >= horizon else V.TOO_OLD


def _is_lost(log: Log, event: EventId, night: Judged) -> bool:
    """Return whether the broker has lost the records of an event other than by their age."""
    was_sent = any((r.source, r.event_id) == event for r in log.records)
    made_again = log.recreated_at
    return not was_sent or (made_again is not None and made_again <= night.at)


def _is_missed(log: Log, row: dict[str, Any], night: Judged) -> bool:
    """Return whether the topic would certainly still have the record.

    The present partition is the former one if the topic already had as many partitions. Without a
    key, or before that, all partitions have to be complete.
    """
    partitions = _partitions(log, night)
    whole = [_complete_since(each) for each in partitions]
    known: list[float] = []
    if None not in whole:
        known.append(max(each for each in whole if each is not None))
    if row["key"] is not None:
        since = whole[partition_of(row["key"].encode(), len(partitions))]
        # There are as many since the last of them exists.
        there = partitions[-1].first_sent
        if since is not None and there is not None:
            known.append(max(since, there))
    return _was_sent_since(row, known, night)


def _was_sent_since(row: dict[str, Any], known: list[float], night: Judged) -> bool:
    is_quiet = _moved_at(row) < night.watermark
    margin = night.margin
    return is_quiet and any(
        row["created_at"] >= since + margin or row["settled_at"] >= since + 2 * margin
        for since in known
    )


def _is_inverted(h: History, night: Judged, log: Log, event: EventId, row: dict[str, Any]) -> bool:
    later = h.marks.inverted.get(event)
    has_row = any(id_of(life) == later and life.at(night.at) for life in _lives(h, log))
    if later is None or not has_row or row["status"] is not O.PROCESSED:
        return False
    own, others = log.there(event, night.at), log.there(later, night.at)
    places = {number for number, _, _ in own}
    if len(places) > 1:
        return False
    (number,) = places
    since = _complete_since(_partitions(log, night)[number])
    is_before = any(n == number and offset < own[0][1] for n, offset, _ in others)
    return is_before and since is not None and row["created_at"] >= since + night.margin


def _partitions(log: Log, night: Judged) -> list[Partition]:
    return [partition.without(night.renamed_service) for partition in log.at(night.at)]


def _complete_since(partition: Partition) -> float | None:
    """Return since when it has all its records; None: unknown."""
    return ALWAYS if partition.is_whole else partition.first_sent


def _moved_at(row: dict[str, Any]) -> float:
    times = (row["created_at"], row.get("settled_at"), row.get("lease_until"))
    return max(time for time in times if time is not None)
