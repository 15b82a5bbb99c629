"""A breadth-first search through every interleaving: a path to a violation is a shortest one."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from tests.verification.model import (
    actions_broker,
    actions_inbox,
    actions_operator,
    actions_outbox,
    actions_retention,
    invariants,
)
from tests.verification.model.bounds import Bounds
from tests.verification.model.invariants import DRAIN, Breach
from tests.verification.model.state import State, Step, initial

_NOBODY = 2**32 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """An invariant that can be broken, how, and a shortest path there."""

    invariant: str
    what: str
    path: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelResult:
    """The outcome of an exploration; `depth` is the length of the longest shortest path."""

    bounds: Bounds
    states: int
    transitions: int
    depth: int
    violations: tuple[Violation, ...]

    def violation_of(self, invariant: str) -> Violation | None:
        """Return the violation of an invariant, None where the invariant holds."""
        return next((each for each in self.violations if each.invariant == invariant), None)

    def is_shortest(self, violation: Violation) -> bool:
        """Return whether no shorter path breaks an invariant: no earlier level has a violation."""
        return self.depth - 1 <= len(violation.path) <= self.depth


def actions(state: State, bounds: Bounds) -> Iterator[Step]:
    """Yield every possible next step; a step with a fault leaves fewer of them."""
    yield from actions_outbox.application(state, bounds)
    yield from actions_outbox.relays(state, bounds)
    yield from actions_broker.actions(state)
    yield from actions_inbox.workers(state, bounds)
    yield from actions_operator.actions(state)
    yield from actions_retention.actions(state, bounds)


def explore(bounds: Bounds) -> ModelResult:
    """Visit every state within the bounds, or stop after the first level with a breach."""
    # Millions of tuples without garbage: collections would take a third of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _Exploration(bounds).run()
    finally:
        if collects:
            gc.enable()


def walk(bounds: Bounds, violation: Violation) -> State:
    """Take the steps of a violation one after the other and return the last state.

    Raises: | LookupError: a step of the path cannot be taken in the state that was reached.
    """
    state = initial(bounds)
    for name in violation.path:
        after = next((after for called, after in actions(state, bounds) if called == name), None)
        if after is None:
            raise LookupError(f"the step {name!r} is not possible in {state}")
        state = actions_broker.without_read_records(after)
    return state


class _Exploration:
    """The states found so far, in the order of their distance from the start."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._numbers: dict[State, int] = {}
        self._parents = array("I")
        self._names: list[str] = []
        # The numbers of steps without a fault, by state.
        self._ends = array("I", [0])
        self._drains = array("I")
        self._violations: dict[str, Violation] = {}
        self._transitions = 0

    def run(self) -> ModelResult:
        """Explore level by level."""
        level = [initial(self._bounds)]
        self._number(level[0], _NOBODY, "")
        depth = 0
        while level and not self._violations:
            level = [new for state in level for new in self._expand(state)]
            depth += bool(level)
        if not self._violations:
            self._look_for_cycles()
        return ModelResult(
            bounds=self._bounds,
            states=len(self._numbers),
            transitions=self._transitions,
            depth=depth,
            violations=tuple(self._violations.values()),
        )

    def _number(self, state: State, parent: int, name: str) -> int:
        number = len(self._numbers)
        self._numbers[state] = number
        self._parents.append(parent)
        self._names.append(name)
        return number

    def _expand(self, state: State) -> list[State]:
        """Take every step from a state and return the resulting new states."""
        here = self._numbers[state]
        found: list[State] = []
        rests = True
        for name, stepped in actions(state, self._bounds):
            after = actions_broker.without_read_records(stepped)
            self._transitions += 1
            number = self._numbers.get(after)
            if number is None:
                number = self._number(after, here, name)
                found.append(after)
                self._note(invariants.of_state(after, self._bounds), number)
            self._note(invariants.of_step(state, after), here, name)
            if (after.faults, after.decisions) == (state.faults, state.decisions):
                rests = False
                self._drains.append(number)
        if rests:
            self._note(invariants.of_rest(state), here)
        self._ends.append(len(self._drains))
        return found

    def _note(self, breaches: Iterator[Breach], number: int, *more: str) -> None:
        for breach in breaches:
            if breach.invariant not in self._violations:
                path = (*self._path(number), *more)
                self._violations[breach.invariant] = Violation(
                    invariant=breach.invariant, what=breach.what, path=path
                )

    def _path(self, number: int) -> tuple[str, ...]:
        names: list[str] = []
        while self._parents[number] != _NOBODY:
            names.append(self._names[number])
            number = self._parents[number]
        return tuple(reversed(names))

    def _look_for_cycles(self) -> None:
        """Check that draining ends: without further faults no state is ever reached again.

        States without a predecessor are removed repeatedly (Kahn, 1962); the remaining ones form
        cycles.
        """
        incoming = array("I", bytes(4 * len(self._numbers)))
        for target in self._drains:
            incoming[target] += 1
        free = [number for number, count in enumerate(incoming) if not count]
        left = len(incoming)
        while free:
            number = free.pop()
            left -= 1
            for target in self._drains[self._ends[number] : self._ends[number + 1]]:
                incoming[target] -= 1
                if not incoming[target]:
                    free.append(target)
        if left:
            circle = next(number for number, count in enumerate(incoming) if count)
            self._note(iter([Breach(DRAIN, f"{left} states go round in circles")]), circle)
