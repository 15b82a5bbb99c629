"""Data and event are both there, or neither, whatever a caller does with its transaction.

The same holds after an error. One of them alone is legal in four cases, each for a reason:

- `add` raised, and the row was committed before: by AUTOCOMMIT, or since `add` was called in or
  after `after_commit`.
- `add` raised in a session on a Connection, whose owner committed nevertheless.
- The row is in another database in AUTOCOMMIT: it is in no transaction.
- The event was added before the object to a session that leaves executed statements to its
  connection; closed without a commit, the session drops the object.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import chain, product

import pytest
from hypothesis import given, settings

from tests.integration.outbox.callers.cases import (
    CASES,
    PLACES,
    Case,
    Driver,
    End,
    Isolation,
    Mode,
    every_end,
    every_owner,
    every_place,
)
from tests.integration.outbox.callers.databases import Databases, databases_of_cases
from tests.integration.outbox.callers.defects import DEFECTS
from tests.integration.outbox.callers.interpreter import Interpreter
from tests.support.migrated_databases import MigratedDatabases

pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")


@pytest.fixture(scope="module")
def databases_under_test(databases: MigratedDatabases) -> Iterator[Databases]:
    with databases_of_cases(databases) as made:
        yield made


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> None:
    """Suppress the log records of each connection that a case has cut."""
    for name in ("sqlalchemy.pool", "psycopg"):
        caplog.set_level(logging.CRITICAL, logger=name)


def wrong(case: Case, databases: Databases) -> list[str]:
    """Run a case, and return its illegal outcomes."""
    book = Interpreter(case, databases).run()
    numbers = [pair.number for pair in book.pairs]
    found = list(book.wrong(databases.rows(numbers), databases.events(numbers)))
    if not found:
        return []
    errors = [f"    raised {type(e).__name__}: {str(e)[:200]}" for e in book.errors]
    return [str(case), *(f"    {each}" for each in found), *errors]


KINDS = (every_end, every_place, every_owner)


def test_cases_cover_each_driver_level_mode_and_end() -> None:
    cases = [case for driver, mode in product(Driver, Mode) for case in every_end(driver, mode)]
    met = {(case.driver, case.isolation, case.mode, case.end) for case in cases}
    assert met == set(product(Driver, Isolation, Mode, End))


def test_cases_cover_each_driver_mode_and_place() -> None:
    cases = [case for driver, mode in product(Driver, Mode) for case in every_place(driver, mode)]
    met = {(case.driver, case.mode, case.steps) for case in cases}
    assert met == set(product(Driver, Mode, PLACES.values()))


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("driver", Driver)
def test_row_and_event_end_alike(
    databases_under_test: Databases, driver: Driver, mode: Mode
) -> None:
    cases = chain.from_iterable(kind(driver, mode) for kind in KINDS)
    found = [line for case in cases for line in wrong(case, databases_under_test)]
    assert not found, "\n".join(found)


@settings(max_examples=300, derandomize=True, database=None)
@given(CASES)
def test_row_and_event_end_alike_after_any_steps(
    databases_under_test: Databases, case: Case
) -> None:
    found = wrong(case, databases_under_test)
    assert not found, "\n".join(found)


@pytest.mark.selftest
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda each: each.__name__.strip("_"))
def test_cases_detect_the_defect(
    databases_under_test: Databases,
    monkeypatch: pytest.MonkeyPatch,
    defect: Callable[[pytest.MonkeyPatch], None],
) -> None:
    defect(monkeypatch)
    mode = DEFECTS[defect]
    cases = chain.from_iterable(kind(driver, mode) for driver, kind in product(Driver, KINDS))
    assert any(wrong(case, databases_under_test) for case in cases)
