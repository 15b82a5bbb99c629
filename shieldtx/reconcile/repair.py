"""The repair: which rows of a run are mended, and how; the others are said to be a person's work.

What is done to a row is decided here, from the row as the run saw it alone. Whether it still is so,
the databases say when they are asked to do it (see RepairStore).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from shieldtx.domain.states import InboxStatus, OutboxStatus
from shieldtx.ports.repair import Note, RepairAction, Repaired, RepairedEvent, RepairStore, RowSeen
from shieldtx.reconcile.expectations import NOBODY
from shieldtx.reconcile.listed_rows import ListedRow
from shieldtx.reconcile.verdicts import Verdict

REPAIRED: Final = (
    Verdict.MISSING_DOWNSTREAM,
    Verdict.ABSENT_FROM_TOPIC,
    Verdict.STUCK,
    Verdict.NEITHER_EFFECT_NOR_COMPENSATION,
)
"""What is repaired without being named."""

BATCH: Final = 500
"""Rows of one transaction."""

PART_OF_RETENTION: Final = 0.9
"""Of the shortest retention: rows that are older may be purged before the repair has its effect."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What a repair may do."""

    services: frozenset[str]
    """Those whose databases are known."""
    named: frozenset[Verdict] = frozenset()
    """What a person asked for by name."""
    young_since: datetime | None = None
    """What was settled before that may be purged on the other side; None: nothing is purged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What is to be done to one row."""

    action: RepairAction
    service: str
    """In whose database the row is."""
    row: RowSeen
    unless: tuple[str, RepairedEvent] | None = None
    """Not if this service's group has received it in the meantime."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Why nothing is done to a row, and what to do instead."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairReport:
    """What a repair has done, or would do."""

    repaired: Mapping[tuple[Verdict, RepairAction], Repaired]
    refused: Mapping[tuple[Verdict, str], int]
    """How many rows of a verdict are left to a person, by reason."""


def step_of(row: ListedRow, policy: Policy) -> Step | Refusal:
    """Decide on one row of a run."""
    decide = _DECISIONS.get(row.verdict)
    decision = Refusal(reason=row.verdict.advice) if decide is None else decide(row, policy)
    if isinstance(decision, Step):
        concerned = {decision.service, decision.unless[0] if decision.unless else decision.service}
        for stranger in sorted(concerned - policy.services):
            return Refusal(reason=f"service {stranger!r} is not in this configuration")
    return decision


_TOO_OLD: Final = (
    "so old that a service may have purged what it knows of it: another copy could have a second "
    "effect; look what became of it and make up for it by hand"
)
_TO_BE_NAMED: Final = (
    "it waits for a person: mend the cause, then `--verdict PARKED` replays all of them, or "
    "`shieldtx dead replay` one by one"
)
_UNRESOLVED: Final = "nobody can tell the end of this half message: commit it or roll it back"
_NOBODY_THERE: Final = "no group receives it, so another copy would not help: start one"
_NOT_LEFT: Final = (
    "nobody has it in hand, so there is nothing to release: look whether relay and consumers run"
)
_HALF: Final = "a half message waits for the word of its application, or for its checks"


def _missing(row: ListedRow, policy: Policy) -> Step | Refusal:
    if row.group == NOBODY:
        return Refusal(reason=_NOBODY_THERE)
    step = _publish_again(row, policy)
    if isinstance(step, Refusal):
        return step
    awaited = RepairedEvent(event_id=row.event_id, source=row.upstream, group=row.group)
    return replace(step, unless=(row.downstream, awaited))


def _publish_again(row: ListedRow, policy: Policy) -> Step | Refusal:
    # All groups get the copy, and each knows the event only for as long as it keeps its row.
    if _is_old(row.published_at, policy):
        return Refusal(reason=_TOO_OLD)
    return _of_the_outbox(row, RepairAction.PUBLISH_AGAIN)


def _release(row: ListedRow, _: Policy) -> Step | Refusal:
    # Of an event that is sent again, too: whoever has it knows its id.
    if row.upstream_status is OutboxStatus.PROCESSING:
        return _of_the_outbox(row, RepairAction.RELEASE_EVENT)
    if row.downstream_status is InboxStatus.PROCESSING:
        return _of_the_inbox(row, RepairAction.RELEASE_ATTEMPT)
    if row.downstream_status is None and row.upstream_status is OutboxStatus.HALF:
        return Refusal(reason=_HALF)
    return Refusal(reason=_NOT_LEFT)


def _raise_rollback(row: ListedRow, policy: Policy) -> Step | Refusal:
    if _is_old(row.settled_at, policy):
        return Refusal(reason=_TOO_OLD)
    return _of_the_inbox(row, RepairAction.RAISE_ROLLBACK)


def _replay(row: ListedRow, policy: Policy) -> Step | Refusal:
    if row.verdict not in policy.named:
        return Refusal(reason=_TO_BE_NAMED)
    if row.downstream_status is InboxStatus.DEAD:
        return _of_the_inbox(row, RepairAction.REPLAY_COMPENSATION)
    if row.upstream_status is OutboxStatus.FAILED:
        return _of_the_outbox(row, RepairAction.REPLAY_EVENT)
    return Refusal(reason=_UNRESOLVED)


_DECISIONS: Mapping[Verdict, Callable[[ListedRow, Policy], Step | Refusal]] = {
    Verdict.MISSING_DOWNSTREAM: _missing,
    Verdict.ABSENT_FROM_TOPIC: _publish_again,
    Verdict.STUCK: _release,
    Verdict.NEITHER_EFFECT_NOR_COMPENSATION: _raise_rollback,
    Verdict.PARKED: _replay,
}
"""What can be done at all; every other verdict is answered by its advice."""


def _of_the_outbox(row: ListedRow, action: RepairAction) -> Step:
    seen = RowSeen(
        event_id=row.event_id,
        source=row.upstream,
        status=row.upstream_status or "",
        settled_at=row.published_at,
        attempts=row.upstream_attempts,
    )
    return Step(action=action, service=row.upstream, row=seen)


def _of_the_inbox(row: ListedRow, action: RepairAction) -> Step:
    seen = RowSeen(
        event_id=row.event_id,
        source=row.upstream,
        group=row.group,
        status=row.downstream_status or "",
        settled_at=row.settled_at,
        attempts=row.attempts,
    )
    return Step(action=action, service=row.downstream, row=seen)


def _is_old(settled_at: datetime | None, policy: Policy) -> bool:
    if policy.young_since is None or settled_at is None:
        return False
    return settled_at < policy.young_since


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the rows of one batch have in common."""

    verdict: Verdict
    action: RepairAction
    service: str


