"""The behaviour of every inbox store for attempts that are started together, on each database."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.event import listen
from sqlalchemy.orm import Session

from shieldtx.domain.events import Envelope
from shieldtx.errors import HandlerError, LeaseLost
from shieldtx.ports.inbox import IncomingEvent, Parked, Receipt
from shieldtx.store.dialects import dialect_of
from shieldtx.store.inbox_receiver import InboxReceiver
from tests.contract.conftest import POSTGRESQL, Stores
from tests.contract.store.test_inbox import (
    GROUP,
    HANDLED,
    LEASE,
    begin,
    finish,
    may_begin,
    receive,
    record,
    rollback_of,
)
from tests.contract.store.test_outbox import envelope

OVER = timedelta(microseconds=1)
"""A lease that has expired before the next statement."""


SOMEBODY_WAITS = """
    SELECT count(*) > 0 FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


def arrivals_of(*envelopes: Envelope, lease: timedelta | None = LEASE) -> list[IncomingEvent]:
    return [
        IncomingEvent(envelope=e, record=record(n), lease=lease) for n, e in enumerate(envelopes)
    ]


def start(stores: Stores, *envelopes: Envelope, lease: timedelta | None = LEASE) -> Receipt:
    return stores.inbox.receive(GROUP, arrivals_of(*envelopes, lease=lease), [])


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


def refuse(stores: Stores, event: Envelope) -> None:
    """Let the database refuse the row of an event, as for its content."""
    inbox = stores.tables.inbox
    if stores.engine.dialect.name == "postgresql":
        statements = [
            f"""
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF new.event_id = '{event.id}' THEN
                    RAISE EXCEPTION 'not this one'
                    USING ERRCODE = 'check_violation', DETAIL = 'what the row holds';
                END IF;
                RETURN new;
            END $$""",
            f"""
            CREATE TRIGGER refuse BEFORE INSERT ON {inbox.fullname}
            FOR EACH ROW EXECUTE FUNCTION refuse()""",
        ]
    else:
        statements = [
            f"""
            CREATE TRIGGER refuse BEFORE INSERT ON {inbox.name}
            WHEN new.event_id = '{event.id.hex}'
            BEGIN SELECT raise(ABORT, 'not this one'); END"""
        ]
    with stores.engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def test_only_the_refused_record_of_a_batch_is_parked(
    stores: Stores,
) -> None:
    events = [envelope(f"k{n}") for n in range(7)]
    refuse(stores, events[4])
    arrivals = [
        IncomingEvent(envelope=e, record=record(n), lease=LEASE) for n, e in enumerate(events)
    ]
    unfit = Parked(record=record(50), reason="no event")
    receipt = stores.inbox.receive(GROUP, arrivals, [unfit])
    others = [e.id for e in events if e is not events[4]]
    assert [e.id for e in receipt.fresh] == ids(receipt.started) == others
    assert (len(receipt.parked), receipt.duplicates) == (2, 0)
    p = stores.tables.parked.c
    with stores.engine.connect() as connection:
        kept = connection.execute(select(p.record_offset, p.reason).order_by(p.record_offset)).all()
    # The error text of a PostgreSQL function may quote the row.
    errors = {
        "postgresql": "CheckViolation, whose text is left out (SQLSTATE 23514)",
        "sqlite": "not this one",
    }[stores.engine.dialect.name]
    assert [tuple(row) for row in kept] == [
        (4, f"the inbox refuses it: IntegrityError: {errors}"),
        (50, "no event"),
    ]


def test_attempts_of_a_batch_are_counted_under_one_token(stores: Stores) -> None:
    events = [envelope(key) for key in ("a", "b", None, None, "a")]
    receipt = start(stores, *events)
    assert ids(receipt.started) == [e.id for e in receipt.fresh] == [e.id for e in events]
    assert len({attempt.token for attempt in receipt.started}) == 1
    assert {attempt.number for attempt in receipt.started} == {1}
    assert rows(stores) == [IN_HAND] * 5
    assert stores.inbox.due(GROUP, handled=HANDLED, limit=10) == []


