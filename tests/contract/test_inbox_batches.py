"""What every inbox store does with attempts that are started together, whatever the database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text

from shieldtx.errors import HandlerError, LeaseLost
from shieldtx.events import Envelope
from shieldtx.ports import Arrival, Receipt
from tests.contract.conftest import Stores
from tests.contract.test_inbox_stores import (
    GROUP,
    LEASE,
    begin,
    finish,
    may_begin,
    receive,
    record,
    rollback_of,
)
from tests.contract.test_outbox_stores import envelope

OVER = timedelta(microseconds=1)
"""A lease that has run out when anybody looks."""


def start(stores: Stores, *envelopes: Envelope, lease: timedelta | None = LEASE) -> Receipt:
    arrivals = [Arrival(envelope=e, record=record(n), lease=lease) for n, e in enumerate(envelopes)]
    return stores.inbox.receive(GROUP, arrivals, [])


def ids(attempts: Any) -> list[Any]:
    return [attempt.envelope.id for attempt in attempts]


def rows(stores: Stores) -> list[tuple[Any, ...]]:
    i = stores.tables.inbox.c
    with stores.engine.connect() as connection:
        found = connection.execute(
            select(i.status, i.attempts, i.together, i.lease_token.is_not(None)).order_by(i.seq)
        )
        return [tuple(row) for row in found]


IN_HAND = ("PROCESSING", 1, True, True)
RELEASED = ("PROCESSING", 0, False, False)
WAITING = ("INIT", 0, False, False)
DONE = ("PROCESSED", 1, False, False)


def test_a_batch_is_received_and_its_attempts_are_counted_under_one_token(stores: Stores) -> None:
    events = [envelope(key) for key in ("a", "b", None, None, "a")]
    receipt = start(stores, *events)
    assert ids(receipt.started) == [e.id for e in receipt.fresh] == [e.id for e in events]
    assert len({attempt.token for attempt in receipt.started}) == 1
    assert {attempt.number for attempt in receipt.started} == {1}
    assert rows(stores) == [IN_HAND] * 5
    assert stores.inbox.due(GROUP, limit=10) == []


def test_values_of_every_kind_survive_the_way_into_the_table(stores: Stores) -> None:
    event = envelope(
        'k"e\\y,{}\n NULL',
        payload='{"a": "\\\\ \\" é {1,2} \\n"}',
        headers={"x-h": 'va"l\\ue'},
        traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        biz_key="NULL",
    )
    start(stores, event, lease=None)
    [received] = stores.inbox.due(GROUP, limit=10)
    assert received == event


def test_only_what_has_a_lease_is_started_and_it_holds_back_its_key(stores: Stores) -> None:
    alone, behind, other = envelope("a"), envelope("a"), envelope("b")
    arrivals = [
        Arrival(envelope=alone, record=record(0)),
        Arrival(envelope=behind, record=record(1), lease=LEASE),
        Arrival(envelope=other, record=record(2), lease=LEASE),
    ]
    receipt = stores.inbox.receive(GROUP, arrivals, [])
    assert ids(receipt.started) == [other.id]
    assert rows(stores) == [WAITING, WAITING, IN_HAND]


def test_what_waits_behind_an_open_row_of_its_key_is_not_started(stores: Stores) -> None:
    first, second, third = envelope("a"), envelope("a"), envelope("b")
    receive(stores, first)
    assert ids(start(stores, second, third).started) == [third.id]
    finish(stores, begin(stores, first))
    assert may_begin(stores, second)


def test_a_settled_row_holds_back_nobody_and_neither_do_other_groups_and_topics(
    stores: Stores,
) -> None:
    settled, elsewhere = envelope("a"), envelope("a", topic="others")
    receive(stores, settled)
    finish(stores, begin(stores, settled))
    receive(stores, elsewhere)
    receive(stores, envelope("a"), group="another")
    event = envelope("a")
    assert ids(start(stores, event).started) == [event.id]


def test_what_comes_again_is_started_once(stores: Stores) -> None:
    first, second = envelope("a"), envelope("a")
    receipt = start(stores, first, first, second)
    assert ids(receipt.started) == [first.id, second.id]
    assert receipt.duplicates == 1
    again = start(stores, first, second)
    assert (again.started, again.fresh, again.duplicates) == ([], [], 2)


def test_two_events_of_one_id_from_two_sources_are_not_in_one_batch(stores: Stores) -> None:
    event = envelope("a")
    other = event.evolve(source="elsewhere", key="b")
    receipt = start(stores, event, other)
    assert [attempt.envelope.source for attempt in receipt.started] == [event.source]
    with stores.inbox.effects(receipt.started):
        pass
    assert rows(stores) == [DONE, WAITING]


def test_effects_are_committed_with_the_status_of_all(stores: Stores) -> None:
    receipt = start(stores, *(envelope(f"k{n}") for n in range(3)))
    with stores.inbox.effects(receipt.started) as session:
        session.execute(text("CREATE TABLE effect (n int)"))
        session.execute(text("INSERT INTO effect VALUES (1)"))
    assert rows(stores) == [DONE] * 3
    with stores.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM effect")) == 1


def test_an_error_leaves_all_of_them_as_they_were(stores: Stores) -> None:
    receipt = start(stores, envelope("a"), envelope("b"))
    with pytest.raises(ArithmeticError), stores.inbox.effects(receipt.started):
        raise ArithmeticError
    assert rows(stores) == [IN_HAND] * 2


def test_one_row_that_was_taken_over_keeps_all_effects_away(stores: Stores) -> None:
    taken, kept = envelope("a"), envelope("b")
    receipt = start(stores, taken, kept, lease=OVER)
    begin(stores, taken)
    with pytest.raises(LeaseLost, match="1 of 2 events"), stores.inbox.effects(receipt.started):
        raise AssertionError("no handler may run")
    assert rows(stores) == [("PROCESSING", 1, False, True), IN_HAND]


def test_who_takes_a_row_over_from_a_batch_does_not_count_it_again_but_the_next_time(
    stores: Stores,
) -> None:
    event = envelope("a")
    start(stores, event, lease=OVER)
    assert (begin(stores, event, most=1, lease=OVER).exhausted) is False
    assert rows(stores) == [("PROCESSING", 1, False, True)]
    assert begin(stores, event, most=1).exhausted


def test_a_released_row_has_its_attempt_back_and_is_due(stores: Stores) -> None:
    first, second = envelope("a"), envelope("b")
    receipt = start(stores, first, second)
    stores.inbox.release(receipt.started[:1])
    assert rows(stores) == [RELEASED, IN_HAND]
    assert [e.id for e in stores.inbox.due(GROUP, limit=10)] == [first.id]
    assert begin(stores, first).number == 1


def test_releasing_leaves_alone_what_is_done_or_taken_over(stores: Stores) -> None:
    done, taken = envelope("a"), envelope("b")
    receipt = start(stores, done, taken, lease=OVER)
    with stores.inbox.effects(receipt.started[:1]):
        pass
    begin(stores, taken)
    stores.inbox.release(receipt.started)
    stores.inbox.release([])
    assert rows(stores) == [DONE, ("PROCESSING", 1, False, True)]


def test_an_attempt_of_a_batch_can_fail_by_itself(stores: Stores) -> None:
    postponed, given_up = envelope("a"), envelope("b")
    one, other = start(stores, postponed, given_up).started
    assert stores.inbox.postpone(one, delay=timedelta(0), reason="not yet")
    assert stores.inbox.give_up(other, reason="never", also=None)
    assert rows(stores) == [
        ("PROCESSING", 1, False, False),
        ("MAX_RECONSUMED", 1, False, False),
    ]
    # Its attempt was its own: the next one counts.
    assert begin(stores, postponed).number == 2


def test_a_rollback_holds_back_a_batch_until_its_turn_has_come(stores: Stores) -> None:
    event = envelope("a", source="elsewhere")
    rollback, next_ = rollback_of(event), envelope("a")
    receive(stores, rollback)
    assert start(stores, next_).started == []
    attempt = begin(stores, rollback)
    with stores.inbox.effect(attempt) as session:
        assert stores.inbox.fence(session, attempt)
    assert may_begin(stores, next_)


@pytest.mark.parametrize("way", ["session", "connection"])
def test_nobody_commits_in_the_middle_of_a_batch(stores: Stores, way: str) -> None:
    receipt = start(stores, envelope("a"), envelope("b"))
    with (
        pytest.raises(HandlerError, match="leave commit"),
        stores.inbox.effects(receipt.started) as session,
    ):
        (session if way == "session" else session.connection()).commit()
    assert rows(stores) == [IN_HAND] * 2


def test_a_savepoint_may_be_committed_in_a_batch(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with stores.inbox.effects(receipt.started) as session:
        with session.begin_nested():
            session.execute(text("SELECT 1"))
        stores.inbox.clear(session)
    assert rows(stores) == [DONE]


def test_a_transaction_that_was_rolled_back_is_noticed(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with stores.inbox.effects(receipt.started) as session:
        session.rollback()
        with pytest.raises(HandlerError, match="leave commit"):
            stores.inbox.clear(session)
    assert rows(stores) == [IN_HAND]
