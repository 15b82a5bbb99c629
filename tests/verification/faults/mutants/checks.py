"""Mutants of the checks that workers make when they start."""

from __future__ import annotations

from shieldtx.store.schema import Schema
from tests.verification.faults.failpoints import Breaker
from tests.verification.faults.mutants.mutant import named


def _sequences_are_not_checked(breaker: Breaker) -> None:
    Schema.check_sequences = lambda self: None


OF_CHECKS = named(
    "BANK_MUTANT",
    ("M53", "workers start with sequences below their rows", _sequences_are_not_checked),
)
