"""The type of a mutant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.verification.faults.failpoints import Breaker


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """A defect that is put into a process permanently."""

    id: str
    defect: str
    variable: str
    """The environment variable that puts the mutant into a process."""
    apply: Callable[[Breaker], None]
    """Applies the defect; the breaker can end the process between the separated steps."""


def named(variable: str, *mutants: tuple[str, str, Callable[[Breaker], None]]) -> dict[str, Mutant]:
    """Return mutants by their ids."""
    return {
        name: Mutant(id=name, defect=defect, variable=variable, apply=apply)
        for name, defect, apply in mutants
    }
