"""The filters of an operator on dead letters, given-up events and parked records."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Table

from shieldtx.domain.states import TxKind
from shieldtx.store.dialects import Dialect
from shieldtx.store.tables import Tables


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFilter:
    """What the rows have in common; None: any."""

    event_type: str | None = None
    kind: TxKind | None = None
    key: str | None = None
    biz_key: str | None = None
    error: str | None = None
    """A part of the reason."""
    since: datetime | None = None
    """The earliest time at which the row was settled or parked."""


def events(table: Table, d: Dialect, rows: RowFilter) -> list[ColumnElement[bool]]:
    """Return the conditions of a filter on rows of the outbox or the inbox."""
    c = table.c
    found: list[ColumnElement[bool]] = []
    kind = None if rows.kind is None else rows.kind.value
    for column, wanted in (
        (c.event_type, rows.event_type),
        (c.tx_kind, kind),
        (c.key, rows.key),
        (c.biz_key, rows.biz_key),
    ):
        if wanted is not None:
            found.append(column == wanted)
    return found + _general(c.last_error, c.settled_at, d, rows)


def records(t: Tables, d: Dialect, rows: RowFilter) -> list[ColumnElement[bool]]:
    """Return the conditions of a filter on parked records, whose headers have type and kind."""
    c = t.parked.c
    kind = None if rows.kind is None else rows.kind.value
    found: list[ColumnElement[bool]] = []
    for header, wanted in (
        ("ce_type", rows.event_type),
        ("ce_txkind", kind),
        ("ce_bizkey", rows.biz_key),
    ):
        if wanted is not None:
            found.append(d.position_of(c.record_headers, _header(header, wanted)) > 0)
    if rows.key is not None:
        found.append(c.record_key == _bytes(rows.key))
    return found + _general(c.reason, c.parked_at, d, rows)


def _general(
    reason: ColumnElement[Any], at: ColumnElement[Any], d: Dialect, rows: RowFilter
) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if rows.error is not None:
        found.append(d.position_of(reason, rows.error) > 0)
    if rows.since is not None:
        found.append(at >= rows.since)
    return found


def _header(name: str, value: str) -> str:
    """Return a header as `shield_parked` keeps it: its name, and its value in base64."""
    return f'["{name}", "{base64.b64encode(_bytes(value)).decode()}"]'


def _bytes(text: str) -> bytes:
    """Return the bytes of an argument of the command line, also those that are not UTF-8."""
    return text.encode(errors="surrogateescape")
