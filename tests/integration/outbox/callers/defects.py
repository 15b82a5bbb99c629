"""Deliberate defects of the write side, each of which some case has to detect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from sqlalchemy.orm import SessionTransaction

from shieldtx.outbox import outbox, session_buffer
from shieldtx.outbox.session_binding import SessionBinding
from shieldtx.outbox.session_buffer import SessionBuffer
from shieldtx.outbox.transaction_watch import TransactionWatch
from shieldtx.store.outbox_writer import SqlOutboxWriter
from shieldtx.store.transaction_marks import SqlTransactionMarks
from tests.integration.outbox.callers.cases import Mode

Patch = pytest.MonkeyPatch


def _nothing(*_: Any, **__: Any) -> None:
    """Stand in for a method that is left out."""


def _leaves_late_events_out_of_prepared_transactions(patch: Patch) -> None:
    patch.setattr(SessionBuffer, "on_prepare", _nothing)


def _commits_one_database_after_the_other(patch: Patch) -> None:
    patch.setattr(SessionBuffer, "_refuse_other_databases", _nothing)


def _does_not_hear_of_a_connections_commit(patch: Patch) -> None:
    patch.setattr(SessionBuffer, "on_connection_commit", _nothing)


def _forgets_late_events_silently(patch: Patch) -> None:
    sound = SessionBuffer.on_end

    def on_end(self: SessionBuffer, ended: SessionTransaction) -> None:
        self._committed = False
        sound(self, ended)

    _does_not_hear_of_a_connections_commit(patch)
    patch.setattr(SessionBuffer, "on_end", on_end)


def _keeps_the_events_of_a_savepoint_rolled_back(patch: Patch) -> None:
    sound = SessionBuffer.on_end

    def on_end(self: SessionBuffer, ended: SessionTransaction) -> None:
        if ended.parent is None:
            sound(self, ended)

    patch.setattr(SessionBuffer, "on_end", on_end)


def _takes_events_in_autocommit(patch: Patch) -> None:
    patch.setattr(SqlOutboxWriter, "examine", _nothing)


def _does_not_watch_the_drivers_transaction(patch: Patch) -> None:
    for method in ("on_wait", "on_statement", "check"):
        patch.setattr(TransactionWatch, method, _nothing)


def _does_not_mark_the_transaction(patch: Patch) -> None:
    patch.setattr(TransactionWatch, "_mark", _nothing)


def _believes_that_marks_are_there(patch: Patch) -> None:
    patch.setattr(TransactionWatch, "_compare", _nothing)


def _marks_nothing_in_blocks_of_the_driver(patch: Patch) -> None:
    patch.setattr(SqlTransactionMarks, "is_in_block", lambda *_: False)


def _takes_events_when_the_transaction_has_ended(patch: Patch) -> None:
    sound = SessionBuffer.admit
    _does_not_watch_the_drivers_transaction(patch)

    def admit(self: SessionBuffer, **how: bool) -> None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(session_buffer, "enclosing", lambda _: iter(()))
            sound(self, **how)

    patch.setattr(SessionBuffer, "admit", admit)


def _lets_the_events_of_asynchronous_listeners_wait(patch: Patch) -> None:
    patch.setattr(outbox, "in_greenlet", lambda: False)


def _writes_events_before_the_data_that_close_drops(patch: Patch) -> None:
    patch.setattr(SessionBuffer, "_flush_data", _nothing)


def _lets_events_wait_in_a_session_on_a_connection(patch: Patch) -> None:
    patch.setattr(SessionBinding, "is_shared", property(lambda self: False))


def _takes_an_insert_for_written_when_its_savepoint_is_rolled_back(patch: Patch) -> None:
    sound = SessionBuffer.on_end

    def on_end(self: SessionBuffer, ended: SessionTransaction) -> None:
        written = {id(entry): entry.written_in for entry in self._entries}
        sound(self, ended)
        for entry in self._entries:
            entry.written_in = written[id(entry)]

    patch.setattr(SessionBuffer, "on_end", on_end)


DEFECTS: Mapping[Callable[[Patch], None], Mode] = {
    _leaves_late_events_out_of_prepared_transactions: Mode.TWO_PHASE,
    _commits_one_database_after_the_other: Mode.BINDS,
    _does_not_hear_of_a_connections_commit: Mode.PLAIN,
    _forgets_late_events_silently: Mode.PLAIN,
    _keeps_the_events_of_a_savepoint_rolled_back: Mode.PLAIN,
    _takes_events_in_autocommit: Mode.PLAIN,
    _does_not_watch_the_drivers_transaction: Mode.PLAIN,
    _does_not_mark_the_transaction: Mode.PLAIN,
    _believes_that_marks_are_there: Mode.PLAIN,
    _marks_nothing_in_blocks_of_the_driver: Mode.PLAIN,
    _takes_events_when_the_transaction_has_ended: Mode.TWO_PHASE,
    _lets_the_events_of_asynchronous_listeners_wait: Mode.CREATE_SAVEPOINT,
    _writes_events_before_the_data_that_close_drops: Mode.ROLLBACK_ONLY,
    _lets_events_wait_in_a_session_on_a_connection: Mode.ROLLBACK_ONLY,
    _takes_an_insert_for_written_when_its_savepoint_is_rolled_back: Mode.PLAIN,
}
"""The name of each function is its defect; the mode is one in which the defect shows."""
