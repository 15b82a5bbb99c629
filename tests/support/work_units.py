"""How tests are distributed to workers: by files, the longest first, and Spark's in two groups.

The files of a group share one worker, and so one JVM. The durations of the files were measured;
`make test STAGE=all ARGS="--seconds=tests/support/seconds_per_file.txt"` measures them again.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

GROUPS = {
    "tests/spark/compare/": "spark, frames",
    "tests/spark/sources/": "spark, frames",
    "tests/spark/test_job.py": "spark, whole runs",
    "tests/spark/test_planted_repair.py": "spark, whole runs",
    "tests/spark/test_planted_truth.py": "spark, whole runs",
    "tests/spark/test_prefetch.py": "spark, whole runs",
}
"""Groups by the beginning of a test's name."""

WHERE_MOST_WAIT = 5
"""Processes on a machine with few cores, which tests of servers leave idle half of the time."""
ONE_WAITS = 1
"""Processes more than cores for the other tests, which wait for threads and child processes."""

SECONDS = Path(__file__).with_name("seconds_per_file.txt")
WORTH_NOTING_S = 3
SECONDS_A_TEST = 0.1
"""Used for a file that is not in the list."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shieldtx")
    group.addoption("--seconds", type=Path, help="write how long each file took to this file")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--seconds")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Record(file))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest groups, so that no worker ends with one alone."""
    items[:] = longest_first(items, _seconds_per_file())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many processes run the tests: more than cores, since tests wait."""
    cores = os.cpu_count() or 1
    if config.option.markexpr == "not server":
        return cores + ONE_WAITS
    return max(cores + ONE_WAITS, WHERE_MOST_WAIT)


class GroupedScheduling(LoadFileScheduling):
    """Distributes files, and groups of files."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupedScheduling | None:
    return GroupedScheduling(config, log) if config.getoption("dist") == "loadfile" else None


def group_of(nodeid: str) -> str:
    """Return the name of the unit that is distributed as a whole."""
    for beginning, group in GROUPS.items():
        if nodeid.startswith(beginning):
            return group
    return nodeid.partition("::")[0]


def longest_first(items: Iterable[pytest.Item], seconds: dict[str, float]) -> list[pytest.Item]:
    """Sort groups by their duration; each keeps its order."""
    groups: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        groups[group_of(item.nodeid)][item.nodeid.partition("::")[0]].append(item)

    def weight(group: str) -> float:
        return sum(
            seconds.get(file, SECONDS_A_TEST * len(tests)) for file, tests in groups[group].items()
        )

    return [
        item
        for group in sorted(groups, key=weight, reverse=True)
        for tests in groups[group].values()
        for item in tests
    ]


def _seconds_per_file() -> dict[str, float]:
    lines = SECONDS.read_text().splitlines() if SECONDS.exists() else []
    return {file: float(seconds) for seconds, file in map(str.split, lines)}


class _Record:
    """Measures how long each file takes, in the process that the user started."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._took: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        longest = sorted(self._took.items(), key=lambda item: -item[1])
        lines = [f"{took:6.1f} {file}\n" for file, took in longest if took >= WORTH_NOTING_S]
        self._file.write_text("".join(lines))
