"""The findings of reconciliations, compared with what was planted (I7)."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from shieldtx.reconcile.verdicts import Verdict


class Mismatch(NamedTuple):
    """One row of a report with a mismatch."""

    verdict: Verdict
    group: str
    """The consumer group; of a verdict on a topic, the topic's logical name."""
    event_id: UUID


@dataclass(kw_only=True, slots=True)
class Accuracy:
    """The reported mismatches, compared with the planted ones."""

    planted: int = 0
    reported: int = 0
    right: int = 0
    """Planted, and reported with the right verdict."""

    @property
    def precision(self) -> float:
        """Return the share of reported mismatches that were planted."""
        return self.right / self.reported if self.reported else 1.0

    @property
    def recall(self) -> float:
        """Return the share of planted mismatches that were reported."""
        return self.right / self.planted if self.planted else 1.0


@dataclass(kw_only=True, slots=True)
class Reconciled(Accuracy):
    """The sums over all runs and repairs of a scenario."""

    runs: int = 0
    repaired: int = 0
    repaired_again: int = 0
    """Rows that a second repair changed again: 0."""

    @property
    def falsely_reported(self) -> int:
        """Return how many reported mismatches were not planted, or with another verdict."""
        return self.reported - self.right

    @property
    def missed(self) -> int:
        """Return how many planted mismatches were not reported as expected."""
        return self.planted - self.right

    def note(self, planted: AbstractSet[Mismatch], reported: AbstractSet[Mismatch]) -> None:
        """Count one more run."""
        self.runs += 1
        self.planted += len(planted)
        self.reported += len(reported)
        self.right += len(planted & reported)

    def __str__(self) -> str:
        return (
            f"{self.runs} runs judged: planted {self.planted}, reported {self.reported}, "
            f"precision {self.precision:.3f}, recall {self.recall:.3f}; repaired {self.repaired}, "
            f"again {self.repaired_again}"
        )