@dataclass(slots=True)
class _Tally:
    repaired: dict[tuple[Verdict, RepairAction], Repaired] = field(default_factory=dict)
    refused: Counter[tuple[Verdict, str]] = field(default_factory=Counter)

    def add(self, kind: _Kind, repaired: Repaired) -> None:
        key = (kind.verdict, kind.action)
        self.repaired[key] = self.repaired.get(key, Repaired()).plus(repaired)


class Repair:
    """Carries a run's repairs out, a batch of a kind at a time.

    Killed and begun anew, it ends as if it had not been: each batch is done whole or not at all,
    and what is done is no longer as the run saw it.
    """

    def __init__(
        self,
        *,
        stores: Mapping[str, RepairStore],
        policy: Policy,
        run_id: str,
        who: str,
        dry_run: bool = False,
        batch: int = BATCH,
    ) -> None:
        """Work on the databases of `stores`, by the names of their services."""
        self._stores = stores
        self._policy = policy
        self._run_id = run_id
        self._who = who
        self._dry_run = dry_run
        self._batch = batch

    def run(self, rows: Iterable[ListedRow]) -> RepairReport:
        """Repair what can be; of the others, say why not."""
        tally, waiting = _Tally(), defaultdict[_Kind, list[Step]](list)
        for row in rows:
            step = step_of(row, self._policy)
            if isinstance(step, Refusal):
                tally.refused[row.verdict, step.reason] += 1
                continue
            kind = _Kind(row.verdict, step.action, step.service)
            waiting[kind].append(step)
            if len(waiting[kind]) >= self._batch:
                tally.add(kind, self._carry_out(kind, waiting.pop(kind)))
        for kind, steps in waiting.items():
            tally.add(kind, self._carry_out(kind, steps))
        return RepairReport(repaired=tally.repaired, refused=tally.refused)

    def _carry_out(self, kind: _Kind, steps: Sequence[Step]) -> Repaired:
        arrived = self._arrived(steps)
        rows = [step.row for step in steps if step.unless is None or step.unless not in arrived]
        note = Note(who=self._who, run_id=self._run_id, verdict=kind.verdict)
        repaired = self._stores[kind.service].repair(
            kind.action, rows, note=note, dry_run=self._dry_run
        )
        return repaired.plus(Repaired(needless=len(steps) - len(rows)))

    def _arrived(self, steps: Sequence[Step]) -> set[tuple[str, RepairedEvent]]:
        """Return what has been received since the run, so that it is not missing any more."""
        awaited: dict[str, list[RepairedEvent]] = defaultdict(list)
        for step in steps:
            if step.unless is not None:
                service, event = step.unless
                awaited[service].append(event)
        return {
            (service, event)
            for service, events in awaited.items()
            for event in self._stores[service].received(events)
        }


def planned(rows: Iterable[ListedRow], policy: Policy) -> RepairReport:
    """Say what a repair would try, from the rows alone."""
    tally = _Tally()
    for row in rows:
        step = step_of(row, policy)
        if isinstance(step, Refusal):
            tally.refused[row.verdict, step.reason] += 1
        else:
            tally.add(_Kind(row.verdict, step.action, step.service), Repaired(done=1))
    return RepairReport(repaired=tally.repaired, refused=tally.refused)
