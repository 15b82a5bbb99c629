"""Carries repairs out: looks up what a run could not know, and has the databases do the rest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from shieldtx.ports.repair import (
    Line,
    Note,
    RepairAction,
    Repaired,
    RepairedEvent,
    RepairStore,
)
from shieldtx.reconcile.listed_rows import ListedRow
from shieldtx.reconcile.repair_decisions import (
    OVERTAKEN,
    TAKEN_BACK,
    Policy,
    Refusal,
    Step,
    step_of,
)
from shieldtx.reconcile.verdicts import Verdict

BATCH: Final = 500
"""Rows of one transaction."""

LOOKED_UP: Final = 5_000
"""Events that are looked up at once: for later ones of their keys, an inbox is scanned."""

_SENDING: Final = frozenset({RepairAction.PUBLISH_AGAIN, RepairAction.REPLAY_EVENT})
"""What delivers an event that may have been taken back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairReport:
    """What a repair has done, or would do."""

    repaired: Mapping[tuple[Verdict, RepairAction], Repaired]
    refused: Mapping[tuple[Verdict, str], int]
    """How many rows of a verdict are left to a person, by reason."""


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
        looked_up: int = LOOKED_UP,
    ) -> None:
        """Work on the databases of `stores`, by the names of their services."""
        self._stores = stores
        self._policy = policy
        self._run_id = run_id
        self._who = who
        self._dry_run = dry_run
        self._batch = batch
        self._looked_up = max(looked_up, batch)

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
            if len(waiting[kind]) >= self._looked_up:
                self._carry_out(kind, waiting.pop(kind), tally)
        for kind, steps in waiting.items():
            self._carry_out(kind, steps, tally)
        return RepairReport(repaired=tally.repaired, refused=tally.refused)

    def _carry_out(self, kind: _Kind, steps: Sequence[Step], tally: _Tally) -> None:
        arrived = self._arrived(steps)
        awaited = [step for step in steps if step.unless is None or step.unless not in arrived]
        if len(awaited) < len(steps):
            tally.add(kind, Repaired(needless=len(steps) - len(awaited)))
        if kind.action in _SENDING:
            awaited = self._harmless(kind, awaited, tally)
        # Those of a key in the order in which they were written, as far as their ids tell.
        rows = sorted((step.row for step in awaited), key=lambda row: row.event_id)
        note = Note(who=self._who, run_id=self._run_id, verdict=kind.verdict)
        store = self._stores[kind.service]
        for start in range(0, len(rows), self._batch):
            part = rows[start : start + self._batch]
            tally.add(kind, store.repair(kind.action, part, note=note, dry_run=self._dry_run))

    def _harmless(self, kind: _Kind, steps: Sequence[Step], tally: _Tally) -> list[Step]:
        """Leave out events that were taken back, and overtaken ones that nobody has named."""
        events = [(step.row.event_id, step.row.source) for step in steps]
        taken_back = {
            event for store in self._stores.values() for event in store.taken_back(events)
        }
        # A replay is always named.
        is_named = kind.verdict in self._policy.named
        overtaken = set() if is_named else self._overtaken(kind, steps)
        kept = []
        for event, step in zip(events, steps, strict=True):
            if event in taken_back:
                tally.refused[kind.verdict, TAKEN_BACK] += 1
            elif step.row.event_id in overtaken:
                tally.refused[kind.verdict, OVERTAKEN] += 1
            else:
                kept.append(step)
        return kept

    def _overtaken(self, kind: _Kind, steps: Sequence[Step]) -> set[UUID]:
        """Return which events would come behind later ones of their key in a group that lacks them.

        All that lack it get the copy: where it is too late for one of them, it is for none.
        """
        lines = self._stores[kind.service].lines([step.row.event_id for step in steps])
        found = {event_id for event_id, line in lines.items() if line.before_open}
        lacking: dict[tuple[str, str], dict[UUID, Line]] = defaultdict(dict)
        for step in steps:
            line = lines.get(step.row.event_id)
            if step.unless is not None and line is not None:
                service, awaited = step.unless
                lacking[service, awaited.group][step.row.event_id] = line
        for (service, group), theirs in lacking.items():
            found |= self._stores[service].received_later(group, kind.service, theirs)
        return found

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
