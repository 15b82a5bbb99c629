"""Mutants: deliberate defects, for the tests only. A proof that lets one live is no proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """A defect, and the invariant that has to find it."""

    id: str
    invariant: str
    apply: Callable[[], None]
    """Puts the defect into this process, for good."""


MUTANTS: dict[str, Mutant] = {}
