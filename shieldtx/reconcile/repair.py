"""Carries repairs out: looks up what a run could not know, and has the databases do the rest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from shieldtx.ports.repair import Note, RepairAction, Repaired, RepairedEvent, RepairStore, RowSeen
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
"""Events that are looked up at once: whether later ones of their keys were sent takes a scan."""


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
        rows = [step.row for step in awaited]
        if kind.action is RepairAction.PUBLISH_AGAIN:
            rows = self._harmless(kind, rows, tally)
        note = Note(who=self._who, run_id=self._run_id, verdict=kind.verdict)
        store = self._stores[kind.service]
        for start in range(0, len(rows), self._batch):
            part = rows[start : start + self._batch]
            tally.add(kind, store.repair(kind.action, part, note=note, dry_run=self._dry_run))

    def _harmless(self, kind: _Kind, rows: Sequence[RowSeen], tally: _Tally) -> list[RowSeen]:
        """Leave out the events whose effect must not come any more, or only if somebody says so."""
        events = [(row.event_id, row.source) for row in rows]
        taken_back = {
            event for store in self._stores.values() for event in store.taken_back(events)
        }
        overtaken: set[UUID] = set()
        if kind.verdict not in self._policy.named:
            overtaken = self._stores[kind.service].overtaken([row.event_id for row in rows])
        kept = []
        for row in rows:
            if (row.event_id, row.source) in taken_back:
                tally.refused[kind.verdict, TAKEN_BACK] += 1
            elif row.event_id in overtaken:
                tally.refused[kind.verdict, OVERTAKEN] += 1
            else:
                kept.append(row)
        return kept

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
