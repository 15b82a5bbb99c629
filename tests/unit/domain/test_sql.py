"""Statements that end a transaction or move savepoints are known, whoever writes them and how."""

from __future__ import annotations

import pytest

from shieldtx.domain.sql import ends_transaction, savepoint_in


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "  rollback;",
        "END",
        "ABORT WORK",
        "/* by a tool */ COMMIT",
        "-- why\nROLLBACK WORK",
        "PREPARE TRANSACTION 'x'",
        "commit and chain",
    ],
)
def test_an_end_of_the_transaction_is_known(statement: str) -> None:
    assert ends_transaction(statement)
    assert savepoint_in(statement) is None


@pytest.mark.parametrize(
    "statement",
    [
        "SAVEPOINT mine",
        "savepoint mine;",
        "/* by a tool */ ROLLBACK TO mine",
        "RELEASE mine",
        "rollback work to savepoint mine",
        "Rollback Transaction To mine",
        "RELEASE SAVEPOINT mine",
    ],
)
def test_a_savepoint_is_known_by_its_name_and_ends_nothing(statement: str) -> None:
    assert savepoint_in(statement) == "mine"
    assert not ends_transaction(statement)


@pytest.mark.parametrize(
    "statement",
    ["SELECT 1", "SELECT 'COMMIT'", "INSERT INTO endings VALUES (1)", "PREPARE x AS SELECT"],
)
def test_other_statements_are_neither(statement: str) -> None:
    assert not ends_transaction(statement)
    assert savepoint_in(statement) is None
