"""The status of any tables: each count is correct, and shows the rows that wait for an operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, delete, insert

from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, OutboxStatus
from shieldtx.store import status
from shieldtx.store.dialects import dialect_of
from shieldtx.store.status import Backlog, Count, Precision, SqlStatus
from shieldtx.store.tables import tables
from tests.support.migrated_databases import MigratedDatabases, migrated_sqlite
from tests.support.rows_in_any_state import inbox_row, outbox_row

LIMIT = 5
MOST = 2 * LIMIT
FOR_AN_OPERATOR = {OutboxStatus.FAILED, OutboxStatus.UNRESOLVED, InboxStatus.DEAD}
NUMBERS = st.integers(0, MOST)
ROWS = st.tuples(
    st.dictionaries(st.sampled_from(OUTBOX.states), NUMBERS),
    st.dictionaries(
        st.tuples(st.sampled_from(INBOX.states), st.sampled_from(["bank", "stock"])), NUMBERS
    ),
)
Rows = tuple[dict[OutboxStatus, int], dict[tuple[InboxStatus, str], int]]
FEW = settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    if request.param == "sqlite":
        file: Path = tmp_path_factory.mktemp("status") / "service.db"
        made = create_engine(migrated_sqlite(file, 1))
        yield made
    else:
        databases: MigratedDatabases = request.getfixturevalue("databases")
        with databases.database(shards=1) as url:
            made = create_engine(url)
            yield made
            made.dispose()
    made.dispose()


def _problems(engine: Engine, rows: Rows) -> list[str]:
    """Write these rows, and describe what the status shows incorrectly about them."""
    t, dialect = tables(), dialect_of(engine.dialect)
    outbox, inbox = rows
    with engine.begin() as connection:
        for table, made in (
            (t.outbox, [outbox_row(s) for s, count in outbox.items() for _ in range(count)]),
            (
                t.inbox,
                [
                    inbox_row(s, consumer_group=group)
                    for (s, group), count in inbox.items()
                    for _ in range(count)
                ],
            ),
        ):
            connection.execute(delete(table))
            if made:
                # SQLite's tables have no sequence of their own.
                numbered = [row | dialect.next_in_sequence() for row in made]
                connection.execute(insert(table), numbered)
    found = SqlStatus(engine, t, limit=LIMIT).read()
    of_states: Counter[str] = Counter()
    for (state, _), count in inbox.items():
        of_states[state] += count
    by_group = {group.group: group.backlog for group in found.groups}
    # A group with only settled rows may be over the limit of settled rows.
    over_limit = INBOX.settled - FOR_AN_OPERATOR
    groups = {group for (s, group), count in inbox.items() if count and s not in over_limit}
    return [
        *_compared("outbox", found.outbox, outbox),
        *_compared("inbox", found.inbox, of_states),
        *_hidden("outbox", found.outbox, outbox),
        *_hidden("inbox", found.inbox, of_states),
        *(f"group {group} is not there" for group in groups - by_group.keys()),
        *(
            problem
            for group in groups & by_group.keys()
            for problem in _compared(
                group, by_group[group], {s: n for (s, g), n in inbox.items() if g == group}
            )
        ),
    ]


def _compared(what: str, said: Backlog, truth: Mapping[Any, int]) -> Iterator[str]:
    for state, count in said.states.items():
        true = truth.get(state, 0)
        if not _holds(count, true):
            yield f"{what}: {true} rows are {state}, said to be {count}"


def _hidden(what: str, said: Backlog, truth: Mapping[Any, int]) -> Iterator[str]:
    for state, count in said.states.items():
        if state in FOR_AN_OPERATOR and truth.get(state) and not count.rows:
            yield f"{what}: {truth[state]} rows that are {state} are said to be {count}"


def _holds(count: Count, truth: int) -> bool:
    if count.precision is Precision.EXACT:
        return count.rows == truth
    return count.precision is Precision.ESTIMATED or count.rows <= truth


@given(rows=ROWS)
@FEW
def test_counts_agree_with_the_rows_within_their_precision(engine: Engine, rows: Rows) -> None:
    assert not _problems(engine, rows)


@pytest.mark.selftest
def test_rows_detect_a_status_that_hides_dead_rollbacks(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_WAITING", dict.fromkeys(status._WAITING, ()))
    assert find(ROWS, lambda rows: bool(_problems(engine, rows)), settings=FEW)
