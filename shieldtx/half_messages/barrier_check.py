"""The outcomes of local transactions, from the barriers in their own databases."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from uuid import UUID

from shieldtx.domain.reasons import loggable
from shieldtx.domain.states import LocalOutcome
from shieldtx.ports.half_messages import Barrier

log = logging.getLogger(__name__)


def outcomes(barriers: Mapping[UUID, Barrier]) -> dict[UUID, LocalOutcome]:
    """Return each half message's outcome from its barrier; UNKNOWN for an unreachable barrier.

    A local transaction that has not entered can no longer commit.
    """
    return {event_id: _outcome(event_id, barrier) for event_id, barrier in barriers.items()}


def joint(found: Mapping[UUID, LocalOutcome]) -> LocalOutcome:
    """Return the outcome on which all barriers agree; UNKNOWN where they differ."""
    ends = set(found.values())
    return ends.pop() if len(ends) == 1 else LocalOutcome.UNKNOWN


def _outcome(event_id: UUID, barrier: Barrier) -> LocalOutcome:
    try:
        return barrier.outcome_of(event_id)
    except Exception as error:
        log.warning(
            "barrier could not be read",
            exc_info=loggable(error),
            extra={"action": "barrier_unavailable", "event_id": str(event_id)},
        )
        return LocalOutcome.UNKNOWN
