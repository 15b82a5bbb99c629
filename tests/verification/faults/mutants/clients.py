"""Mutants of the write side, in the processes of clients."""

from __future__ import annotations

from sqlalchemy.orm import SessionTransaction

from shieldtx.outbox.session_buffer import Buffer
from tests.verification.faults.failpoints import Breaker
from tests.verification.faults.mutants.mutant import named


def _late_events_are_forgotten(breaker: Breaker) -> None:
    on_end = Buffer.on_end

    def mutant(self: Buffer, ended: SessionTransaction) -> None:
        if ended.parent is None:
            self._entries.clear()
        on_end(self, ended)

    Buffer.on_prepare = lambda self, connection: None
    Buffer.on_end = mutant


OF_CLIENTS = named(
    "BANK_MUTANT",
    ("M47", "events added while a two-phase commit begins are lost", _late_events_are_forgotten),
)
