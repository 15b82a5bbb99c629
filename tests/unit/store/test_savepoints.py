"""Savepoints by their statements: which are open around a handler's effect, and what undoes it."""

from __future__ import annotations

import pytest

from shieldtx.store.savepoints import Savepoints


@pytest.mark.parametrize(
    ("before", "after", "is_undone"),
    [
        ([], [], False),
        ([], ["SAVEPOINT a", "ROLLBACK TO a"], False),
        (["SAVEPOINT a"], ["INSERT INTO a VALUES (1)", "RELEASE a"], False),
        (["SAVEPOINT a"], ["ROLLBACK TO SAVEPOINT a"], True),
        (["savepoint A"], ['rollback work to savepoint "a"'], True),
        (["SAVEPOINT a"], ["ROLLBACK TRANSACTION TO a"], True),
        (["/* by a tool */ SAVEPOINT a"], ["-- by a tool\nROLLBACK TO a"], True),
        (['SAVEPOINT "A"'], ["ROLLBACK TO a"], False),
        (["SAVEPOINT a"], ["ROLLBACK TO elsewhere"], False),
        (["SAVEPOINT a"], ["SAVEPOINT a", "ROLLBACK TO a"], False),
        (["SAVEPOINT a"], ["SAVEPOINT a", "RELEASE SAVEPOINT a", "ROLLBACK TO a"], True),
        (["SAVEPOINT a", "SAVEPOINT b"], ["RELEASE b", "ROLLBACK TO a"], True),
        (["SAVEPOINT a", "SAVEPOINT b"], ["RELEASE b", "SAVEPOINT c", "ROLLBACK TO c"], False),
        (["SAVEPOINT a", "ROLLBACK TO a"], [], False),
        (["SAVEPOINT a", "SAVEPOINT b", "ROLLBACK TO a"], ["ROLLBACK TO b"], False),
        (["SAVEPOINT a", "RELEASE a"], ["ROLLBACK TO a"], False),
    ],
)
def test_what_undoes_an_effect(before: list[str], after: list[str], is_undone: bool) -> None:
    savepoints = Savepoints()
    for statement in before:
        savepoints.note_statement(statement)
    savepoints.note_effect()
    for statement in after:
        savepoints.note_statement(statement)
    assert savepoints.is_effect_undone is is_undone


def test_the_effect_of_another_turn_is_not_undone() -> None:
    savepoints = Savepoints()
    savepoints.note_statement("SAVEPOINT a")
    savepoints.note_effect()
    savepoints.forget_effect()
    savepoints.note_statement("ROLLBACK TO a")
    assert not savepoints.is_effect_undone
