"""The state that statements leave in a session, recognized by their text."""

from __future__ import annotations

from typing import Any

import pytest

from shieldtx.store.residual_state import ResidualState, residual_state_of

NOTHING, IN_TRANSACTION, IN_SESSION = ResidualState


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        ("SELECT 1", NOTHING),
        ("UPDATE orders SET paid = true", NOTHING),
        ("INSERT INTO readings (temp, settings) VALUES (1, 'set local')", NOTHING),
        ("INSERT INTO temp SELECT * FROM readings", NOTHING),
        ("SELECT pg_advisory_xact_lock(1)", NOTHING),
        ("SAVEPOINT sa_savepoint_12", NOTHING),
        ("-- set local\nSELECT 1", NOTHING),
        ("SET LOCAL lock_timeout = 1", IN_TRANSACTION),
        ("set transaction read only", IN_TRANSACTION),
        ("\n  SET CONSTRAINTS ALL DEFERRED", IN_TRANSACTION),
        ("SAVEPOINT mine", IN_TRANSACTION),
        ("DECLARE mine CURSOR FOR SELECT 1", IN_TRANSACTION),
        ("CREATE TEMP TABLE t (n int) ON COMMIT\n DROP", IN_TRANSACTION),
        ("SELECT set_config('a.b', 'c', true)", IN_TRANSACTION),
        ("/* set */ SET search_path TO a", IN_SESSION),
        ("SELECT '--', set_config('a.b', 'c', false)", IN_SESSION),
        ("SET LOCAL a.b = 1; SET a.b = 1", IN_SESSION),
        ("RESET ALL", IN_SESSION),
        ("LISTEN a", IN_SESSION),
        ("DECLARE mine CURSOR WITH HOLD FOR SELECT 1", IN_SESSION),
        ("CREATE TEMPORARY TABLE t (n int) ON COMMIT DELETE ROWS", IN_SESSION),
        ("create local temp view t as select 1", IN_SESSION),
        ("CREATE OR REPLACE TEMP VIEW t AS SELECT 1", IN_SESSION),
        ("CREATE /* a\nb */ TEMP TABLE t (n int)", IN_SESSION),
        ("SELECT 1 INTO TEMPORARY t", IN_SESSION),
        ("CREATE TABLE pg_temp.t (n int)", IN_SESSION),
        ("SELECT pg_try_advisory_lock(1)", IN_SESSION),
        ("SELECT set_config('a.b', 'c', true), set_config('a.b', 'c', false)", IN_SESSION),
        ("SET a.b = 1; SELECT set_config('a.b', 'c', true)", IN_SESSION),
        # The tags of dollar quotes are case-sensitive.
        ("SELECT $A$ $a$ $A$; SET search_path = a", IN_SESSION),
    ],
)
def test_statement_is_recognized_by_its_text(statement: str, left: ResidualState) -> None:
    assert residual_state_of(statement, {}) is left
    longer = f"{statement}{' ' * 3000}"
    assert residual_state_of(longer, {}) is left


@pytest.mark.parametrize(
    ("parameters", "left"),
    [
        ({"value": "c", "local": True}, IN_TRANSACTION),
        (("c", True), IN_TRANSACTION),
        ({"value": "c", "local": False}, IN_SESSION),
        ((True, False), IN_SESSION),
        ([{"local": True}, {"local": False}], IN_SESSION),
        (None, IN_SESSION),
        ((1,), IN_SESSION),
    ],
)
def test_setting_is_local_by_its_parameters(parameters: Any, left: ResidualState) -> None:
    assert residual_state_of("SELECT set_config(%s, %s, %s)", parameters) is left
