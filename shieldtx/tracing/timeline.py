"""The timeline of an event: built from the rows of each service, with the events it caused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from uuid import UUID

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.ports.broker import DeliveryOutcome
from shieldtx.ports.tracing import MAX_TRACED_EVENTS, Facts, KnownRow, TracedAttempt, TraceReader
from shieldtx.tracing.model import EventTimeline, Hop, Step

RecordPosition: TypeAlias = tuple[int | None, int | None]
"""Partition and offset."""


def trace(event_id: UUID, readers: Mapping[str, TraceReader]) -> EventTimeline | None:
    """Build the timeline of an event from services, by name; None if no service has the event."""
    return _TimelineBuilder(readers).build(event_id, None)


def first_cause(event_id: UUID, readers: Mapping[str, TraceReader]) -> UUID:
    """Return the first event of the chain that caused this event, as far as the services know."""
    builder, seen = _TimelineBuilder(readers), {event_id}
    while True:
        causes = {row.identity.causation_id for row in _rows(builder.facts(event_id))}
        earlier = [c for c in causes if c and c not in seen and _rows(builder.facts(c))]
        if not earlier:
            return event_id
        event_id = min(earlier)
        seen.add(event_id)


class _TimelineBuilder:
    """Builds one event timeline, reading and showing each event once."""

    def __init__(self, readers: Mapping[str, TraceReader]) -> None:
        self._readers = readers
        self._read: dict[UUID, Mapping[str, Facts]] = {}
        self._shown: set[UUID] = set()

    def facts(self, event_id: UUID) -> Mapping[str, Facts]:
        """Return what each service knows of an event."""
        if event_id not in self._read:
            self._read[event_id] = {s: r.facts(event_id) for s, r in self._readers.items()}
        return self._read[event_id]

    def build(self, event_id: UUID, caused_at: datetime | None) -> EventTimeline | None:
        """Build an event's timeline, with the timelines of the events it has caused."""
        self._shown.add(event_id)
        facts = self.facts(event_id)
        rows = _rows(facts)
        if not rows:
            return None
        own = [
            _outbox_hop(service, known.written, known.marks, caused_at, _position_of(rows))
            for service, known in facts.items()
            if known.written is not None
        ]
        published = next((_published_at(hop) for hop in own), None)
        received = [
            _inbox_hop(service, row, known.marks, published)
            for service, known in facts.items()
            for row in known.received
        ]
        hops, caused, left_out = self._with_caused(facts, [*own, *received])
        unknown = []
        if not own:
            unknown.append(
                f"when it was written and published: not in the outbox of "
                f"{_listed(self._readers)}; {rows[0].identity.source} has written it"
            )
        elif not received and published is not None:
            unknown.append(f"who received it: not in the inbox of {_listed(self._readers)}")
        if left_out:
            unknown.append(
                f"{left_out} more events that followed: {MAX_TRACED_EVENTS} are shown at most"
            )
        return EventTimeline(identity=rows[0].identity, hops=hops, unknown=unknown, caused=caused)

    def _with_caused(
        self, facts: Mapping[str, Facts], hops: Sequence[Hop]
    ) -> tuple[list[Hop], list[EventTimeline], int]:
        """Build the caused timelines, each below its causing hop if that hop is unambiguous."""
        below: dict[int, list[EventTimeline]] = {}
        alone: list[EventTimeline] = []
        left_out = 0
        for event_id in sorted({e for known in facts.values() for e in known.caused}):
            if event_id in self._shown:
                continue
            if len(self._shown) >= MAX_TRACED_EVENTS:
                left_out += 1
                continue
            rows = _rows(self.facts(event_id))
            cause = _cause_among(hops, rows)
            caused_at = None if cause is None else _cause_at(hops[cause], rows[0])
            timeline = self.build(event_id, caused_at)
            if timeline is not None:
                (alone if cause is None else below.setdefault(cause, [])).append(timeline)
        with_them = [replace(hop, caused=below.get(n, ())) for n, hop in enumerate(hops)]
        return with_them, alone, left_out


def _rows(facts: Mapping[str, Facts]) -> list[KnownRow]:
    """Return all rows of an event: its own first, tombstones of rollback events last."""
    own = [known.written for known in facts.values() if known.written is not None]
    received = [row for known in facts.values() for row in known.received]
    return [*own, *sorted(received, key=lambda row: row.status is InboxStatus.FENCED)]


def _position_of(rows: Iterable[KnownRow]) -> RecordPosition:
    """Return the position of the record that a consumer has read."""
    return next(((r.partition, r.offset) for r in rows if r.offset is not None), (None, None))


def _cause_among(hops: Sequence[Hop], caused: Sequence[KnownRow]) -> int | None:
    """Return the index of the hop that caused an event, if only one is possible."""
    if not caused:
        return None
    identity = caused[0].identity
    ended = {InboxStatus.PROCESSED.value}
    if identity.kind is TxKind.ROLLBACK:
        # The group gave the event up, or undid its effect when the event was taken back.
        ended.add(InboxStatus.MAX_RECONSUMED.value)
    possible = [
        index
        for index, hop in enumerate(hops)
        if hop.group is not None and hop.service == identity.source and hop.status in ended
    ]
    return possible[0] if len(possible) == 1 else None


