"""Tests that the stores in memory behave like PostgreSQL's with concurrent transactions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from sqlalchemy import Connection

from shieldtx.store import retention
from tests.support.migrated_databases import MigratedDatabases
from tests.verification.simulation.open_calls import monitored
from tests.verification.simulation.overlap import Overlap
from tests.verification.simulation.overlapping_calls import OverlappingCalls
from tests.verification.simulation.overlapping_defects import (
    IN_MEMORY,
    IN_SQL,
    SEEDS,
    rewritten,
    without_locks,
)
from tests.verification.simulation.sql_stores import SHARDS, SqlStores, open_postgres

STEPS = 30
SCHEDULES = 40
MOST_SCHEDULES = 50
"""After this many schedules a defect counts as not found."""


@pytest.fixture(scope="module")
def server(databases: MigratedDatabases) -> Iterator[tuple[SqlStores, Connection]]:
    with databases.database(shards=SHARDS) as url, pytest.MonkeyPatch.context() as patched:
        made = open_postgres(url)
        patched.setattr(retention, "time", SimpleNamespace(time=lambda: made.clock.now))
        with monitored(made.engine) as monitor:
            yield made, monitor
        made.close()


def test_memory_waits_where_postgresql_does(server: tuple[SqlStores, Connection]) -> None:
    assert _play_all(server, SCHEDULES) >= SCHEDULES / 2


@pytest.mark.thorough
@pytest.mark.parametrize("of", IN_MEMORY)
def test_locks_left_out_in_memory_are_found(server: tuple[SqlStores, Connection], of: str) -> None:
    with without_locks(of), pytest.raises(AssertionError):
        _play_all(server, MOST_SCHEDULES, first=SEEDS.get(of, 0))


@pytest.mark.thorough
@pytest.mark.parametrize("name", IN_SQL)
def test_a_defect_of_a_statement_is_found(server: tuple[SqlStores, Connection], name: str) -> None:
    with rewritten(server[0].engine, name), pytest.raises(AssertionError):
        _play_all(server, MOST_SCHEDULES, first=SEEDS.get(name, 0))


def _play_all(server: tuple[SqlStores, Connection], schedules: int, *, first: int = 0) -> int:
    """Make the calls of the given number of seeds; return how many have waited."""
    waited = 0
    for seed in range(first, first + schedules):
        overlap = Overlap(*server)
        OverlappingCalls(overlap, random.Random(seed)).make(STEPS)
        waited += overlap.waited
    return waited
