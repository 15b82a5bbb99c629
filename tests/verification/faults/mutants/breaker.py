"""Mutants of the breaker: of what the attempts of a paused handler cost."""

from __future__ import annotations

from typing import Any

from shieldtx.consumer.breaker import Breaker as HandlerBreaker
from shieldtx.store.inbox_store import SqlInboxStore
from tests.verification.faults.failpoints import Breaker
from tests.verification.faults.mutants.mutant import named


def _failures_of_paused_handlers_count(breaker: Breaker) -> None:
    takes_back = HandlerBreaker.takes_back

    def mutant(self: HandlerBreaker, *given: Any, **more: Any) -> bool:
        takes_back(self, *given, **more)
        return False

    HandlerBreaker.takes_back = mutant


def _probes_that_die_count(breaker: Breaker) -> None:
    start = SqlInboxStore.start_attempt

    def mutant(self: SqlInboxStore, *given: Any, is_probe: bool = False, **more: Any) -> Any:
        return start(self, *given, **more)

    SqlInboxStore.start_attempt = mutant


OF_THE_BREAKER = named(
    "BANK_MUTANT",
    ("M67", "failures of a paused handler count", _failures_of_paused_handlers_count),
    ("M68", "a probe that dies with its process counts", _probes_that_die_count),
)
