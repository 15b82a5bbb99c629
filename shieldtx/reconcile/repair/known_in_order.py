"""Events that groups have had by earlier runs: if they are missing now, the inbox lost them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import Member, Received


class Inlet(NamedTuple):
    """The path by which events of a type reach a group."""

    upstream: str
    downstream: str
    group: str
    kind: TxKind
    topic: str
    event_type: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownInOrder:
    """The times up to which earlier runs found that groups had all events sent to them."""

    until: Mapping[Inlet, datetime] = field(default_factory=dict)
    """By the clock of the upstream, or earlier."""

    def inlets(self, upstream: str) -> Sequence[Inlet]:
        """Return the paths of COMMIT events of a service."""
        return [
            each for each in self.until if (each.upstream, each.kind) == (upstream, TxKind.COMMIT)
        ]

    def had(self, inlet: Inlet, sent_at: datetime | None) -> bool:
        """Return whether a group has had an event that its upstream's outbox settled at a time."""
        until = self.until.get(inlet)
        return until is not None and sent_at is not None and sent_at < until


@dataclass(frozen=True, kw_only=True, slots=True)
class GoodRun:
    """A run that found everything in order."""

    watermarks: Mapping[str, datetime]
    """By service."""
    received: Collection[Received]
    """The receipts of this run and earlier ones, of services with unchanged configuration."""


def known_in_order(good_runs: Iterable[GoodRun], members: Collection[Member]) -> KnownInOrder:
    """Return what good runs prove about groups of these services.

    A group without receipts of a type may be new, and a former group need not have the events.
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
            # A service's watermark is the earliest of its streams, so that of this stream is not
            # earlier.
            until[inlet] = max(*marks, until.get(inlet, marks[0]))
    return KnownInOrder(until=until)
