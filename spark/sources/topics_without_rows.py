"""The topics that a run reads although no outbox has a row of them.

All rows of a topic may be lost. Then its records are the only trace of their events. A topic
without records of the run's services is not read: it has none of their events.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shieldtx.brokers.kafka.topic_offsets import TopicOffsetReader
from shieldtx.domain.events import physical_topic
from shieldtx.domain.states import TxKind
from shieldtx.errors import BrokerError, BrokerUnavailable
from shieldtx.reconcile.observed import ObservedTopics
from shieldtx.reconcile.request import ReconcileRequest

from .kafka_data_source import Log

_IS_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""The names that Kafka accepts for a topic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicsWithoutRows:
    """The state of such topics at the broker."""

    logs: tuple[Log, ...] = ()
    """The topics that exist."""
    gone: frozenset[str] = frozenset()
    """Names of topics that an earlier run has read and that do not exist any more."""
    obstacles: tuple[str, ...] = ()


def topics_without_rows(
    asked: TopicOffsetReader,
    request: ReconcileRequest,
    *,
    with_rows: Collection[str],
    cluster: str | None,
) -> TopicsWithoutRows:
    """Return the topics that earlier runs have read, and those of `for_others`.

    `with_rows` has the broker's names of the topics of outbox rows. `cluster` is the id of the
    current cluster; in another cluster than that of earlier runs, no topic is missing.

    Raises BrokerUnavailable.
    """
    before = request.topics_before.of_services({service.name for service in request.services})
    read_before = [log for log in _of_earlier_runs(request, before) if log.name not in with_rows]
    known = {*with_rows, *before.topics}
    for_others = [log for log in _for_others(request) if log.name not in known]
    logs = [*read_before, *for_others]
    answers = _answers(asked, [log.name for log in logs])
    is_same = cluster is None or before.cluster in {None, cluster}
    return TopicsWithoutRows(
        logs=tuple(log for log in logs if answers[log.name] is True),
        gone=frozenset(log.name for log in read_before if answers[log.name] is False),
        # A broker may refuse a query for a name for others, which need not be a topic.
        obstacles=tuple(_obstacles(read_before, answers, is_same_cluster=is_same)),
    )


_Answers = Mapping[str, bool | BrokerError]
"""By the broker's name of a topic: whether it exists, or the error of the broker."""


def _answers(asked: TopicOffsetReader, names: Sequence[str]) -> _Answers:
    """Query all topics at once; one by one if the broker refuses, which it does for all together.

    Raises BrokerUnavailable.
    """
    try:
        existing = asked.existing(names)
    except BrokerUnavailable:
        raise
    except BrokerError:
        return {name: _answer(asked, name) for name in names}
    return {name: name in existing for name in names}


def _answer(asked: TopicOffsetReader, name: str) -> bool | BrokerError:
    try:
        return name in asked.existing([name])
    except BrokerUnavailable:
        raise
    except BrokerError as error:
        return error


def _obstacles(logs: Iterable[Log], answers: _Answers, *, is_same_cluster: bool) -> Iterator[str]:
    """Yield sentences for topics that earlier runs have read and that could not be judged."""
    for log in logs:
        answer = answers[log.name]
        if isinstance(answer, BrokerError):
            yield (
                f"topic {log.name}, which an earlier run has read, could not be read: {answer}. If "
                "it was deleted, let the account describe it, so that the next run sees that"
            )
        elif not answer and is_same_cluster:
            yield (
                f"topic {log.name}, which an earlier run has read, does not exist any more, and no "
                "outbox has a row of it: whether events of it were lost could not be judged. If "
                "it was deleted on purpose, nothing is to be done: the next run does not look for "
                "it"
            )


def _of_earlier_runs(request: ReconcileRequest, earlier: ObservedTopics) -> Iterator[Log]:
    assert request.broker is not None  # noqa: S101  otherwise no topics are read
    prefix = request.broker.topic_prefix
    for name, before in sorted(earlier.topics.items()):
        for kind in TxKind:
            topic = name.removeprefix(prefix).removesuffix(f".{kind.lower()}")
            if before is not None and physical_topic(prefix, topic, kind) == name:
                yield Log(topic=topic, kind=kind.value, name=name)


def _for_others(request: ReconcileRequest) -> Iterator[Log]:
    """Yield the topics of `for_others`: each of its names may be a topic or a type."""
    assert request.broker is not None  # noqa: S101  as above
    prefix = request.broker.topic_prefix
    topics = {topic for service in request.services for topic in service.others.topics}
    for topic in sorted(topics):
        for kind in TxKind:
            name = physical_topic(prefix, topic, kind)
            if _IS_NAME.fullmatch(name):
                yield Log(topic=topic, kind=kind.value, name=name)
