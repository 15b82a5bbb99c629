"""Which lines each test reaches and how long it takes, so that each mutant meets its own tests."""

from __future__ import annotations

import functools
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import coverage
import pytest

from tests.verification.mutation.forked_tests import Progress, run_in_turn

LONGEST_S = 180.0
"""Time limit of a test during the measurement."""

_Cache = type(functools.lru_cache(lambda: None))


@dataclass(slots=True)
class Reach:
    """The tests that reach a line, by the path of a module and the line."""

    lines: dict[str, dict[int, set[str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(set))
    )
    seconds: dict[str, float] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    """Tests that fail without a mutant, which prove nothing about one."""

    def add(self, part: Mapping[str, Mapping[int, Sequence[str]]]) -> None:
        """Add the measurements of one process."""
        for path, lines in part.items():
            for line, tests in lines.items():
                self.lines[path][line].update(tests)

    def tests_of(self, path: str, first: int, last: int) -> list[str]:
        """Return the tests that reach one of these lines, the cheapest first."""
        reached = {test for n in range(first, last + 1) for test in self.lines[path].get(n, ())}
        usable = reached & self.seconds.keys() - self.failed
        return sorted(usable, key=lambda test: (self.seconds[test], test))


@dataclass(frozen=True, slots=True)
class Took:
    """The duration of a test, without shared fixtures."""

    nodeid: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Reached:
    """The tests by path and line."""

    lines: dict[str, dict[int, list[str]]]


def measure(
    session: pytest.Session,
    items: Sequence[pytest.Item],
    progress: Progress,
    *,
    paths: Sequence[str],
) -> None:
    """Run tests, and send the lines that each reached and its duration."""
    measured = coverage.Coverage(data_file=None, include=list(paths), config_file=False)

    @contextmanager
    def around(item: pytest.Item) -> Iterator[None]:
        forget_statements()
        measured.switch_context(item.nodeid)
        began = time.monotonic()
        yield
        progress.send(Took(item.nodeid, time.monotonic() - began))

    measured.start()
    run_in_turn(session, items, progress, lambda _: LONGEST_S, around, until_failure=False)
    measured.stop()
    data = measured.get_data()
    progress.send(
        Reached(
            {
                path: {n: tests for n, tests in data.contexts_by_lineno(path).items() if tests}
                for path in data.measured_files()
            }
        )
    )


def forget_statements() -> None:
    """Clear the built statements: only a test that builds a statement reaches its lines."""
    for name, module in list(sys.modules.items()):
        if name.startswith("shieldtx."):
            for each in vars(module).values():
                if isinstance(each, _Cache):
                    each.cache_clear()
