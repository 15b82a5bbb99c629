"""The topics that the stored runs of a configuration have read."""

from __future__ import annotations

from collections.abc import Iterable

from shieldtx.reconcile.basis import Basis
from shieldtx.reconcile.observed import ObservedTopics


def topics_before(earlier: Iterable[Basis | None], now: Basis) -> ObservedTopics:
    """Return the topics that the latest run has read; `earlier` begins with the latest.

    Each run is stored with the topics that it read, and with topics of earlier runs that the broker
    did not let it read. So the latest run is enough. A run does not count if its topics have
    another prefix, or if none of its services takes part now.
    """
    if now.topics is None:
        return ObservedTopics()
    _, prefix = now.topics
    for basis in earlier:
        if basis is None or basis.observed is None or basis.topics is None:
            continue
        is_alike = basis.topics[1] == prefix and basis.services.keys() & now.services.keys()
        if is_alike and basis.observed.topics.topics:
            return basis.observed.topics
    return ObservedTopics()
