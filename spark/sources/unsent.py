"""Outbox rows that are not sent, and by which no group is judged: of operators, or stuck."""

from __future__ import annotations

from typing import Final

from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.reconcile.window import Clock, window_of

from . import incremental
from .jdbc import Databases
from .moved_at import UPSTREAM_MOVED_AT
from .row_filters import LATEST, listed, literal_time

IS_LISTED: Final = "o.last_error IS NOT NULL"
"""Whether `shieldtx dead list` has a row that waits for an operator."""

Stuck = tuple[str, str]
"""A condition, and what to say of the rows for which it is true."""


def waits_for_operator(databases: Databases, service: ServiceDatabase, *statuses: str) -> str:
    """Say in SQL that a row has one of these statuses, and that the run has to look at it."""
    read = incremental.read_of_outbox(databases.request.selection, service.name)
    is_settled = f"(o.settled_at IS NOT NULL AND o.status IN ({listed(statuses)}))"
    return f"({read.condition} OR {incremental.OF_OPERATORS_IN_OUTBOX}) AND {is_settled}"


def what_to_do(*, is_listed: bool) -> str:
    """Say what an operator does with such rows."""
    if is_listed:
        return "see `shieldtx dead list` of that service"
    return (
        "they have no last_error, by which `shieldtx dead list` finds them: set it, or settle them"
    )


def stuck(databases: Databases, clock: Clock) -> Stuck | None:
    """Say in SQL that nothing has moved a row since the watermark; None: there is no watermark.

    Such a row is neither claimed nor held back by another one: see `UPSTREAM_MOVED_AT`.
    """
    watermark = window_of([clock], margin=databases.request.margin).watermark
    if watermark is None:
        return None
    is_open = " OR ".join(incremental.OPEN_IN_OUTBOX)
    lately = literal_time(databases.lately)
    moved = UPSTREAM_MOVED_AT.replace("{latest}", LATEST).replace("{lately}", lately)
    since = f"{watermark:%Y-%m-%d %H:%M:%S%z}"
    return (
        f"({is_open}) AND {moved} < {literal_time(watermark)}",
        (
            f"and nothing has moved them since before {since}: see whether the relays of that "
            "service run and keep up"
        ),
    )
