"""Assigns tests to stages, and marks those that need a server.

`make test` runs the stage `suite`; `make test STAGE=demo` another one; `STAGE=all` runs every test.
CI runs all stages but `thorough` and `cluster` at once (`STAGE=ci`), and of those two what begins
in time (`STAGE=later`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

SUITE, CI, LATER, ALL = "suite", "ci", "later", "all"
THOROUGH = "thorough"
APART = {
    "demo": "runs the demo or a long example: minutes, and processor time for all cores",
    "cluster": "starts a Spark cluster",
    "connect": "starts Kafka Connect, whose jars are downloaded",
    "browser": "reads pages in a Chromium",
    "selftest": "tests a tool of the tests",
    THOROUGH: "puts defects back into the proofs, or varies a reconciliation further: many minutes",
}
IN_LATER = {THOROUGH, "cluster"}
"""The stages in addition to the suite; each is a mark, set by hand or by `_stage_of`."""

THOROUGH_FOLDERS = {"oracle", "compare"}
"""Folders whose tests compare the reconciliation with another program, in many cases."""

SERVERS = {"postgres", "undisturbed_postgres", "kafka", "spark"}
"""Fixtures that start a server (Spark's is a JVM); `_starts_a_server` finds further ones."""
ON_SERVERS = ("postgresql", "kafka-python", "confluent-kafka")
"""Beginnings of the parameters with which a fixture of several cases requests a server."""

TOO_LATE = "not begun in time: run `make test STAGE=later` before a release"
"""The one reason for which a test may be skipped in CI."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shieldtx")
    group.addoption(
        "--stage", choices=[SUITE, *APART, CI, LATER, ALL], default=ALL, help="which tests run"
    )
    group.addoption(
        "--begin-until",
        type=float,
        metavar="EPOCH_S",
        help="skip the tests that have not begun by then, in seconds since 1970",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "server: needs PostgreSQL, Kafka or Spark (set by itself)")
    for stage, why in APART.items():
        where = "not in `make test`; in CI"
        config.addinivalue_line("markers", f"{stage}: {why} ({where})")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need a server, and keep the tests of the stage."""
    for item in items:
        if needs_server(item):
            item.add_marker("server")
        if stage := _stage_of(item):
            item.add_marker(stage)
    stages = {item: stage_of(item) for item in items}
    wanted = config.getoption("--stage")
    others = [item for item in items if not is_wanted(stages[item], wanted)]
    items[:] = [item for item in items if is_wanted(stages[item], wanted)]
    if others:
        config.hook.pytest_deselected(items=others)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose time is over, before its fixtures start anything."""
    until = item.config.getoption("--begin-until")
    if until is not None and time.time() > until:
        pytest.skip(TOO_LATE)


def is_wanted(stage: str, wanted: str) -> bool:
    """Return whether tests of a stage run when `wanted` is requested."""
    is_later = stage in IN_LATER
    return wanted in {ALL, stage, LATER if is_later else CI}


def stage_of(item: pytest.Item) -> str:
    """Return the stage in which a test runs."""
    stages = [stage for stage in APART if item.get_closest_marker(stage)]
    assert len(stages) < 2, f"{item.nodeid} is in several stages: {stages}"
    return stages[0] if stages else SUITE


def _stage_of(item: pytest.Item) -> str | None:
    """Return the stage that a test's folder or fixtures decide."""
    if not THOROUGH_FOLDERS.isdisjoint(item.path.parts):
        return THOROUGH
    if "browser" in item.path.parts:
        return "browser"
    if "selftest" in item.path.parts:
        return "selftest"
    if "kafka_connect" in _fixtures(item):
        return "connect"
    return "cluster" if "cluster" in _fixtures(item) else None


def needs_server(item: pytest.Item) -> bool:
    """Return whether a test requests a server, or its file starts one."""
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
