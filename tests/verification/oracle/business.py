"""Concurrent business during a repair: workers run, and services write further events."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final

from shieldtx.domain.states import OutboxStatus, TxKind
from tests.verification.oracle.facts import Row, Rows
from tests.verification.oracle.repair_order import key_of, keys_at_rest
from tests.verification.oracle.repair_plan import RepairPlan
from tests.verification.oracle.services import Services

_MOST: Final = 3
_SHARE: Final = 0.6
"""The share of keys that get a later event each time."""


@dataclass(kw_only=True, slots=True)
class Business:
    """Business that continues a few times between the steps of a repair."""

    r: Random
    running: Services
    plan: RepairPlan
    rows: Rows
    """The rows at the start of the repair."""
    _left: int = field(default=_MOST, init=False)
    _later: list[Row] = field(default_factory=list, init=False)
    """Events whose keys may get later ones."""

    def __post_init__(self) -> None:
        """Choose the keys."""
        at_rest = keys_at_rest(self.rows)
        self._later = [
            row
            for row in self.plan.absent
            if row["kind"] is TxKind.COMMIT
            and row["status"] is OutboxStatus.PROCESSED
            and key_of(row) in at_rest
            and row["event_type"] in self.running.setting.types_of(row["service"])
        ]

    def goes_on(self, step: int) -> None:
        """Let services perhaps write events, and all workers run.

        They write after a transaction of the repair, so that its next transaction can know the
        events. No repair can know what is written between its read and its transaction.
        """
        if not self._left or self.r.random() >= self.plan.busy_share:
            return
        self._left -= 1
        if step % 2 == 1:
            for row in self._later:
                if self.r.random() < _SHARE:
                    self.running.write(row["service"], row["event_type"], key=row["key"])
        self.running.go_on()
