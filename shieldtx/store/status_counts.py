"""Sums of grouped counts, each of which may have stopped at a limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeAlias

from sqlalchemy import Row

from shieldtx.domain.states import InboxStatus, Lifecycle, OutboxStatus
from shieldtx.store.statements.status import DELAYED, RETRYING

Rows: TypeAlias = Sequence[Row[*tuple[Any, ...]]]
Part: TypeAlias = tuple[str, ...]
"""A topic and a kind, or a group."""


class Precision(StrEnum):
    """The precision of a count."""

    EXACT = "exact"
    AT_LEAST = "at_least"
    """The count stopped at the limit."""
    ESTIMATED = "estimated"
    """An estimate from the database's statistics."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """A number of rows and its precision."""

    rows: int = 0
    precision: Precision = Precision.EXACT


@dataclass(frozen=True, kw_only=True, slots=True)
class Backlog:
    """The rows of a table, or of a part of it."""

    states: Mapping[str, Count]
    """The counts of all states of the lifecycle."""
    retrying: Count
    """The unsettled rows that wait for the next attempt after a failed attempt."""
    delayed: Count
    """The unsettled rows that wait for a chosen delay."""
    oldest: timedelta | None
    """How long the oldest due row has been waiting; None if no row is due."""


class StatusCounter:
    """Counts by state, of a table and of each of its parts; counting stopped at `limit`."""

    def __init__(
        self,
        lifecycle: Lifecycle[OutboxStatus] | Lifecycle[InboxStatus],
        *,
        limit: int,
        now: datetime,
    ) -> None:
        self.parts: set[Part] = set()
        self.uncertain: set[str] = set()
        """The states and places that may have more rows than were counted."""
        self._states: Sequence[str] = lifecycle.states
        self._settled: Collection[str] = lifecycle.settled
        self._limit = limit
        self._now = now
        self._rows: Counter[tuple[Part, str]] = Counter()
        self._since: dict[Part, datetime] = {}

    def add_open(self, rows: Rows) -> None:
        """Add unsettled rows that were counted together."""
        open_states = set(self._states).difference(self._settled)
        self._note_cut(rows, open_states.union(row.place for row in rows))
        for row in rows:
            part = part_of(row)
            self._rows[part, row.status] += row.rows
            self._rows[part, row.place] += row.rows
            self.note_oldest(row)

    def add_settled(self, rows: Rows, states: Collection[str], *, is_cut: bool = True) -> None:
        """Add the rows of `states` among rows that were counted together, up to one limit.

        `is_cut` is false for a count without a limit.
        """
        if is_cut:
            self._note_cut(rows, states)
        for row in rows:
            part = part_of(row)
            self.parts.add(part)
            if row.status in states:
                self._rows[part, row.status] += row.rows

    def note_oldest(self, row: Row[*tuple[Any, ...]]) -> None:
        """Record since when a part waits."""
        part = part_of(row)
        self.parts.add(part)
        if row.since is not None:
            self._since[part] = min(row.since, self._since.get(part, row.since))

    def backlog(self, part: Part) -> Backlog:
        """Return the counts of one part."""
        return self._backlog([part], {})

    def total(self, estimates: Mapping[str, int]) -> Backlog:
        """Return the counts of all parts; the estimate of an uncertain state if it is higher."""
        return self._backlog(self.parts, estimates)

    def _note_cut(self, rows: Rows, names: Collection[str]) -> None:
        if sum(row.rows for row in rows) >= self._limit:
            self.uncertain.update(names)

    def _backlog(self, parts: Collection[Part], estimates: Mapping[str, int]) -> Backlog:
        def count(name: str) -> Count:
            rows = sum(self._rows[part, name] for part in parts)
            if name not in self.uncertain:
                return Count(rows=rows)
            if estimates.get(name, 0) > rows:
                return Count(rows=estimates[name], precision=Precision.ESTIMATED)
            return Count(rows=rows, precision=Precision.AT_LEAST)

        since = min((self._since[part] for part in parts if part in self._since), default=None)
        return Backlog(
            states={state: count(state) for state in self._states},
            retrying=count(RETRYING),
            delayed=count(DELAYED),
            # The clock was read just before the tables.
            oldest=None if since is None else max(self._now - since, timedelta(0)),
        )


def part_of(row: Row[*tuple[Any, ...]]) -> Part:
    """Return the topic and kind, or the group, of a row."""
    names = ("topic", "tx_kind", "consumer_group")
    return tuple(getattr(row, name) for name in names if name in row._fields)
