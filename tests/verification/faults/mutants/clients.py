"""Mutants of the write side, in the processes of clients."""

from __future__ import annotations

from sqlalchemy.orm import SessionTransaction

from shieldtx.outbox.session_buffer import SessionBuffer
from tests.verification.faults.failpoints import Breaker
from tests.verification.faults.mutants.mutant import named


def _late_events_are_forgotten(breaker: Breaker) -> None:
    on_end = SessionBuffer.on_end

    def mutant(self: SessionBuffer, ended: SessionTransaction) -> None:
        if ended.parent is None:
            self._entries.clear()
        on_end(self, ended)

    SessionBuffer.on_prepare = lambda self, connection: None
    SessionBuffer.on_end = mutant


OF_CLIENTS = named(
    "BANK_MUTANT",
    ("M47", "events added while a two-phase commit begins are lost", _late_events_are_forgotten),
)
