"""The results of a repair, counted while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from shieldtx.ports.repair import RepairAction, Repaired
from shieldtx.reconcile.verdicts import Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairReport:
    """The results of a repair, or of a dry run."""

    repaired: Mapping[tuple[Verdict, RepairAction], Repaired]
    refused: Mapping[tuple[Verdict, str], int]
    """The number of rows left to an operator, by verdict and reason."""
    handed_over: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The number of events handed over, by service and group."""


@dataclass(slots=True)
class Tally:
    """The results so far."""

    repaired: dict[tuple[Verdict, RepairAction], Repaired] = field(default_factory=dict)
    refused: Counter[tuple[Verdict, str]] = field(default_factory=Counter)
    handed_over: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, verdict: Verdict, action: RepairAction, repaired: Repaired) -> None:
        """Count the results of rows that were to be repaired."""
        if repaired == Repaired():
            return
        key = verdict, action
        self.repaired[key] = self.repaired.get(key, Repaired()).plus(repaired)

    def hand_over(self, to: tuple[str, str], rows: int) -> None:
        """Count events that a group of a service gets; `add` counts them too."""
        if rows:
            self.handed_over[to] += rows

    def refuse(self, verdict: Verdict, reason: str, rows: int = 1) -> None:
        """Count rows that are left to an operator."""
        if rows:
            self.refused[verdict, reason] += rows

    @property
    def report(self) -> RepairReport:
        """The report with all counts."""
        return RepairReport(
            repaired=self.repaired, refused=self.refused, handed_over=self.handed_over
        )
