"""Which tests run in which stage, what needs a server, and in which order files are dealt out.

`make test` runs the stage `suite`; `make test STAGE=demo` another one; CI runs all of them at once
(`STAGE=all`), so that no test falls between the stages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

SUITE, ALL = "suite", "all"
APART = {
    "demo": "runs the demo: minutes, and processor time for all cores",
    "cluster": "starts a Spark cluster",
    "browser": "reads pages in a Chromium",
    "selftest": "tests a tool of the tests",
}
"""The stages beside the suite; each is a mark, set by hand or by `_stage_of`."""

SERVERS = {"postgres", "kafka", "spark"}
"""Fixtures that start a server (Spark's is a JVM), beside those of `_starts_a_server`."""
ON_SERVERS = ("postgresql", "kafka-python", "confluent-kafka")
"""How the parameters begin for which a fixture that has other cases too asks for a server."""

SECONDS = Path(__file__).with_name("seconds_per_file.txt")
"""How long the longer files take; written by `make test ARGS="--seconds=FILE"`."""
WORTH_NOTING_S = 3
SECONDS_A_TEST = 0.1
"""For a file that is not in the list."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shieldtx")
    group.addoption("--stage", choices=[SUITE, *APART, ALL], default=ALL, help="which tests run")
    group.addoption("--seconds", type=Path, help="write how long each file took to this file")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "server: needs PostgreSQL, Kafka or Spark (set by itself)")
    for stage, why in APART.items():
        config.addinivalue_line("markers", f"{stage}: {why}; a stage of its own in CI")
    file = config.getoption("--seconds")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Record(file))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs a server, keep the tests of the stage, and begin with the longest files."""
    for item in items:
        if needs_server(item):
            item.add_marker("server")
        if stage := _stage_of(item):
            item.add_marker(stage)
    wanted = config.getoption("--stage")
    if wanted != ALL:
        others = [item for item in items if stage_of(item) != wanted]
        items[:] = [item for item in items if stage_of(item) == wanted]
        config.hook.pytest_deselected(items=others)
    items[:] = longest_first(items, seconds_per_file())


def stage_of(item: pytest.Item) -> str:
    """Return the stage in which a test runs."""
    stages = [stage for stage in APART if item.get_closest_marker(stage)]
    assert len(stages) < 2, f"{item.nodeid} is in several stages: {stages}"
    return stages[0] if stages else SUITE


def _stage_of(item: pytest.Item) -> str | None:
    """Return the stage that a test's folder or fixtures decide."""
    if "browser" in item.path.parts:
        return "browser"
    if "selftest" in item.path.parts:
        return "selftest"
    return "cluster" if "cluster" in _fixtures(item) else None


def needs_server(item: pytest.Item) -> bool:
    """Tell whether a test asks for a server, or its file starts one."""
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    return (
        not SERVERS.isdisjoint(_fixtures(item))
        or any(isinstance(each, str) and each.startswith(ON_SERVERS) for each in parameters)
        or _starts_a_server(item)
    )


def _starts_a_server(item: pytest.Item) -> bool:
    names = vars(item.module) if isinstance(item, pytest.Function) else {}
    return not {"EmbeddedPostgres", "EmbeddedKafka"}.isdisjoint(names) and any(
        f"{name}(" in item.path.read_text() for name in ("EmbeddedPostgres", "EmbeddedKafka")
    )


def _fixtures(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def longest_first(items: Iterable[pytest.Item], seconds: dict[str, float]) -> list[pytest.Item]:
    """Sort files by how long they take, so that no worker ends with a long one alone."""
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)

    def weight(file: str) -> float:
        return seconds.get(file, SECONDS_A_TEST * len(files[file]))

    return [item for file in sorted(files, key=weight, reverse=True) for item in files[file]]


def seconds_per_file() -> dict[str, float]:
    """Read the measured times."""
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
