"""Values that identify a database, and that show whether it still has its earlier rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenRow:
    """The row with the highest number among the open rows of a table."""

    event_id: UUID
    seq: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SettledRow:
    """The row of a table that was settled last."""

    event_id: UUID
    settled_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabaseHistory:
    """The identity of a database, and its latest rows, at one moment."""

    system: str | None
    """The identifier of the server, also of its physical copies; None: the account may not read
    it."""
    timeline: str
    """Of the server's write-ahead log: each promotion, and each recovery to a point in time, begins
    a new one."""
    objects: tuple[int, int, int]
    """The object ids of the database, its outbox and its inbox: they differ when one of them was
    recreated, as by pg_restore."""
    newest: tuple[UUID | None, UUID | None]
    """The youngest event in the outbox and in the inbox; None: the table was empty. A database
    restored from an earlier copy lacks this event, even if everything else is the same."""
    latest_open: tuple[OpenRow | None, OpenRow | None] = (None, None)
    """Of outbox and inbox; None: no row was open."""
    latest_settled: tuple[SettledRow | None, SettledRow | None] = (None, None)
    """Of outbox and inbox; None: no row was settled."""
    asked_at: datetime | None = field(default=None, compare=False)
    """The moment, by the database's clock; None: an earlier release did not record it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LostRow:
    """A row that a database had, and that is now missing or changed."""

    table: str
    """`outbox` or `inbox`."""
    what: str
    """Which row it was."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remains:
    """What a database still has of its rows at an earlier moment."""

    has_settlement: bool = False
    """Whether it still has, unchanged, a row that was the last one settled at that moment."""
    copied_before: datetime | None = None
    """A row is missing that no purge has removed: the database was restored from a copy made before
    this time. None: no such row is missing."""
