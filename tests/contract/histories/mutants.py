"""Deliberate defects of the fence, each of which a history has to detect."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from sys import maxsize
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, case, select

from shieldtx.ports.relay import Settlement
from shieldtx.store import fence
from shieldtx.store.fence import Fence
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.store.statements import blocked
from shieldtx.store.statements import claim as claim_sql

Patch = pytest.MonkeyPatch


def _released_below_the_fence(patch: Patch) -> None:
    settle = SqlRelayStore.settle

    def mutant(self: SqlRelayStore, token: UUID, settlement: Settlement) -> int:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(Fence, "retreat", lambda self, seq: None)
            return settle(self, token, settlement)

    patch.setattr(SqlRelayStore, "settle", mutant)


def _never_retreats(patch: Patch) -> None:
    patch.setattr(Fence, "retreat", lambda self, seq: None)


def _sweeps_on_after_a_retreat(patch: Patch) -> None:
    def mutant(self: Fence, seq: int) -> None:
        self.seq = min(self.seq, max(seq - 1, 0))

    patch.setattr(Fence, "retreat", mutant)


def _sweeps_on_in_another_epoch(patch: Patch) -> None:
    sweep = Fence.sweep

    def mutant(self: Fence, connection: Connection, relay: str) -> bool:
        self.shards = connection.scalar(self._digest, blocked.of_relay(relay)) or 0
        return sweep(self, connection, relay)

    patch.setattr(Fence, "sweep", mutant)


def _sweeps_on_without_its_leases(patch: Patch) -> None:
    """Leave out the comparison at the end of a step."""
    sweep, pass_window = Fence.sweep, Fence._pass_window
    passed: dict[Fence, tuple[int, int, int]] = {}

    def passing(self: Fence, connection: Connection, relay: str, target: int) -> bool:
        goes_on = pass_window(self, connection, relay, target)
        passed[self] = (self.seq, self._swept, self.shards)
        return goes_on

    def mutant(self: Fence, connection: Connection, relay: str) -> bool:
        passed.pop(self, None)
        goes_on = sweep(self, connection, relay)
        if self.shards == 0 and self in passed:
            self.seq, self._swept, self.shards = passed[self]
        return goes_on

    patch.setattr(Fence, "_pass_window", passing)
    patch.setattr(Fence, "sweep", mutant)


def _claims_in_another_epoch(patch: Patch) -> None:
    def mutant(d: Any, leased: Any, held: Any) -> Any:
        on_hold = select(held.c.on_hold).scalar_subquery()
        holds = (d.digest(leased) == claim_sql._KNOWN) & ~on_hold
        start = case((holds, claim_sql._START), else_=claim_sql._FENCE + 1)
        return select(start).scalar_subquery()

    patch.setattr(claim_sql, "_start", mutant)
    patch.setattr(claim_sql, "claim", inspect.unwrap(claim_sql.claim))


def _waits_for_no_transaction(patch: Patch) -> None:
    def mutant(seen: str) -> Any:
        snapshot = claim_sql.snapshot_of(seen)
        return snapshot and replace(snapshot, oldest_running=maxsize)

    patch.setattr(fence, "claim", SimpleNamespace(snapshot_of=mutant))


MUTANTS: dict[str, Callable[[Patch], None]] = {
    "released-below-the-fence": _released_below_the_fence,
    "never-retreats": _never_retreats,
    "sweeps-on-after-a-retreat": _sweeps_on_after_a_retreat,
    "sweeps-on-in-another-epoch": _sweeps_on_in_another_epoch,
    "sweeps-on-without-its-leases": _sweeps_on_without_its_leases,
    "claims-in-another-epoch": _claims_in_another_epoch,
    "waits-for-no-transaction": _waits_for_no_transaction,
}
