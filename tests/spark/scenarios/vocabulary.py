"""Short names for scenarios, and the event without any problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shieldtx.domain.states import InboxStatus, OutboxStatus
from shieldtx.reconcile.verdicts import Verdict
from tests.spark.world import GROUPS, SENT_BY, Group, Planted, World

O, I, V = OutboxStatus, InboxStatus, Verdict  # noqa: E741  short, for what is planted
TYPES = tuple(type_ for types in SENT_BY.values() for type_ in types)
OPEN = (O.INIT, O.PROCESSING, O.HALF)
HOUR = 60
"""Minutes; ages are in minutes."""

Scenario = Callable[[World], Any]


def some(w: World) -> tuple[str, Group]:
    """Choose an event type and one of the groups that should receive it."""
    return w.random.choice([(t, group) for t in TYPES for group in GROUPS if t in group.types])


def effect(w: World) -> Planted:
    """Plant an event without any problem."""
    event = w.event(w.random.choice(TYPES))
    w.rest(event)
    return event
