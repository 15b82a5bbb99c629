"""What groups have had by what earlier runs found, so that their inboxes must have lost it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import Member, Received


class Inlet(NamedTuple):
    """Through which events of a type come to a group."""

    upstream: str
    downstream: str
    group: str
    kind: TxKind
    topic: str
    event_type: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownInOrder:
    """Up to when earlier runs have found that groups had all that was sent to them."""

    until: Mapping[Inlet, datetime] = field(default_factory=dict)
    """By the clock of the upstream, or an earlier one."""

    def inlets(self, upstream: str) -> Sequence[Inlet]:
        """Return those through which COMMIT events of a service come."""
        return [
            each for each in self.until if (each.upstream, each.kind) == (upstream, TxKind.COMMIT)
        ]

    def had(self, inlet: Inlet, sent_at: datetime | None) -> bool:
        """Whether a group has had an event that its upstream's outbox settled at a time."""
        until = self.until.get(inlet)
        return until is not None and sent_at is not None and sent_at < until


@dataclass(frozen=True, kw_only=True, slots=True)
class GoodRun:
    """A run that has found all in order."""

    watermarks: Mapping[str, datetime]
    """By service."""
    received: Collection[Received]
    """What it or earlier runs had met, of services that it judged as they are judged now."""


def known_in_order(good_runs: Iterable[GoodRun], members: Collection[Member]) -> KnownInOrder:
    """Return what good runs say of groups of these services.

    A group of which a run had not met events of a type may be new since, and a former one need not
    have them.
    """
    by_name = {member.name: member for member in members}
    until: dict[Inlet, datetime] = {}
    for run in good_runs:
        for seen in run.received:
            names = seen.source, seen.downstream
            marks = [run.watermarks[name] for name in names if name in run.watermarks]
            member = by_name.get(seen.downstream)
            if member is None or member.is_former(seen) or not marks:
                continue
            inlet = Inlet(
                seen.source, seen.downstream, seen.group, seen.kind, seen.topic, seen.event_type
            )
            # A service's watermark is the earliest of its streams, so that of this one is no
            # earlier.
            until[inlet] = max(*marks, until.get(inlet, marks[0]))
    return KnownInOrder(until=until)
