"""What a run is stored with of what it met, and whether that is what the earlier run met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shieldtx.reconcile.expectations import Received
from shieldtx.reconcile.observed import (
    FormerSince,
    Observed,
    ObservedTopics,
    decisive,
    received_first,
    remembered,
)
from shieldtx.reconcile.request import ReconcileRequest
from shieldtx.reconcile.topic_writers import with_writers
from shieldtx.reconcile.window import Clock

from .compare.read_plan import Plan
from .judging import Judged
from .sources import topics
from .sources.jdbc import Databases


def differs(databases: Databases, plan: Plan) -> tuple[ObservedTopics, tuple[str, ...]]:
    """Return how the topics of the earlier run are now, and why its watermarks are of no use.

    This comes before the reads of rows. A type that a group receives for the first time after it
    is not among what the run is stored with, so the next run looks at everything.
    """
    request = databases.request
    if request.observed is None:
        return ObservedTopics(), ()
    members = request.members
    now = decisive(members, [*plan.past, *remembered(members, request.past)])
    topics_now, why = topics.observed_again(request)
    return topics_now, (*received_first(request.observed, now), *why)


def observed_in(
    request: ReconcileRequest,
    found: Judged,
    clocks: Mapping[str, Clock],
    earlier_topics: ObservedTopics,
) -> Observed:
    """Return what the next run has to meet as well, so that it may trust this one.

    `clocks` are those from before anything was read; `earlier_topics`, as `differs` returned them.
    """
    return Observed(
        received=_received(request, found),
        former_since=_former_since(request, clocks),
        topics=with_writers(
            _topics(earlier_topics, found.beside.observed), found.beside.sent, request
        ),
    )


def _received(request: ReconcileRequest, found: Judged) -> tuple[Received, ...]:
    """Return what groups have received, by their inboxes and by what earlier runs have seen.

    All of it, and not only what says who should receive what: a name in the configuration is no
    mistyped one where a group has received such events ever.
    """
    names = {service.name for service in request.services}
    seen = {*found.received, *request.past.received}
    return tuple(sorted((each for each in seen if each.source in names), key=repr))


def _former_since(request: ReconcileRequest, clocks: Mapping[str, Clock]) -> FormerSince:
    """Return since when groups are former ones; of those that no earlier run knew for such, now."""
    known = request.past.former_since
    return {
        service.name: {
            str(former): known.get(service.name, {}).get(str(former), clocks[service.name].now)
            for former in service.former_groups
        }
        for service in request.services
        if service.former_groups
    }


def _topics(before: ObservedTopics, read: ObservedTopics) -> ObservedTopics:
    """Return the topics that the next run has to meet: those held against the last run, if any."""
    held = {
        name: replace(asked, writers=topic.writers if topic else asked.writers)
        for name, topic in read.topics.items()
        if (asked := before.topics.get(name)) is not None
    }
    return ObservedTopics(cluster=before.cluster or read.cluster, topics={**read.topics, **held})