def test_values_of_every_kind_are_stored_unchanged(stores: Stores) -> None:
    event = envelope(
        'k"e\\y,{}\n NULL',
        payload='{"a": "\\\\ \\" é {1,2} \\n"}',
        headers={"x-h": 'va"l\\ue'},
        traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        biz_key="NULL",
    )
    start(stores, event, lease=None)
    [received] = stores.inbox.due(GROUP, handled=HANDLED, limit=10)
    assert received == event


@pytest.mark.parametrize("mebibytes", [(9, 1, 4, 5, 1), (4, 5, 1, 8, 1)])
def test_a_batch_of_many_bytes_is_stored_whole_in_a_few_parts(
    stores: Stores, mebibytes: Sequence[int]
) -> None:
    large = [
        envelope(f"k{n}").evolve(payload=json.dumps("x" * (size << 20)))
        for n, size in enumerate(mebibytes)
    ]
    inserts: list[str] = []

    def count(_connection: Any, _cursor: Any, statement: str, *_how: Any) -> None:
        if "INSERT INTO shield_inbox" in statement:
            inserts.append(statement)

    listen(stores.engine, "before_cursor_execute", count)
    receipt = start(stores, *large)
    assert [event.id for event in receipt.fresh] == [event.id for event in large]
    assert (receipt.duplicates, len(rows(stores)), len(inserts)) == (0, len(large), 3)


def test_only_arrivals_with_a_lease_are_started_in_key_order(stores: Stores) -> None:
    alone, behind, other = envelope("a"), envelope("a"), envelope("b")
    arrivals = [
        IncomingEvent(envelope=alone, record=record(0)),
        IncomingEvent(envelope=behind, record=record(1), lease=LEASE),
        IncomingEvent(envelope=other, record=record(2), lease=LEASE),
    ]
    receipt = stores.inbox.receive(GROUP, arrivals, [])
    assert ids(receipt.started) == [other.id]
    assert rows(stores) == [WAITING, WAITING, IN_HAND]


def test_event_after_an_open_row_of_its_key_is_not_started(stores: Stores) -> None:
    first, second, third = envelope("a"), envelope("a"), envelope("b")
    receive(stores, first)
    assert ids(start(stores, second, third).started) == [third.id]
    finish(stores, begin(stores, first))
    assert may_begin(stores, second)


def test_settled_rows_and_other_groups_and_topics_block_no_row(
    stores: Stores,
) -> None:
    settled, elsewhere = envelope("a"), envelope("a", topic="others")
    receive(stores, settled)
    finish(stores, begin(stores, settled))
    receive(stores, elsewhere)
    receive(stores, envelope("a"), group="another")
    event = envelope("a")
    assert ids(start(stores, event).started) == [event.id]


@pytest.mark.parametrize("stores", [POSTGRESQL], indirect=True)
def test_batch_that_waited_for_another_overtakes_no_event(
    stores: Stores, eventually: Callable[..., None]
) -> None:
    both, first, second = envelope(None), envelope("a"), envelope("a")
    receiver = InboxReceiver(stores.tables, dialect_of(stores.engine.dialect))

    def is_waiting() -> bool:
        with stores.engine.connect() as another:
            return bool(another.scalar(text(SOMEBODY_WAITS)))

    with ThreadPoolExecutor(1) as beside, stores.engine.connect() as connection:
        earlier = receiver.receive(connection, GROUP, arrivals_of(both, first), [])
        receiving = beside.submit(start, stores, both, second)
        eventually(is_waiting, "the second batch waits for the first")
        connection.commit()
        later = receiving.result()
    assert ids(earlier.started) == [both.id, first.id]
    assert [e.id for e in later.fresh] == [second.id]
    assert later.started == []
    assert rows(stores) == [IN_HAND, IN_HAND, RELEASED]


def test_redelivered_event_is_started_once(stores: Stores) -> None:
    first, second = envelope("a"), envelope("a")
    receipt = start(stores, first, first, second)
    assert ids(receipt.started) == [first.id, second.id]
    assert receipt.duplicates == 1
    again = start(stores, first, second)
    assert (again.started, again.fresh, again.duplicates) == ([], [], 2)


