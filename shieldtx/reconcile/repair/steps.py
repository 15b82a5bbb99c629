"""The steps of a repair for one row of a run: one class for each way, with its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from shieldtx.ports.repair import RepairAction, RepairedEvent, RowSeen
from shieldtx.reconcile.verdicts import Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A change of a row in its own database."""

    action: RepairAction
    service: str
    """The service whose database has the row."""
    row: RowSeen


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """The common attributes of events that one group lacks."""

    verdict: Verdict
    upstream: str
    downstream: str
    group: str

    @property
    def to(self) -> tuple[str, str]:
        """Return the group that lacks the events, with its service."""
        return self.downstream, self.group

    def event(self, event_id: UUID) -> RepairedEvent:
        """Return one of the events, in the notation of the group's inbox."""
        return RepairedEvent(event_id=event_id, source=self.upstream, group=self.group)


@dataclass(frozen=True, kw_only=True, slots=True)
class HandOverStep:
    """Storage of an event in the inbox of the one group that lacks it."""

    action: ClassVar = RepairAction.HAND_OVER
    missing: Missing
    row: RowSeen

    @property
    def service(self) -> str:
        """Return the service whose database has the row."""
        return self.missing.upstream


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """The common attributes of events that are published again together."""

    verdict: Verdict
    upstream: str
    unless_received: Missing | None = None
    """Of rollbacks that a group lacks: rollbacks that it has received by now are not published."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishStep:
    """Another publication of an event, which all groups receive."""

    action: ClassVar = RepairAction.PUBLISH_AGAIN
    publication: Publication
    row: RowSeen

    @property
    def service(self) -> str:
        """Return the service whose database has the row."""
        return self.publication.upstream


AnyStep = Step | HandOverStep | PublishStep


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Why a row is not repaired, and what to do instead."""

    reason: str
