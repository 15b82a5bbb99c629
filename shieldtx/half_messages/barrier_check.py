"""How local transactions ended, by the barriers in their own databases."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from uuid import UUID

from shieldtx.domain.reasons import loggable
from shieldtx.domain.states import LocalOutcome
from shieldtx.ports.half_messages import Barrier

log = logging.getLogger(__name__)


def outcomes(barriers: Mapping[UUID, Barrier]) -> dict[UUID, LocalOutcome]:
    """Ask the barrier of each half message; a barrier that cannot be reached knows nothing.

    A local transaction that has not come can commit no more.
    """
    return {event_id: _outcome(event_id, barrier) for event_id, barrier in barriers.items()}


def joint(found: Mapping[UUID, LocalOutcome]) -> LocalOutcome:
    """Return what all barriers agree on, UNKNOWN where they do not."""
    ends = set(found.values())
    return ends.pop() if len(ends) == 1 else LocalOutcome.UNKNOWN


def _outcome(event_id: UUID, barrier: Barrier) -> LocalOutcome:
    try:
        return barrier.ask(event_id)
    except Exception as error:
        log.warning(
            "barrier could not be read",
            exc_info=loggable(error),
            extra={"action": "barrier_unavailable", "event_id": str(event_id)},
        )
        return LocalOutcome.UNKNOWN
