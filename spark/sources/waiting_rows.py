"""Rows by which no group is judged, and that wait for an operator or are stuck."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Row

from shieldtx.reconcile.request import Selection, ServiceDatabase
from shieldtx.reconcile.window import Clock, window_of

from . import incremental
from .jdbc import Databases
from .moved_at import DOWNSTREAM_MOVED_AT, UPSTREAM_MOVED_AT
from .row_filters import LATEST, Read, listed, literal_time


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the two tables of a service; the SQL conditions are on its row."""

    row: str
    """The name of the row in the conditions."""
    read: Callable[[Selection, str], Read]
    """The selected rows of a run."""
    of_operators: str
    """Rows that wait for an operator and have an error, as in their index."""
    is_settled: str
    """Rows that may wait for an operator, with or without an error; as in an index if there is one.
    """
    open_: str
    """Open rows, as in an index if there is one."""
    moved_at: str
    """The time of the row's latest change, past or due."""
    workers: str
    """The processes that handle the rows."""


OUTBOX: Final = Side(
    row="o",
    read=incremental.read_of_outbox,
    of_operators=incremental.OF_OPERATORS_IN_OUTBOX,
    is_settled="o.settled_at IS NOT NULL",
    open_=" OR ".join(incremental.OPEN_IN_OUTBOX),
    moved_at=UPSTREAM_MOVED_AT,
    workers="relays",
)
INBOX: Final = Side(
    row="i",
    read=incremental.read_of_inbox,
    of_operators=incremental.OF_OPERATORS_IN_INBOX,
    # Each of the two has an index: without the error, events (COMMIT) would need a full scan.
    is_settled="i.settled_at IS NOT NULL"
    " AND (i.tx_kind = 'ROLLBACK' OR (i.last_error IS NOT NULL AND i.awaits_operator))",
    open_=" OR ".join(incremental.OPEN_IN_INBOX),
    moved_at=DOWNSTREAM_MOVED_AT,
    workers="consumers",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """The rows of a table to count, and their description."""

    side: Side
    counted: str
    """A statement that returns `status`, `is_listed`, a count, and the columns for `described`; it
    contains `{condition}` and `{is_listed}`."""
    values: Mapping[str, str]
    """The other values in braces in the statement."""
    statuses: tuple[str, ...]
    """The statuses in which a row waits for an operator."""
    described: Callable[[Row[*tuple[Any, ...]]], str]
    """Returns the number and the description of the rows."""
    consequence: str = ""
    """The consequence of rows that wait for an operator."""


def waiting_rows(
    databases: Databases,
    clocks: Mapping[str, Clock],
    counted_of: Callable[[ServiceDatabase], Waiting | None],
) -> Iterator[str]:
    """Yield sentences for rows that wait for an operator, and for rows that are stuck.

    `counted_of` returns the rows of a service to count; None: none.
    """
    for service in databases.services:
        if (waiting := counted_of(service)) is not None:
            yield from _of_service(databases, service, clocks[service.name], waiting)


def _of_service(
    databases: Databases, service: ServiceDatabase, clock: Clock, waiting: Waiting
) -> Iterator[str]:
    side = waiting.side

    def counted(condition: str) -> Iterator[Row[*tuple[Any, ...]]]:
        statement = waiting.counted.replace("{condition}", condition)
        # Whether `shieldtx dead list` shows a row that waits for an operator.
        statement = statement.replace("{is_listed}", f"{side.row}.last_error IS NOT NULL")
        yield from databases.rows(service, statement, **waiting.values)

    for row in counted(_waits_for_operator(databases, service, waiting)):
        what_to_do = _what_to_do(service, is_listed=row.is_listed)
        yield (
            f"{waiting.described(row)} are {row.status} and wait for an operator"
            f"{waiting.consequence}: {what_to_do}"
        )
    watermark = window_of([clock], margin=databases.request.margin).watermark
    if watermark is not None:
        for row in counted(_has_not_moved_since(databases, side, literal_time(watermark))):
            yield (
                f"{waiting.described(row)} are {row.status}, and nothing has moved them since "
                f"before {watermark:%Y-%m-%d %H:%M:%S%z}: see whether the {side.workers} of "
                f"{service.name} run and keep up"
            )


def _waits_for_operator(databases: Databases, service: ServiceDatabase, waiting: Waiting) -> str:
    """Return an SQL condition for rows with one of these statuses that the run must report."""
    side = waiting.side
    read = side.read(databases.request.selection, service.name)
    has_status = f"{side.row}.status IN ({listed(waiting.statuses)})"
    return f"({read.condition} OR {side.of_operators}) AND {side.is_settled} AND {has_status}"


def _has_not_moved_since(databases: Databases, side: Side, watermark: str) -> str:
    """Return an SQL condition: an open row has not changed since the watermark."""
    lately = literal_time(databases.lately)
    moved = side.moved_at.replace("{latest}", LATEST).replace("{lately}", lately)
    return f"({side.open_}) AND {moved} < {watermark}"


def _what_to_do(service: ServiceDatabase, *, is_listed: bool) -> str:
    if is_listed:
        return f"see `shieldtx dead list` of {service.name}"
    return (
        "they have no last_error, by which `shieldtx dead list` finds them: set it, or settle them"
    )
