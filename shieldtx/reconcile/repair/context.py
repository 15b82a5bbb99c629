"""The context of a repair: databases, decisions, limits, and progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shieldtx.ports.repair import Note, RepairStore
from shieldtx.reconcile.repair.decisions import Policy
from shieldtx.reconcile.repair.limits import Limits
from shieldtx.reconcile.repair.progress import Progress
from shieldtx.reconcile.repair.receivers import Receivers
from shieldtx.reconcile.verdicts import Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairContext:
    """One repair of one run."""

    stores: Mapping[str, RepairStore]
    """The databases, by service."""
    policy: Policy
    run_id: str
    who: str
    """User recorded in the audit log."""
    dry_run: bool
    """True: nothing is written."""
    limits: Limits
    progress: Progress = field(default_factory=Progress)
    _receivers: dict[str, Receivers] = field(default_factory=dict, init=False)

    def note(self, verdict: Verdict) -> Note:
        """Return the audit note for rows with a verdict."""
        return Note(who=self.who, run_id=self.run_id, verdict=verdict)

    def receivers(self, source: str) -> Receivers:
        """Return the groups for the events of a service; the databases are queried once."""
        if source not in self._receivers:
            self._receivers[source] = Receivers(source, self.stores, self.policy)
        return self._receivers[source]
