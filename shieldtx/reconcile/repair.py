"""Carries repairs out: looks up what a run could not know, and has the databases do the rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shieldtx.ports.repair import Note, RepairAction, Repaired, RepairedEvent, RepairStore
from shieldtx.reconcile.hand_over import HandOver, Limits, Missing
from shieldtx.reconcile.listed_rows import ListedRow
from shieldtx.reconcile.repair_decisions import TAKEN_BACK, Policy, Refusal, Step, step_of
from shieldtx.reconcile.repair_tally import RepairReport, Tally
from shieldtx.reconcile.verdicts import Verdict

BATCH: Final = 500
"""Rows of one transaction."""

LOOKED_UP: Final = 5_000
"""Events that are looked up at once."""

_SENDING: Final = frozenset({RepairAction.PUBLISH_AGAIN, RepairAction.REPLAY_EVENT})
"""What sends an event that may have been taken back."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the rows of one batch have in common."""

    verdict: Verdict
    action: RepairAction
    service: str


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
        self._limits = Limits(batch=batch, looked_up=max(looked_up, batch))

    def run(self, rows: Iterable[ListedRow]) -> RepairReport:
        """Repair what can be; of the others, say why not."""
        tally, waiting = Tally(), defaultdict[_Kind, list[Step]](list)
        hand_overs: dict[Missing, HandOver] = {}
        for row in rows:
            step = step_of(row, self._policy)
            if isinstance(step, Refusal):
                tally.refuse(row.verdict, step.reason)
            elif step.action is RepairAction.HAND_OVER:
                missing = Missing(
                    verdict=row.verdict,
                    upstream=row.upstream,
                    downstream=row.downstream,
                    group=row.group,
                )
                if missing not in hand_overs:
                    hand_overs[missing] = self._hand_over(missing)
                hand_overs[missing].add(step.row)
            else:
                kind = _Kind(row.verdict, step.action, step.service)
                waiting[kind].append(step)
                if len(waiting[kind]) >= self._limits.looked_up:
                    self._carry_out(kind, waiting.pop(kind), tally)
        for kind, steps in waiting.items():
            self._carry_out(kind, steps, tally)
        for hand_over in hand_overs.values():
            hand_over.carry_out(tally)
        return tally.report

    def _hand_over(self, missing: Missing) -> HandOver:
        return HandOver(
            missing,
            stores=self._stores,
            note=self._note(missing.verdict),
            out_of_order=self._policy.out_of_order,
            young_since=self._policy.young_since.get(missing.downstream),
            dry_run=self._dry_run,
            limits=self._limits,
        )

    def _carry_out(self, kind: _Kind, steps: Sequence[Step], tally: Tally) -> None:
        arrived = self._arrived(steps)
        awaited = [step for step in steps if step.unless is None or step.unless not in arrived]
        needless = Repaired(needless=len(steps) - len(awaited))
        tally.add(kind.verdict, kind.action, needless)
        if kind.action in _SENDING:
            awaited = self._not_taken_back(kind, awaited, tally)
        # Those of a key in the order in which they were written, as far as their ids tell.
        rows = sorted((step.row for step in awaited), key=lambda row: row.event_id)
        store, note = self._stores[kind.service], self._note(kind.verdict)
        for start in range(0, len(rows), self._limits.batch):
            part = rows[start : start + self._limits.batch]
            repaired = store.repair(kind.action, part, note=note, dry_run=self._dry_run)
            tally.add(kind.verdict, kind.action, repaired)

    def _not_taken_back(self, kind: _Kind, steps: Sequence[Step], tally: Tally) -> list[Step]:
        events = [(step.row.event_id, step.row.source) for step in steps]
        taken_back = {
            event for store in self._stores.values() for event in store.taken_back(events)
        }
        kept = [step for event, step in zip(events, steps, strict=True) if event not in taken_back]
        tally.refuse(kind.verdict, TAKEN_BACK, len(steps) - len(kept))
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

    def _note(self, verdict: Verdict) -> Note:
        return Note(who=self._who, run_id=self._run_id, verdict=verdict)
