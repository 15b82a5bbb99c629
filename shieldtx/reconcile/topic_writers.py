"""The services that have written on the topics of a run.

A topic does not concern later runs once its service is removed from the configuration.
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
    """Return the topics of a run, with the services that this run and earlier ones saw as writers.

    `topics` has the services with records on each topic. `sent` has the rows in the outboxes, which
    may be purged before the next run.
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
    """Yield the broker's name of a topic and a service, from rows and from `for_others`."""
    prefix = request.broker.topic_prefix if request.broker else ""
    for each in sent:
        yield physical_topic(prefix, each.topic, each.kind), each.upstream
    for service in request.services:
        for topic in service.others.topics:
            for kind in TxKind:
                yield physical_topic(prefix, topic, kind), service.name
