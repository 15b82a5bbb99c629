"""Carries repairs out: looks up the current state, and lets the databases make the changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from shieldtx.ports.repair import RepairAction, Repaired, RepairStore, RowSeen
from shieldtx.reconcile.repair.context import RepairContext
from shieldtx.reconcile.repair.decisions import Policy, step_of
from shieldtx.reconcile.repair.hand_over import HandOver
from shieldtx.reconcile.repair.limits import Limits
from shieldtx.reconcile.repair.listed_rows import ListedRow
from shieldtx.reconcile.repair.publish_again import PublishAgain
from shieldtx.reconcile.repair.releases import Releases
from shieldtx.reconcile.repair.replays import Replays
from shieldtx.reconcile.repair.slices import slices
from shieldtx.reconcile.repair.steps import (
    AnyStep,
    HandOverStep,
    Missing,
    Publication,
    PublishStep,
    Refusal,
    Step,
)
from shieldtx.reconcile.repair.tally import RepairReport, Tally
from shieldtx.reconcile.verdicts import Verdict

BATCH: Final = 500
"""Rows in one transaction."""

LOOKED_UP: Final = 5_000
"""Events in one lookup."""

COMPARED: Final = 50_000
"""Events whose keys are compared with an inbox in one scan."""

_RESENDING: Final[Mapping[RepairAction, type[Releases | Replays]]] = {
    RepairAction.RELEASE_EVENT: Releases,
    RepairAction.REPLAY_EVENT: Replays,
}
"""Actions after which a relay sends an event that it may have sent before."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """The common attributes of the rows of one batch."""

    verdict: Verdict
    action: RepairAction
    service: str


@dataclass(slots=True)
class _Work:
    """Pending work, grouped by what is done together."""

    waiting: defaultdict[_Kind, list[RowSeen]] = field(default_factory=lambda: defaultdict(list))
    publications: dict[Publication, PublishAgain] = field(default_factory=dict)
    resent: dict[_Kind, Releases | Replays] = field(default_factory=dict)
    hand_overs: dict[Missing, HandOver] = field(default_factory=dict)


class Repair:
    """Carries out the repairs of a run, in batches of one kind.

    A repair that is killed and started again has the same result as an uninterrupted one. Each
    batch is done completely or not at all, and a repaired row no longer matches the state that the
    run saw.
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
        compared: int = COMPARED,
    ) -> None:
        """Repair in the databases of `stores`, which are named by service."""
        looked_up = max(looked_up, batch)
        limits = Limits(batch=batch, looked_up=looked_up, compared=max(compared, looked_up))
        self._context = RepairContext(
            stores=stores, policy=policy, run_id=run_id, who=who, dry_run=dry_run, limits=limits
        )

    def run(self, rows: Iterable[ListedRow]) -> RepairReport:
        """Repair the rows that can be repaired; count the others with the reasons."""
        tally, work = Tally(), _Work()
        for row in rows:
            step = step_of(row, self._context.policy)
            if isinstance(step, Refusal):
                tally.refuse(row.verdict, step.reason)
            else:
                self._add(row.verdict, step, work, tally)
        for kind, seen in work.waiting.items():
            self._carry_out(kind, seen, tally)
        # Events that are sent again come last: otherwise they could reach a group that lacks them
        # before earlier events are handed over.
        for hand_over in work.hand_overs.values():
            hand_over.carry_out(tally)
        for resent in work.resent.values():
            resent.carry_out(tally)
        for publication, publish_again in work.publications.items():
            would_have = {
                missing.to: hand_over.done
                for missing, hand_over in work.hand_overs.items()
                if missing.upstream == publication.upstream and self._context.dry_run
            }
            publish_again.carry_out(tally, would_have)
        return tally.report

    def _add(self, verdict: Verdict, step: AnyStep, work: _Work, tally: Tally) -> None:
        """Add a step to its group of work, and carry out groups that are large enough."""
        match step:
            case HandOverStep(missing=missing, row=seen):
                if missing not in work.hand_overs:
                    work.hand_overs[missing] = HandOver(missing, self._context)
                work.hand_overs[missing].add(seen)
            case PublishStep(publication=publication, row=seen):
                if publication not in work.publications:
                    work.publications[publication] = PublishAgain(publication, self._context)
                work.publications[publication].add(seen)
            case Step(action=action, service=service, row=seen) if action in _RESENDING:
                kind = _Kind(verdict, action, service)
                if kind not in work.resent:
                    work.resent[kind] = _RESENDING[action](service, verdict, self._context)
                work.resent[kind].add(seen)
            case Step(action=action, service=service, row=seen):
                kind = _Kind(verdict, action, service)
                work.waiting[kind].append(seen)
                if len(work.waiting[kind]) >= self._context.limits.looked_up:
                    self._carry_out(kind, work.waiting.pop(kind), tally)

    def _carry_out(self, kind: _Kind, rows: Sequence[RowSeen], tally: Tally) -> None:
        # In the order of ids, which is the order of writing for the events of a key, as far as ids
        # show it.
        rows = sorted(rows, key=lambda row: row.event_id)
        for part in slices(rows, self._context.limits.batch):
            tally.add(kind.verdict, kind.action, self._repair(kind, part))

    def _repair(self, kind: _Kind, rows: Sequence[RowSeen]) -> Repaired:
        context = self._context
        store, note = context.stores[kind.service], context.note(kind.verdict)
        if not (context.dry_run and kind.action is RepairAction.RAISE_ROLLBACK):
            return store.repair(kind.action, rows, note=note, dry_run=context.dry_run)
        # If several groups of a service gave an event up, one rollback serves all of them.
        progress = context.progress
        new = [row for row in rows if not progress.would_have_raised(kind.service, row)]
        repaired = store.repair(kind.action, new, note=note, dry_run=True)
        raised = [row for row in new if row.event_id in repaired.events]
        progress.pretend_to_raise(kind.service, raised)
        return repaired.plus(Repaired(needless=len(rows) - len(new)))