def test_events_of_one_id_from_two_sources_share_no_batch(stores: Stores) -> None:
    event = envelope("a")
    other = event.evolve(source="elsewhere", key="b")
    receipt = start(stores, event, other)
    assert [attempt.envelope.source for attempt in receipt.started] == [event.source]
    with stores.inbox.effects(receipt.started):
        pass
    assert rows(stores) == [DONE, WAITING]


@pytest.mark.begun_by_hand
def test_effects_are_committed_with_the_status_of_all(stores: Stores) -> None:
    receipt = start(stores, *(envelope(f"k{n}") for n in range(3)))
    with stores.inbox.effects(receipt.started) as session:
        session.execute(text("CREATE TABLE effect (n int)"))
        session.execute(text("INSERT INTO effect VALUES (1)"))
    assert rows(stores) == [DONE] * 3
    with stores.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM effect")) == 1


@pytest.mark.begun_by_hand
def test_error_leaves_all_rows_of_a_batch_unchanged(stores: Stores) -> None:
    receipt = start(stores, envelope("a"), envelope("b"))
    with pytest.raises(ArithmeticError), stores.inbox.effects(receipt.started):
        raise ArithmeticError
    assert rows(stores) == [IN_HAND] * 2


def test_one_row_taken_over_prevents_all_effects_of_a_batch(stores: Stores) -> None:
    taken, kept = envelope("a"), envelope("b")
    receipt = start(stores, taken, kept, lease=OVER)
    begin(stores, taken)
    with pytest.raises(LeaseLost, match="1 of 2 events"), stores.inbox.effects(receipt.started):
        raise AssertionError("no handler may run")
    assert rows(stores) == [("PROCESSING", 1, False, True), IN_HAND]


