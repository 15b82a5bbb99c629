"""Rows through time: every state a row has been in, and when; so a night can be set up at will.

Times are whole minutes since the history began. Nights lie half a minute behind a full one, so that
no time lies on a bound, and half a minute is what a machine may take to write and to read it all.
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
    """How a row stands from a time on."""

    at: float
    status: Status
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class Life:
    """One row of an outbox or, with a group, of an inbox.

    Columns that end in `_at` or `_until`, and `event_time`, hold minutes.
    """

    service: str
    """In whose database it is."""
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
        """The states that it may be in."""
        return OUTBOX if self.group is None else INBOX

    @property
    def status(self) -> Status | None:
        """The state that it is in at last; None: it is not there yet."""
        return self.versions[-1].status if self.versions else None

    @property
    def born_at(self) -> float:
        """When it was written."""
        return self.versions[0].at

    @property
    def settled_at(self) -> float:
        """When it came to rest for good; NEVER where it is open at last."""
        settlements = (v.changes["settled_at"] for v in self.versions if "settled_at" in v.changes)
        *_, last = settlements
        return NEVER if last is None else float(last)

    def becomes(self, status: Status, at: float, **changes: Any) -> None:
        """Take one arrow of the lifecycle."""
        assert self.lifecycle.allows(self.status, status), f"{self.status} cannot become {status}"
        self.is_said_to_be(status, at, **changes)

    def is_said_to_be(self, status: Status, at: float, **changes: Any) -> None:
        """Change it as nothing but a hand or a defect can."""
        assert not self.versions or at >= self.versions[-1].at, "time goes on"
        settles = at if status in self.lifecycle.settled else None
        moved = {"settled_at": settles, "lease_until": None} | changes
        self.versions.append(Version(at=at, status=status, changes=moved))

    def changes_by_hand(self, at: float, **changes: Any) -> None:
        """Alter columns alone: the row does not move by that."""
        assert self.versions
        assert at >= self.versions[-1].at, "time goes on"
        self.versions.append(Version(at=at, status=self.versions[-1].status, changes=changes))

    def compensates(self, event_id: UUID) -> bool:
        """Whether it is the rollback by which an event was compensated."""
        return any(v.changes.get("compensated_id") == event_id for v in self.versions)

    def at(self, night: float) -> dict[str, Any] | None:
        """Return its columns as they stand; None where it is not there."""
        if night >= self.gone_at or not self.versions or night < self.born_at:
            return None
        row: dict[str, Any] = {"attempts": 0, **self.columns}
        for version in self.versions:
            if version.at <= night:
                row |= {"status": version.status, **version.changes}
        return row


@dataclass(frozen=True, kw_only=True, slots=True)
class Restore:
    """Which database was put back, when, and to which moment."""

    service: str
    at: float
    to: float
    is_seen: bool
    """The server's timeline is another one since."""
