"""Which services have written on the topics of a run.

A service may be taken out of the configuration. Its topics do not concern the runs after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from shieldtx.domain.events import physical_topic
from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import Sent
from shieldtx.reconcile.observed import ObservedTopics
from shieldtx.reconcile.request import ReconcileRequest


def with_writers(
    topics: ObservedTopics, sent: Iterable[Sent], request: ReconcileRequest
) -> ObservedTopics:
    """Return the topics of a run with the services that it and earlier runs have seen write there.

    `topics` has those that have records there; `sent` is what outboxes have rows of, which may be
    purged by the next run.
    """
    writers: dict[str, set[str]] = {
        name: set(topic.writers)
        for name, topic in request.topics_before.topics.items()
        if topic is not None
    }
    for name, service in _written(sent, request):
        writers.setdefault(name, set()).add(service)
    known = {
        name: topic and replace(topic, writers=topic.writers.union(writers.get(name, ())))
        for name, topic in topics.topics.items()
    }
    return replace(topics, topics=known)


def _written(sent: Iterable[Sent], request: ReconcileRequest) -> Iterator[tuple[str, str]]:
    """Yield the broker's name of a topic and a service, by rows and by what is for others."""
    prefix = request.broker.topic_prefix if request.broker else ""
    for each in sent:
        yield physical_topic(prefix, each.topic, each.kind), each.upstream
    for service in request.services:
        for topic in service.others.topics:
            for kind in TxKind:
                yield physical_topic(prefix, topic, kind), service.name
