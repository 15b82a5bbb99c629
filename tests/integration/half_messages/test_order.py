"""Half messages among the claims: found after their commit, in the order of their commits."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from sqlalchemy import Connection, Update, create_engine, text, update

from shieldtx import LocalOutcome, OutboxStatus
from shieldtx.ports.half_messages import CheckSchedule, NewHalfMessage
from shieldtx.ports.relay import Settlement
from shieldtx.store.dialects import PostgresDialect
from shieldtx.store.half_messages import HalfMessageOutcomes, SqlHalfMessageStore
from shieldtx.store.statements import half_messages as sql
from tests.conftest import Eventually
from tests.integration.relay.test_low_water_mark import SHARDS, Line, Play, _envelope


@pytest.fixture
def line(undisturbed_url: str) -> Iterator[Line]:
    engine = create_engine(undisturbed_url, pool_size=20)
    yield Line(engine)
    engine.dispose()


def half_message_store(line: Line) -> SqlHalfMessageStore:
    return SqlHalfMessageStore(line.engine, line.tables, shards=SHARDS, plan=CheckSchedule())


def prepare(line: Line, key: str) -> UUID:
    envelope = _envelope(key)
    half_message_store(line).prepare([NewHalfMessage(envelope=envelope)])
    return envelope.id


def begin_commit(line: Line, half: UUID) -> Connection:
    """Commit a half message in a transaction that stays open."""
    connection = line.engine.connect()
    outcomes = HalfMessageOutcomes(line.tables, PostgresDialect())
    outcomes.lock(connection, [half])
    outcomes.write(connection, [half], OutboxStatus.HALF, LocalOutcome.COMMIT)
    return connection


def number_of(line: Line, event_id: UUID) -> int:
    query = text("SELECT seq FROM shield_outbox WHERE event_id = :id")
    with line.engine.connect() as connection:
        return int(connection.execute(query, {"id": event_id}).scalar_one())


def test_late_commit_is_found_after_the_mark_passed_its_prepare(line: Line) -> None:
    half = prepare(line, "k")
    mark = line.let_the_mark_follow()
    assert mark > number_of(line, half)
    half_message_store(line).resolve([half], LocalOutcome.COMMIT)
    assert line.mark > 0, "the next claim does not look from the beginning"
    assert number_of(line, half) > mark
    assert line.take() == [half]


def test_half_messages_do_not_stop_the_mark(line: Line) -> None:
    prepare(line, "k")
    assert line.let_the_mark_follow() > 0


def test_commit_in_flight_keeps_the_mark_before_it(line: Line) -> None:
    half = prepare(line, "k")
    slow = begin_commit(line, half)
    line.let_the_mark_follow()
    slow.commit()
    slow.close()
    [second] = line.write("k")
    assert line.take() == [half, second]


def test_commit_after_a_rolled_back_commit_gets_a_new_number(line: Line) -> None:
    half = prepare(line, "k")
    first = begin_commit(line, half)
    first.rollback()
    first.close()
    [written] = line.write("k")
    half_message_store(line).resolve([half], LocalOutcome.COMMIT)
    assert line.take() == [written, half]


def test_a_commit_call_takes_its_number_after_a_lock_wait(
    line: Line, eventually: Eventually
) -> None:
    half = prepare(line, "k")
    with line.engine.connect() as other, ThreadPoolExecutor(1) as thread:
        HalfMessageOutcomes(line.tables, PostgresDialect()).lock(other, [half])
        word = thread.submit(half_message_store(line).resolve, [half], LocalOutcome.COMMIT)
        eventually(lambda: waits_for_a_lock(line), "the word waits")
        [written] = line.write("k")
        other.rollback()
        assert word.result(30) == {half: OutboxStatus.HALF}
    assert line.take() == [written, half]


def waits_for_a_lock(line: Line) -> bool:
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock' AND wait_event = 'transactionid'"
    )
    with line.engine.connect() as connection:
        return connection.scalar(text(query)) == 1


def test_a_row_released_after_its_commit_precedes_later_rows(line: Line) -> None:
    half = prepare(line, "k")
    half_message_store(line).resolve([half], LocalOutcome.COMMIT)
    [second] = line.write("k")
    claim = line.claim(limit=1)
    assert [c.envelope.id for c in claim.events] == [half]
    line.store.settle(claim.token, Settlement(unsent=[half]))
    assert line.take() == [half, second]


def test_claims_next_to_half_messages_write_no_index_entry(
    line: Line, eventually: Eventually
) -> None:
    for key in "abc":
        prepare(line, key)
    line.write(*"abcdefgh")
    assert len(line.claim().events) == 8
    # A connection reports its statistics when it closes.
    line.engine.dispose()
    query = text(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'shield_outbox'"
    )

    def updates() -> tuple[int, int]:
        with line.engine.connect() as connection:
            updated, hot = connection.execute(query).one()
            return updated, hot

    eventually(lambda: updates()[0] == 8, "the claim is counted")
    assert updates() == (8, 8)


class HalfPlay(Play):
    """Also prepares half messages, and commits them in transactions that stay open for a while."""

    def __init__(self, line: Line, seed: int) -> None:
        super().__init__(line, seed)
        self._half_messages: list[tuple[str, UUID]] = []
        self.committed: list[UUID] = []

    def begin(self) -> None:
        way = self._draw.random()
        if way < 0.3:
            key = self._draw.choice("abcd")
            self._half_messages.append((key, prepare(self._line, key)))
        elif way < 0.65:
            self._begin_commit()
        else:
            super().begin()

    def _begin_commit(self) -> None:
        busy = {key for _, keys, _ in self._open for key in keys}
        free = [half for half in self._half_messages if half[0] not in busy]
        if free and len(self._open) < 3:
            half = self._draw.choice(free)
            self._half_messages.remove(half)
            key, event_id = half
            self.committed.append(event_id)
            self._open.append((begin_commit(self._line, event_id), [key], [event_id]))


@pytest.mark.parametrize("seed", range(8))
def test_events_and_half_messages_never_overtake_each_other(line: Line, seed: int) -> None:
    play = HalfPlay(line, seed)
    assert play.overtaken() == []
    assert any(half in sent for half in play.committed for sent in play._sent.values())


def test_commit_that_keeps_its_prepare_number_is_detected(line: Line) -> None:
    right = sql.commit

    def careless(*arguments: Any, **more: Any) -> Update:
        statement = right(*arguments, **more)
        others = {c: v for c, v in statement._values.items() if getattr(c, "name", c) != "seq"}
        return update(statement.table).where(statement.whereclause).values(others)

    alone = inspect.unwrap(sql.commit_alone)
    with patch.multiple(sql, commit=careless, commit_alone=alone):
        assert any(HalfPlay(line, seed).overtaken() for seed in range(8))
