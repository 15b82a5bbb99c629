"""What a repair does to one row of a run: a kind of step for each way, with what that way needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from shieldtx.ports.repair import RepairAction, RepairedEvent, RowSeen
from shieldtx.reconcile.verdicts import Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A row is moved where it is."""

    action: RepairAction
    service: str
    """In whose database the row is."""
    row: RowSeen


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """What events have in common that one group lacks."""

    verdict: Verdict
    upstream: str
    downstream: str
    group: str

    @property
    def to(self) -> tuple[str, str]:
        """Return the group that lacks them, with its service."""
        return self.downstream, self.group

    def event(self, event_id: UUID) -> RepairedEvent:
        """Return one of them, as the inbox of the group knows it."""
        return RepairedEvent(event_id=event_id, source=self.upstream, group=self.group)


@dataclass(frozen=True, kw_only=True, slots=True)
class HandOverStep:
    """An event is stored in the inbox of the one group that lacks it."""

    action: ClassVar = RepairAction.HAND_OVER
    missing: Missing
    row: RowSeen

    @property
    def service(self) -> str:
        """Return in whose database the row is."""
        return self.missing.upstream


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """What events have in common that are published again together."""

    verdict: Verdict
    upstream: str
    unless_received: Missing | None = None
    """Of rollbacks that a group lacks: those that it has received by now stay as they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishStep:
    """An event comes back in line, and all groups get the copy."""

    action: ClassVar = RepairAction.PUBLISH_AGAIN
    publication: Publication
    row: RowSeen

    @property
    def service(self) -> str:
        """Return in whose database the row is."""
        return self.publication.upstream


AnyStep = Step | HandOverStep | PublishStep


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Why nothing is done to a row, and what to do instead."""

    reason: str
