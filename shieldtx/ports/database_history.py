"""By what a database is known again, and whether it still has what it had."""

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
    """Which database it was, and what its latest rows were, at one moment."""

    system: str | None
    """The server's, which a physical copy shares; None: the account may not ask for it."""
    timeline: str
    """Of the server's write-ahead log: a new one begins with each promotion and each recovery to a
    point in time."""
    objects: tuple[int, int, int]
    """The object ids of the database, its outbox and its inbox: others when one of them was made
    anew, as by pg_restore."""
    newest: tuple[UUID | None, UUID | None]
    """The youngest event in the outbox and in the inbox; None where there was none. What was
    restored from an earlier copy lacks it, even where everything else is the same."""
    latest_open: tuple[OpenRow | None, OpenRow | None] = (None, None)
    """Of outbox and inbox; None where no row was open."""
    latest_settled: tuple[SettledRow | None, SettledRow | None] = (None, None)
    """Of outbox and inbox; None where no row was settled."""
    asked_at: datetime | None = field(default=None, compare=False)
    """The moment, by the database's clock; None: of an earlier release, which did not note it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LostRow:
    """A row that a database had, and does not have as it was."""

    table: str
    """`outbox` or `inbox`."""
    what: str
    """Which row it was."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remains:
    """What a database has left of what it had at an earlier moment."""

    has_settlement: bool = False
    """Whether it still has a row that was the last one to be settled then, as it was."""
    copied_before: datetime | None = None
    """It lacks a row of then that no purge has removed, so that it was restored from a copy of
    before that time; None: nothing says so."""