def _outbox_hop(
    service: str,
    row: KnownRow,
    marks: Sequence[TracedAttempt],
    caused_at: datetime | None,
    position: RecordPosition,
) -> Hop:
    marks = [mark for mark in marks if mark.group is None]
    steps: list[Step] = []
    for mark in marks:
        claimed = _before(mark.at, (mark.took or 0) + (mark.waited or 0))
        steps.append(Step(what="CLAIMED", at=claimed, attempt=mark.attempt))
        is_out = mark.outcome == DeliveryOutcome.ACKNOWLEDGED
        steps.append(_of_mark("PUBLISHED" if is_out else "NOT_PUBLISHED", mark))
    has_position = any(step.offset is not None for step in steps)
    written = Step(what="WRITTEN", at=row.began_at)
    standing = _standing(row, (None, None) if has_position else position)
    return _hop(service, row, _timed([written, *_sorted(steps), standing], caused_at), marks)


def _inbox_hop(
    service: str, row: KnownRow, marks: Sequence[TracedAttempt], published: datetime | None
) -> Hop:
    marks = [mark for mark in marks if mark.group == row.group]
    steps: list[Step] = []
    for mark in marks:
        if mark.took is not None:
            began = _before(mark.at, mark.took)
            steps.append(Step(what="STARTED", at=began, attempt=mark.attempt))
        steps.append(_of_mark(mark.outcome, mark))
    received = Step(what="RECEIVED", at=row.began_at, partition=row.partition, offset=row.offset)
    steps = [received, *_sorted(steps)]
    if not marks or marks[-1].outcome not in _SETTLING.get(row.status, ()):
        steps.append(_standing(row, (None, None)))
    return _hop(service, row, _timed(steps, published), marks)


def _hop(service: str, row: KnownRow, steps: Sequence[Step], marks: Sequence[TracedAttempt]) -> Hop:
    return Hop(
        service=service,
        group=row.group,
        status=row.status.value,
        attempts=row.attempts,
        steps=steps,
        unknown=_unknown(row, marks),
    )


_SETTLING: dict[OutboxStatus | InboxStatus, set[str]] = {
    InboxStatus.PROCESSED: {"APPLIED", "COMPENSATED", "MOOT"},
    InboxStatus.MAX_RECONSUMED: {"REFUSED"},
    InboxStatus.DEAD: {"DEAD"},
}
"""Outcomes of attempts that lead to a status, and describe it more precisely."""


def _of_mark(what: str, mark: TracedAttempt) -> Step:
    is_out = what == "PUBLISHED"
    return Step(
        what=what,
        at=mark.at,
        attempt=mark.attempt,
        outcome=mark.outcome,
        partition=mark.partition if is_out else None,
        offset=mark.offset if is_out else None,
        took=mark.took,
        reason=mark.reason,
    )


def _standing(row: KnownRow, position: RecordPosition) -> Step:
    """Return the step for the status that a row has in its table."""
    what = row.status.value
    if row.status is InboxStatus.PROCESSED and row.identity.kind is TxKind.ROLLBACK:
        what = "MOOT" if row.compensated_id is None else "COMPENSATED"
    in_hand = row.status in {OutboxStatus.PROCESSING, InboxStatus.PROCESSING}
    until = row.lease_until if in_hand and row.lease_until is not None else row.due_at
    return Step(
        what=what,
        at=row.settled_at,
        attempt=row.attempts or None,
        partition=position[0],
        offset=position[1],
        reason=row.reason,
        until=until if row.settled_at is None else None,
    )


_NEVER = datetime.max.replace(tzinfo=UTC)


def _sorted(steps: Iterable[Step]) -> list[Step]:
    """Return the steps of several processes' tracers in the order of time."""
    return sorted(steps, key=lambda step: step.at or _NEVER)


def _timed(steps: Sequence[Step], before: datetime | None) -> list[Step]:
    """Set for each step the time since the step before it."""
    timed: list[Step] = []
    for step in steps:
        if step.at is not None and before is not None:
            timed.append(replace(step, after=step.at - before))
        else:
            timed.append(step)
        before = step.at or before
    return timed


def _before(at: datetime, seconds: float) -> datetime:
    return at - timedelta(seconds=seconds)


def _published_at(hop: Hop) -> datetime | None:
    """Return when the broker first acknowledged the event, or when the outbox recorded that."""
    times = {step.what: step.at for step in reversed(hop.steps)}
    return times.get("PUBLISHED") or times.get(OutboxStatus.PROCESSED.value)


def _cause_at(hop: Hop, caused: KnownRow) -> datetime | None:
    """Return the time of the last step before an event was written: its transaction ends later."""
    times = [step.at for step in hop.steps if step.at is not None]
    return max((at for at in times if at <= caused.began_at), default=min(times, default=None))


def _unknown(row: KnownRow, marks: Sequence[TracedAttempt]) -> list[str]:
    """Return the attempts without a trace, as a sentence."""
    missing = sorted(set(range(1, row.attempts + 1)) - {mark.attempt for mark in marks})
    if not missing:
        return []
    which = "attempt" if len(missing) == 1 else "attempts"
    return [
        f"when {which} {_listed(missing)} of {row.attempts} began and ended: {_NOT_TRACED}",
    ]


_NOT_TRACED = (
    "not traced (SHIELDTX_TRACE is not set there, the process died, or the entry is lost or purged)"
)


def _listed(names: Iterable[object]) -> str:
    return ", ".join(str(name) for name in names)