def test_first_takeover_from_a_batch_is_not_counted_again(
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
    assert [e.id for e in stores.inbox.due(GROUP, handled=HANDLED, limit=10)] == [first.id]
    assert begin(stores, first).number == 1


def test_release_leaves_settled_and_taken_over_rows_unchanged(stores: Stores) -> None:
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
    assert stores.inbox.give_up(other, reason="never", in_transaction=None)
    assert rows(stores) == [
        ("PROCESSING", 1, False, False),
        ("MAX_RECONSUMED", 1, False, False),
    ]
    # The event had an attempt of its own: the next one counts.
    assert begin(stores, postponed).number == 2


def test_rollback_blocks_a_batch_until_it_is_processed(stores: Stores) -> None:
    event = envelope("a", source="elsewhere")
    rollback, next_ = rollback_of(event), envelope("a")
    receive(stores, rollback)
    assert start(stores, next_).started == []
    attempt = begin(stores, rollback)
    with stores.inbox.effect(attempt) as session:
        assert stores.inbox.fence(session, attempt)
    assert may_begin(stores, next_)


END_IT: dict[str, Callable[[Session], object]] = {
    "session": lambda session: session.commit(),
    "connection": lambda session: session.connection().commit(),
    "commit": lambda session: session.execute(text("COMMIT")),
    "rollback": lambda session: session.execute(text("  rollback;")),
    "end": lambda session: session.connection().exec_driver_sql("END"),
    "commented": lambda session: session.execute(text("/* a */ -- b\n ; COMMIT")),
}
"""The ways in which a handler may end the guarded transaction."""


@pytest.mark.begun_by_hand
@pytest.mark.parametrize("way", END_IT)
def test_a_handler_cannot_commit_in_the_middle_of_a_batch(stores: Stores, way: str) -> None:
    receipt = start(stores, envelope("a"), envelope("b"))
    with (
        pytest.raises(HandlerError, match="leave commit"),
        stores.inbox.effects(receipt.started) as session,
    ):
        END_IT[way](session)
    assert rows(stores) == [IN_HAND] * 2


@pytest.mark.begun_by_hand
@pytest.mark.parametrize("way", END_IT)
def test_a_handler_cannot_commit_in_the_middle_of_an_effect(stores: Stores, way: str) -> None:
    event = envelope("a")
    receive(stores, event)
    with (
        pytest.raises(HandlerError, match="leave commit"),
        stores.inbox.effect(begin(stores, event)) as session,
    ):
        END_IT[way](session)
    assert rows(stores) == [("PROCESSING", 1, False, True)]


def effect_of_one(stores: Stores, *, together: bool) -> AbstractContextManager[Session]:
    """Return the transaction of one event's effect: of a batch, or of a single attempt."""
    event = envelope("a")
    if together:
        return stores.inbox.effects(start(stores, event).started)
    receive(stores, event)
    return stores.inbox.effect(begin(stores, event))


@pytest.mark.begun_by_hand
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("way", ["commit", "rollback", "end"])
def test_handler_after_a_refused_statement_loses_no_rows(
    stores: Stores, way: str, together: bool
) -> None:
    effect = effect_of_one(stores, together=together)
    with stores.engine.begin() as connection:
        connection.execute(text("CREATE TABLE ledger (part TEXT)"))
    with effect as session:
        session.execute(text("INSERT INTO ledger VALUES ('before')"))
        with suppress(HandlerError):
            END_IT[way](session)
        session.execute(text("INSERT INTO ledger VALUES ('after')"))
        stores.inbox.reset_session(session)
    assert rows(stores) == [DONE]
    with stores.engine.connect() as connection:
        ledger = connection.execute(text("SELECT part FROM ledger ORDER BY part")).all()
    assert [part for (part,) in ledger] == ["after", "before"]


@pytest.mark.begun_by_hand
@pytest.mark.parametrize("way", ["session", "connection"])
def test_handler_that_continues_after_a_refused_commit_fails(stores: Stores, way: str) -> None:
    event = envelope("a")
    receive(stores, event)
    attempt = begin(stores, event)

    def go_on() -> None:
        with stores.inbox.effect(attempt) as session:
            with suppress(HandlerError):
                END_IT[way](session)
            stores.inbox.reset_session(session)

    with pytest.raises(HandlerError, match="leave commit"):
        go_on()
    assert rows(stores) == [("PROCESSING", 1, False, True)]


@pytest.mark.begun_by_hand
@pytest.mark.parametrize("way", ["all", "nested", "words"])
def test_a_savepoint_may_be_rolled_back_in_an_effect(stores: Stores, way: str) -> None:
    event = envelope("a")
    receive(stores, event)
    with stores.inbox.effect(begin(stores, event)) as session:
        if way == "words":
            for words in ("SAVEPOINT here", "ROLLBACK TO SAVEPOINT here"):
                session.execute(text(words))
        else:
            point = session.begin_nested()
            point.rollback() if way == "all" else point.commit()
        stores.inbox.reset_session(session)
    assert rows(stores) == [DONE]


@pytest.mark.begun_by_hand
@pytest.mark.parametrize("way", ["savepoint", "words", "cursor"])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("is_undone", [False, True])
def test_effect_undone_after_the_handler_is_detected(
    stores: Stores, is_undone: bool, together: bool, way: str
) -> None:
    # The connection has the mark of another effect.
    with effect_of_one(stores, together=together) as session:
        stores.inbox.note_effect(session)
        stores.inbox.reset_session(session)

    def run(session: Session, words: str) -> None:
        (words_of(words)(session) if way == "cursor" else session.execute(text(words)))

    def work(effect: AbstractContextManager[Session]) -> None:
        with effect as session:
            if way == "savepoint":
                savepoint = session.begin_nested()
                session.execute(text("SELECT 1"))
                stores.inbox.note_effect(session)
                savepoint.rollback() if is_undone else savepoint.commit()
            else:
                run(session, "SAVEPOINT mine")
                stores.inbox.note_effect(session)
                run(session, "ROLLBACK TO mine" if is_undone else "RELEASE mine")
            stores.inbox.reset_session(session)

    event = envelope("b")
    if together:
        effect = stores.inbox.effects(start(stores, event).started)
    else:
        receive(stores, event)
        effect = stores.inbox.effect(begin(stores, event))
    with pytest.raises(HandlerError, match="rolled back") if is_undone else nullcontext():
        work(effect)


@pytest.mark.begun_by_hand
def test_a_savepoint_may_be_committed_in_a_batch(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with stores.inbox.effects(receipt.started) as session:
        with session.begin_nested():
            session.execute(text("SELECT 1"))
        stores.inbox.reset_session(session)
    assert rows(stores) == [DONE]


@pytest.mark.begun_by_hand
@pytest.mark.parametrize("way", ["commit", "rollback"])
@pytest.mark.parametrize("together", [False, True])
def test_a_transaction_that_the_driver_ended_is_noticed(
    stores: Stores, together: bool, way: str
) -> None:
    effect = effect_of_one(stores, together=together)

    def work() -> None:
        with effect as session:
            getattr(session.connection().connection.dbapi_connection, way)()
            stores.inbox.reset_session(session)

    with pytest.raises(HandlerError, match="leave commit"):
        work()


def words_of(word: str) -> Callable[[Session], object]:
    def by_cursor(session: Session) -> None:
        session.connection().connection.cursor().execute(word)

    return by_cursor


def by_driver(way: str) -> Callable[[Session], object]:
    return lambda session: getattr(session.connection().connection.dbapi_connection, way)()


PAST_SQLALCHEMY = {
    "COMMIT": words_of("COMMIT"),
    "ROLLBACK": words_of("ROLLBACK"),
    "commit": by_driver("commit"),
    "rollback": by_driver("rollback"),
}


@pytest.mark.begun_by_hand
@pytest.mark.parametrize("way", PAST_SQLALCHEMY)
@pytest.mark.parametrize("together", [False, True])
def test_effect_that_continues_after_a_driver_end_is_not_settled(
    stores: Stores, together: bool, way: str
) -> None:
    effect = effect_of_one(stores, together=together)
    with stores.engine.begin() as connection:
        connection.execute(text("CREATE TABLE ledger (part TEXT)"))

    def work() -> None:
        with effect as session:
            session.execute(text("INSERT INTO ledger VALUES ('before')"))
            PAST_SQLALCHEMY[way](session)
            session.execute(text("INSERT INTO ledger VALUES ('after')"))
            stores.inbox.reset_session(session)

    with pytest.raises(HandlerError, match="leave commit"):
        work()
    [(status, attempts, _, is_leased)] = rows(stores)
    assert (status, attempts, is_leased) == ("PROCESSING", 1, True)


@pytest.mark.begun_by_hand
@pytest.mark.parametrize("way", PAST_SQLALCHEMY)
def test_compensation_after_a_driver_end_is_not_settled(stores: Stores, way: str) -> None:
    event = envelope("a")
    rollback = rollback_of(event)
    receive(stores, rollback)
    attempt = begin(stores, rollback)

    def work() -> None:
        with stores.inbox.effect(attempt) as session:
            stores.inbox.mark_compensated(session, attempt)
            PAST_SQLALCHEMY[way](session)
            session.execute(text("DELETE FROM shield_parked"))
            stores.inbox.reset_session(session)

    with pytest.raises(HandlerError, match="leave commit"):
        work()
    assert rows(stores) == [("PROCESSING", 1, False, True)]
    i = stores.tables.inbox
    with stores.engine.connect() as connection:
        found = connection.execute(select(i.c.compensated_id, i.c.settled_at)).one()
    assert found == (None, None)


@pytest.mark.begun_by_hand
def test_a_transaction_that_was_rolled_back_is_noticed(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with (
        pytest.raises(HandlerError, match="leave commit"),
        stores.inbox.effects(receipt.started) as session,
    ):
        session.rollback()
    assert rows(stores) == [IN_HAND]


class Undone(Exception):
    """Ends a transaction without an effect."""


@contextmanager
def undone(stores: Stores) -> Iterator[Session]:
    """The transaction of a batch, which is rolled back at its end."""
    with suppress(Undone), effect_of_one(stores, together=True) as session:
        yield session
        raise Undone


@pytest.mark.begun_by_hand
@pytest.mark.parametrize("way", END_IT)
def test_a_refused_commit_raises_where_it_is_called(stores: Stores, way: str) -> None:
    with undone(stores) as session, pytest.raises(HandlerError, match="leave commit"):
        END_IT[way](session)
    assert rows(stores) == [IN_HAND]


def roll_back_the_connection(session: Session) -> None:
    transaction = session.connection().get_transaction()
    assert transaction is not None
    transaction.rollback()


def roll_back_the_connection_and_go_on(session: Session) -> None:
    connection = session.connection()
    roll_back_the_connection(session)
    connection.execute(text("DELETE FROM shield_parked"))


BROKEN: dict[str, Callable[[Session], object]] = {
    "COMMIT": words_of("COMMIT"),
    "driver": by_driver("commit"),
    "session": lambda session: session.rollback(),
    "connection": roll_back_the_connection,
    "connection-goes-on": roll_back_the_connection_and_go_on,
}


@pytest.mark.begun_by_hand
@pytest.mark.parametrize("way", BROKEN)
def test_ended_transaction_is_not_given_to_another_handler(stores: Stores, way: str) -> None:
    with undone(stores) as session:
        BROKEN[way](session)
        with pytest.raises(HandlerError, match="leave commit"):
            stores.inbox.reset_session(session)
    assert rows(stores) == [IN_HAND]


def write(session: Session, number: int) -> None:
    session.execute(text("INSERT INTO effect VALUES (:n)"), {"n": number})


def effects_of(stores: Stores) -> list[int]:
    with stores.engine.connect() as connection:
        return list(connection.scalars(text("SELECT n FROM effect ORDER BY n")))


def ends_of(stores: Stores) -> list[tuple[Any, ...]]:
    i = stores.tables.inbox.c
    with stores.engine.connect() as connection:
        found = connection.execute(
            select(
                *(i.status, i.last_error, i.lease_token, i.together, i.settled_at.is_not(None))
            ).order_by(i.seq)
        )
        return [tuple(row) for row in found]


@pytest.fixture
def effect_table(stores: Stores) -> None:
    with stores.engine.begin() as connection:
        connection.execute(text("CREATE TABLE effect (n int)"))


@pytest.mark.usefixtures("effect_table")
@pytest.mark.begun_by_hand
def test_refused_attempts_of_a_batch_keep_their_own_reasons(stores: Stores) -> None:
    receipt = start(stores, *(envelope(f"k{n}") for n in range(5)))
    with stores.inbox.effects(receipt.started) as session:
        for number, attempt in enumerate(receipt.started):
            savepoint = stores.inbox.savepoint(session)
            write(session, number)
            if number % 2:
                assert savepoint.undo()
                stores.inbox.refuse(session, attempt, reason=f"no {number}: \x00 'ü' \\ %s :x")
            else:
                stores.inbox.reset_session(session)
                savepoint.release()
    assert effects_of(stores) == [0, 2, 4]
    refused = [
        ("MAX_RECONSUMED", f"no {n}: \N{REPLACEMENT CHARACTER} 'ü' \\ %s :x", None, False, True)
        for n in (1, 3)
    ]
    done = ("PROCESSED", None, None, False, True)
    assert ends_of(stores) == [done, refused[0], done, refused[1], done]


@pytest.mark.usefixtures("effect_table")
@pytest.mark.begun_by_hand
def test_batch_of_refusals_alone_settles_all_of_them(stores: Stores) -> None:
    receipt = start(stores, envelope("a"), envelope("b"), envelope("c"))
    with stores.inbox.effects(receipt.started) as session:
        for attempt in receipt.started[:2]:
            stores.inbox.refuse(session, attempt, reason="no")
        stores.inbox.settle_only(session, receipt.started[:2])
    assert [status for status, *_ in ends_of(stores)] == [*["MAX_RECONSUMED"] * 2, "PROCESSING"]


@pytest.mark.usefixtures("effect_table")
def test_error_after_a_refusal_takes_it_back(stores: Stores) -> None:
    receipt = start(stores, envelope("a"), envelope("b"))
    with suppress(ArithmeticError), stores.inbox.effects(receipt.started) as session:
        stores.inbox.refuse(session, receipt.started[0], reason="no")
        raise ArithmeticError
    assert rows(stores) == [IN_HAND] * 2


@pytest.mark.usefixtures("effect_table")
@pytest.mark.parametrize("way", ["released", "rolled back", "through the connection", "all"])
def test_handler_that_ends_the_savepoint_is_detected(stores: Stores, way: str) -> None:
    receipt = start(stores, envelope("a"), envelope("b"))
    with (
        suppress(HandlerError),
        stores.inbox.effects(receipt.started) as session,
    ):
        savepoint = stores.inbox.savepoint(session)
        write(session, 1)
        nested = session.get_nested_transaction()
        of_connection = session.connection().get_nested_transaction()
        assert nested is not None
        assert of_connection is not None
        if way == "all":
            session.rollback()
        else:
            {
                "released": nested.commit,
                "rolled back": nested.rollback,
                "through the connection": of_connection.rollback,
            }[way]()
        with pytest.raises(HandlerError, match="ended the transaction"):
            stores.inbox.reset_session(session)
        assert not savepoint.undo()
        raise HandlerError("as the executor does")
    assert rows(stores) == [IN_HAND] * 2
    assert effects_of(stores) == []


@pytest.mark.usefixtures("effect_table")
def test_name_of_a_savepoint_is_hard_to_hit_by_chance(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    names: list[str] = []
    with stores.inbox.effects(receipt.started) as session:
        listen(session.connection(), "release_savepoint", lambda *a: names.append(a[1]))
        stores.inbox.savepoint(session).release()
    assert names[0].startswith("sa_savepoint_")
    assert int(names[0].rpartition("_")[2]) > 1_000


@pytest.mark.usefixtures("effect_table")
def test_state_that_outlives_the_savepoint_is_reported(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with (
        suppress(ArithmeticError),
        stores.inbox.effects(receipt.started) as session,
    ):
        savepoint = stores.inbox.savepoint(session)
        session.info["of a handler"] = 1
        assert not savepoint.undo()
        raise ArithmeticError


@pytest.mark.usefixtures("effect_table")
def test_further_session_on_the_connection_keeps_its_work(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with stores.inbox.effects(receipt.started) as session:
        savepoint = stores.inbox.savepoint(session)
        with Session(session.connection()) as further:
            write(further, 1)
        stores.inbox.reset_session(session)
        savepoint.release()
    assert effects_of(stores) == [1]
    assert rows(stores) == [DONE]


@pytest.mark.usefixtures("effect_table")
def test_savepoint_can_be_set_again_after_it_was_undone(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with stores.inbox.effects(receipt.started) as session:
        savepoint = stores.inbox.savepoint(session)
        for number in (1, 2):
            write(session, number)
            assert savepoint.undo()
            savepoint.set_again()
        write(session, 3)
        savepoint.release()
        savepoint = stores.inbox.savepoint(session)
        write(session, 4)
        assert savepoint.undo()
    assert effects_of(stores) == [3]
    assert rows(stores) == [DONE]


@pytest.mark.parametrize("stores", [POSTGRESQL], indirect=True)
@pytest.mark.usefixtures("effect_table")
def test_prepared_statements_outlive_a_savepoint_that_is_undone(stores: Stores) -> None:
    receipt = start(stores, envelope("a"))
    with stores.inbox.effects(receipt.started) as session:
        driver: Any = session.connection().connection.driver_connection
        for _ in range(driver.prepare_threshold + 1):
            write(session, 0)
        savepoint = stores.inbox.savepoint(session)
        write(session, 1)
        assert savepoint.undo()
        savepoint.set_again()
        write(session, 1)
        prepared = session.scalars(text("SELECT statement FROM pg_prepared_statements"))
        assert any("INTO effect " in statement for statement in prepared)
        assert driver.prepare_threshold
        savepoint.release()
    assert effects_of(stores) == [0] * (driver.prepare_threshold + 1) + [1]
