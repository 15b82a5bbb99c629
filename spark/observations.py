"""The observations that are stored with a run, and their comparison with the earlier run's."""

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
    """Return the current topics of the earlier run, and why its watermarks cannot be used.

    This check precedes the reads of rows. A type that a group first receives after the check is not
    stored with the run, so the next run judges all events.
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
    """Return the observations that the next run must find again to rely on this run.

    `clocks` were read before any row; `earlier_topics` is the result of `differs`.
    """
    return Observed(
        received=_received(request, found),
        former_since=_former_since(request, clocks),
        topics=with_writers(
            _topics(earlier_topics, found.topic_comparison.observed),
            found.topic_comparison.sent,
            request,
        ),
    )


def _received(request: ReconcileRequest, found: Judged) -> tuple[Received, ...]:
    """Return the receipts of groups, from their inboxes and from earlier runs.

    Includes receipts that define no expectation: a configured name is not mistyped if a group has
    ever received such events.
    """
    names = {service.name for service in request.services}
    seen = {*found.received, *request.past.received}
    return tuple(sorted((each for each in seen if each.source in names), key=repr))


def _former_since(request: ReconcileRequest, clocks: Mapping[str, Clock]) -> FormerSince:
    """Return since when groups are former ones; now, if no earlier run knew that."""
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
    """Return the topics for the next run; topics in `before` keep that state."""
    held = {
        name: replace(asked, writers=topic.writers if topic else asked.writers)
        for name, topic in read.topics.items()
        if (asked := before.topics.get(name)) is not None
    }
    return ObservedTopics(cluster=before.cluster or read.cluster, topics={**read.topics, **held})
