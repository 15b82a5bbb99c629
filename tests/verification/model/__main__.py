"""`python -m tests.verification.model [--mutants]`: explore the protocol, print the findings."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from tests.verification.model.bounds import Bounds
from tests.verification.model.explore import ModelResult, explore
from tests.verification.model.worlds import MUTANTS, WORLDS


def main(arguments: list[str]) -> int:
    """Explore the worlds, or the mutants, which must be caught; return 1 where this fails."""
    wants_mutants = "--mutants" in arguments
    results = list(_explored(MUTANTS if wants_mutants else WORLDS))
    states = sum(result.states for result in results)
    transitions = sum(result.transitions for result in results)
    violations = sum(len(result.violations) for result in results)
    print(f"{states:,} states, {transitions:,} transitions, {violations} violations")
    caught = all(result.violations for result in results)
    return int(not caught if wants_mutants else violations > 0)


def _explored(worlds: Iterable[Bounds]) -> Iterable[ModelResult]:
    for bounds in worlds:
        started = time.monotonic()
        result = explore(bounds)
        _show(result, time.monotonic() - started)
        yield result


def _show(result: ModelResult, seconds: float) -> None:
    print(result.bounds)
    print(
        f"  {result.states:,} states, {result.transitions:,} transitions, depth {result.depth}, "
        f"{len(result.violations)} violations, {seconds:.1f} s",
        flush=True,
    )
    for violation in result.violations:
        print(f"  {violation.invariant}: {violation.what}")
        for number, name in enumerate(violation.path, 1):
            print(f"  {number:4} {name}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
