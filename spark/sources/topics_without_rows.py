"""The topics that a run reads though no outbox has a row of them.

All rows of a topic may be lost. Then its records are the only trace of their events.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from shieldtx.brokers.kafka.topic_offsets import TopicOffsetReader
from shieldtx.domain.events import physical_topic
from shieldtx.domain.states import TxKind
from shieldtx.errors import BrokerError, BrokerUnavailable
from shieldtx.reconcile.request import ReconcileRequest

from .kafka_data_source import Log

_IS_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""What Kafka takes for the name of a topic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicsWithoutRows:
    """What the broker has of them."""

    logs: tuple[Log, ...] = ()
    """Those that exist."""
    gone: frozenset[str] = frozenset()
    """Names of those that an earlier run has read and that do not exist any more."""
    obstacles: tuple[str, ...] = ()


def topics_without_rows(
    asked: TopicOffsetReader,
    request: ReconcileRequest,
    *,
    with_rows: Collection[str],
    cluster: str | None,
) -> TopicsWithoutRows:
    """Find the topics that earlier runs have read, and those of `for_others`.

    `with_rows`: the broker's names of the topics that outboxes have rows of. `cluster`: the id of
    the one that is asked; in another one than that of earlier runs, no topic is missed.

    Raises BrokerUnavailable.
    """
    before = request.topics_before
    is_same = cluster is None or before.cluster in {None, cluster}
    logs: list[Log] = []
    gone: set[str] = set()
    obstacles: list[str] = []
    for log in _of_earlier_runs(request):
        if log.name in with_rows:
            continue
        try:
            is_there = asked.has(log.name)
        except BrokerUnavailable:
            raise
        except BrokerError as error:
            obstacles.append(
                f"topic {log.name}, which an earlier run has read, could not be read: {error}. If "
                "it was deleted, let the account describe it, so that the next run sees that"
            )
            continue
        if is_there:
            logs.append(log)
            continue
        gone.add(log.name)
        if is_same:
            obstacles.append(
                f"topic {log.name}, which an earlier run has read, does not exist any more, and no "
                "outbox has a row of it: whether events of it were lost could not be judged. If "
                "it was deleted on purpose, nothing is to be done: the next run does not look for "
                "it"
            )
    known = {*with_rows, *before.topics}
    logs += [log for log in _for_others(request) if log.name not in known and _has(asked, log)]
    return TopicsWithoutRows(logs=tuple(logs), gone=frozenset(gone), obstacles=tuple(obstacles))


def _of_earlier_runs(request: ReconcileRequest) -> Iterator[Log]:
    assert request.broker is not None  # noqa: S101  otherwise no topics are read
    prefix = request.broker.topic_prefix
    for name, before in sorted(request.topics_before.topics.items()):
        for kind in TxKind:
            topic = name.removeprefix(prefix).removesuffix(f".{kind.lower()}")
            if before is not None and physical_topic(prefix, topic, kind) == name:
                yield Log(topic=topic, kind=kind.value, name=name)


def _for_others(request: ReconcileRequest) -> Iterator[Log]:
    """Give the topics of `for_others`: each of its names may be that of a topic, or of a type."""
    assert request.broker is not None  # noqa: S101  as above
    prefix = request.broker.topic_prefix
    topics = {topic for service in request.services for topic in service.others.topics}
    for topic in sorted(topics):
        for kind in TxKind:
            yield Log(topic=topic, kind=kind.value, name=physical_topic(prefix, topic, kind))


def _has(asked: TopicOffsetReader, log: Log) -> bool:
    """Whether there is such a topic; a broker may refuse to say so of a name that no topic has."""
    if not _IS_NAME.fullmatch(log.name):
        return False
    try:
        return asked.has(log.name)
    except BrokerUnavailable:
        raise
    except BrokerError:
        return False
