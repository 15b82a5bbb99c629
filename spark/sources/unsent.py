"""Outbox rows that are not sent, and by which no group is judged: of operators, or stuck."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Row

from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.reconcile.window import Clock, window_of

from . import incremental
from .jdbc import Databases
from .moved_at import UPSTREAM_MOVED_AT
from .row_filters import LATEST, listed, literal_time

_IS_LISTED: Final = "o.last_error IS NOT NULL"
"""Whether `shieldtx dead list` has a row that waits for an operator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unsent:
    """Which rows of an outbox to count, and what to say of them."""

    counted: str
    """A statement that gives `status`, `is_listed`, a count, and what `described` asks for; it has
    `{condition}` and `{is_listed}` in it."""
    values: Mapping[str, str]
    """What else the statement has in braces."""
    statuses: tuple[str, ...]
    """In which a row waits for an operator."""
    described: Callable[[Row[*tuple[Any, ...]]], str]
    """Says how many rows there are, and of what."""
    consequence: str = ""
    """What comes of it that they wait for an operator."""


def unsent_rows(
    databases: Databases, service: ServiceDatabase, clock: Clock, unsent: Unsent
) -> Iterator[str]:
    """Say in sentences which rows wait for an operator, and which ones no relay has moved."""

    def counted(condition: str) -> Iterator[Row[*tuple[Any, ...]]]:
        statement = unsent.counted.replace("{condition}", condition)
        statement = statement.replace("{is_listed}", _IS_LISTED)
        yield from databases.rows(service, statement, **unsent.values)

    for row in counted(_waits_for_operator(databases, service, unsent.statuses)):
        what_to_do = _what_to_do(is_listed=row.is_listed)
        yield (
            f"{unsent.described(row)} are {row.status} and wait for an operator"
            f"{unsent.consequence}: {what_to_do}"
        )
    watermark = window_of([clock], margin=databases.request.margin).watermark
    if watermark is not None:
        is_stuck = _has_not_moved_since(databases, literal_time(watermark))
        for row in counted(is_stuck):
            yield (
                f"{unsent.described(row)} are {row.status}, and nothing has moved them since "
                f"before {watermark:%Y-%m-%d %H:%M:%S%z}: see whether the relays of that service "
                "run and keep up"
            )


def _waits_for_operator(
    databases: Databases, service: ServiceDatabase, statuses: tuple[str, ...]
) -> str:
    """Say in SQL that a row has one of these statuses, and that the run has to look at it."""
    read = incremental.read_of_outbox(databases.request.selection, service.name)
    is_settled = f"(o.settled_at IS NOT NULL AND o.status IN ({listed(statuses)}))"
    return f"({read.condition} OR {incremental.OF_OPERATORS_IN_OUTBOX}) AND {is_settled}"


def _has_not_moved_since(databases: Databases, watermark: str) -> str:
    """Say in SQL that an open row has not moved since the watermark.

    Such a row is neither claimed nor held back by another one: see `UPSTREAM_MOVED_AT`.
    """
    is_open = " OR ".join(incremental.OPEN_IN_OUTBOX)
    lately = literal_time(databases.lately)
    moved = UPSTREAM_MOVED_AT.replace("{latest}", LATEST).replace("{lately}", lately)
    return f"({is_open}) AND {moved} < {watermark}"


def _what_to_do(*, is_listed: bool) -> str:
    if is_listed:
        return "see `shieldtx dead list` of that service"
    return (
        "they have no last_error, by which `shieldtx dead list` finds them: set it, or settle them"
    )
