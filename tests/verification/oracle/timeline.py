"""Rows through time: every state of a row, and its time, so that any night can be restored.

Times are whole minutes since the history began. Nights lie half a minute after a full one, so that
no time lies on a bound. Half a minute is the limit for a machine to write and to read all rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, Lifecycle, OutboxStatus, TxKind

NEVER: Final = math.inf
DAY: Final = 24 * 60

Status = OutboxStatus | InboxStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """The columns of a row from a time on."""

    at: float
    status: Status
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class Life:
    """One row of an outbox or, with a group, of an inbox.

    Columns that end in `_at` or `_until`, and `event_time`, hold minutes.
    """

    service: str
    """The service whose database has the row."""
    source: str
    event_id: UUID
    kind: TxKind
    columns: dict[str, Any]
    group: str | None = None
    versions: list[Version] = field(default_factory=list)
    gone_at: float = NEVER
    """When it was purged, or lost."""

    @property
    def lifecycle(self) -> Lifecycle[Any]:
        """Return the lifecycle of the row."""
        return OUTBOX if self.group is None else INBOX

    @property
    def status(self) -> Status | None:
        """Return its last state; None: it does not exist yet."""
        return self.versions[-1].status if self.versions else None

    @property
    def born_at(self) -> float:
        """Return when it was written."""
        return self.versions[0].at

    @property
    def settled_at(self) -> float:
        """Return when it settled finally; NEVER if it is still open."""
        settlements = (v.changes["settled_at"] for v in self.versions if "settled_at" in v.changes)
        *_, last = settlements
        return NEVER if last is None else float(last)

    def becomes(self, status: Status, at: float, **changes: Any) -> None:
        """Take one arrow of the lifecycle."""
        assert self.lifecycle.allows(self.status, status), f"{self.status} cannot become {status}"
        self.is_said_to_be(status, at, **changes)

    def is_said_to_be(self, status: Status, at: float, **changes: Any) -> None:
        """Change the status as only SQL or a defect can."""
        assert not self.versions or at >= self.versions[-1].at, "time goes on"
        settles = at if status in self.lifecycle.settled else None
        moved = {"settled_at": settles, "lease_until": None} | changes
        self.versions.append(Version(at=at, status=status, changes=moved))

    def changes_by_hand(self, at: float, **changes: Any) -> None:
        """Alter columns alone, by which the row does not move."""
        assert self.versions
        assert at >= self.versions[-1].at, "time goes on"
        self.versions.append(Version(at=at, status=self.versions[-1].status, changes=changes))

    def compensates(self, event_id: UUID) -> bool:
        """Return whether it is the rollback by which an event was compensated."""
        return any(v.changes.get("compensated_id") == event_id for v in self.versions)

    def at(self, night: float) -> dict[str, Any] | None:
        """Return its columns at that time; None if it does not exist."""
        if night >= self.gone_at or not self.versions or night < self.born_at:
            return None
        row: dict[str, Any] = {"attempts": 0, **self.columns}
        for version in self.versions:
            if version.at <= night:
                row |= {"status": version.status, **version.changes}
        return row


@dataclass(frozen=True, kw_only=True, slots=True)
class Restore:
    """Which database was restored, when, and to which moment."""

    service: str
    at: float
    to: float
    is_seen: bool
    """Whether the server has another timeline since."""
