"""Statements that end a transaction or move savepoints are recognized in any notation."""

from __future__ import annotations

import time

import pytest

from shieldtx.domain.sql import (
    ends_transaction,
    savepoints_in,
    statements_in,
)


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
        "SELECT 1; ROLLBACK; BEGIN",
        "/* /* nested */ */ COMMIT",
        "SELECT $a$ ; $a$; COMMIT",
    ],
)
def test_end_of_the_transaction_is_recognized(statement: str) -> None:
    assert ends_transaction(statement)
    assert savepoints_in(statement) == ()


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("SAVEPOINT mine", "mine"),
        ("savepoint Mine;", "mine"),
        ('SAVEPOINT "Mine and ""yours"""', 'Mine and "yours"'),
        ("/* by a tool */ SAVEPOINT mine", "mine"),
        ("/* by a tool */ ROLLBACK TO mine", "mine"),
        ("RELEASE mine", "mine"),
        ("rollback work to savepoint mine", "mine"),
        ("Rollback Transaction To mine", "mine"),
        ("-- why\nRELEASE SAVEPOINT mine", "mine"),
        ('ROLLBACK TO "mine";', "mine"),
    ],
)
def test_savepoint_is_recognized_by_its_name(statement: str, name: str) -> None:
    assert savepoints_in(statement) == (name,)
    assert not ends_transaction(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1",
        "SELECT 'COMMIT'",
        "INSERT INTO endings VALUES (1)",
        "PREPARE x AS SELECT",
        "/* a */ SELECT CASE WHEN a THEN 1 ELSE 0 /* b */ END FROM c",
        "SELECT 'it''s ; COMMIT'",
        "SELECT E'it\\'s ; COMMIT'",
        'SELECT 1 AS "; COMMIT"',
        "DO $$ BEGIN PERFORM 1; END $$",
        "SELECT 1 -- ; COMMIT",
        "SELECT 1 /* ; COMMIT",
        "SELECT '; COMMIT",
        "CREATE FUNCTION a() RETURNS int BEGIN ATOMIC SELECT 1; END",
        "SELECT $1, $2; SELECT $1",
    ],
)
def test_other_statements_are_neither(statement: str) -> None:
    assert not ends_transaction(statement)
    assert savepoints_in(statement) == ()


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("", ()),
        (" ; ;", ()),
        ("SELECT 1", ("SELECT 1",)),
        ("-- a\nSELECT /* b */ 1 ; SET x = ';' -- c", ("SELECT   1", "SET x = ';'")),
        ("SELECT $tag$ a; $$ b $tag$; SELECT 2", ("SELECT $tag$ a; $$ b $tag$", "SELECT 2")),
        ("SELECT a$b$; SELECT c$b$", ("SELECT a$b$", "SELECT c$b$")),
        ("SELECT 1" + " " * 3_000 + "; SELECT 2", ("SELECT 1", "SELECT 2")),
    ],
)
def test_text_is_split_into_its_statements(text: str, statements: tuple[str, ...]) -> None:
    assert statements_in(text) == statements


def test_savepoints_of_several_statements_are_in_order() -> None:
    text = 'INSERT INTO a VALUES (1); SAVEPOINT "B"; DELETE FROM a; ROLLBACK TO c'
    assert savepoints_in(text) == ("B", "c")


@pytest.mark.parametrize(
    "text",
    [
        "/* a */" * 30_000 + "end",
        "--\n" * 30_000 + " commit " * 10_000,
        "/*" * 100_000 + "end",
        "SELECT 'end" + "''" * 100_000,
        "release " + " " * 100_000 + '"' + '"' * 100_001,
        " " * 100_000 + "rollback" + " " * 100_000 + "work",
        "$a$" * 50_000 + "end",
    ],
    ids=range(7),
)
def test_time_for_a_text_is_linear_in_its_length(text: str) -> None:
    began = time.process_time()
    ends_transaction(text)
    savepoints_in(text)
    assert time.process_time() - began < 1
