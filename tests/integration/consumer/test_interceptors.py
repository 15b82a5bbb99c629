"""Rows that an interceptor writes around `proceed()` belong to the event, as the effect does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import pytest
from greenlet import getcurrent, greenlet
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from shieldtx import Event, RetryPolicy
from shieldtx.errors import HandlerError
from shieldtx.ports.inbox import AttemptOutcome
from tests.support.service import Service, drain, effect, make_topics

ONCE = RetryPolicy(max_attempts=1)


class Base(DeclarativeBase):
    """The tables of this module."""


class Note(Base):
    """A note written for an event, and a count of events."""

    __tablename__ = "note"
    name: Mapped[str] = mapped_column(primary_key=True)
    counted: Mapped[int] = mapped_column(default=0)


@pytest.fixture
def stock(make_service: Callable[..., Service]) -> Service:
    orders, stock = make_service("orders"), make_service("stock")
    orders.app.declare("orders.placed")
    make_topics(orders)
    Base.metadata.create_all(stock.engine)
    stock.execute("INSERT INTO note VALUES ('all', 0)")
    with orders.transaction() as session:
        for key in "abc":
            orders.app.outbox.add(session, Event(type="orders.placed", key=key))
    drain(orders.relay())
    return stock


def notes(stock: Service) -> list[str]:
    return [name for (name,) in stock.rows("SELECT name FROM note WHERE name <> 'all' ORDER BY 1")]


@pytest.mark.parametrize("alone", [False, True], ids=["batch", "alone"])
def test_rows_written_after_the_handler_are_committed(stock: Service, alone: bool) -> None:
    group, kept = stock.app.consumer("stock"), []

    @group.intercepts
    def audit(session: Session, event: Event, proceed: Callable[[], None]) -> None:
        everything = session.get(Note, "all")
        proceed()
        session.add(Note(name=f"audited {event.key}"))
        assert everything is not None
        everything.counted += 1

    @group.handles("orders.placed", alone=alone)
    def reserve(session: Session, event: Event) -> None:
        # Kept, so that the session has an object of each event when its attempt ends.
        kept.append(Note(name=f"reserved {event.key}"))
        session.add(kept[-1])

    drain(stock.app.build_consumer("stock"))
    audited, reserved = ([f"{what} {key}" for key in "abc"] for what in ("audited", "reserved"))
    assert notes(stock) == audited + reserved
    assert stock.rows("SELECT counted FROM note WHERE name = 'all'") == [(3,)]


def test_event_written_after_the_handler_is_published(stock: Service) -> None:
    stock.app.declare("stock.audited")
    group = stock.app.consumer("stock")

    @group.intercepts
    def audit(session: Session, event: Event, proceed: Callable[[], None]) -> None:
        proceed()
        stock.app.outbox.add(session, Event(type="stock.audited", key=event.key))

    group.handles("orders.placed")(lambda session, event: None)
    drain(stock.app.build_consumer("stock"))
    written = stock.rows("SELECT key, causation_id IS NOT NULL FROM shield_outbox ORDER BY seq")
    assert written == [("a", True), ("b", True), ("c", True)]


def test_error_after_the_handler_fails_only_its_event(stock: Service) -> None:
    group = stock.app.consumer("stock")

    @group.intercepts
    def audit(session: Session, event: Event, proceed: Callable[[], None]) -> None:
        proceed()
        # The name of the first note is taken.
        session.add(Note(name="all" if event.key == "a" else f"audited {event.key}"))

    group.handles("orders.placed", retry=ONCE)(lambda session, event: None)
    outcomes = stock.app.build_consumer("stock").run_once().outcomes
    assert outcomes == {AttemptOutcome.REFUSED: 1, AttemptOutcome.APPLIED: 2}
    assert notes(stock) == ["audited b", "audited c"]


@pytest.mark.parametrize(
    "habit", ["swallows", "tries again", "calls twice", "calls twice and swallows"]
)
@pytest.mark.parametrize("alone", [False, True], ids=["batch", "alone"])
def test_interceptor_causes_no_partial_and_no_second_effect(
    stock: Service, habit: str, alone: bool
) -> None:
    group = stock.app.consumer("stock")

    @group.intercepts
    def tolerant(session: Session, event: Event, proceed: Callable[[], None]) -> None:
        try:
            proceed()
        except RuntimeError:
            if habit == "tries again":
                proceed()
        if habit.startswith("calls twice"):
            with suppress(HandlerError) if habit.endswith("swallows") else nullcontext():
                proceed()

    @group.handles("orders.placed", alone=alone, retry=ONCE)
    def reserve(session: Session, event: Event) -> None:
        everything = session.get(Note, "all")
        assert everything is not None
        everything.counted += 1
        session.flush()
        if event.key == "b" and not habit.startswith("calls twice"):
            raise RuntimeError("the shelf does not answer")

    drain(stock.app.build_consumer("stock"))
    applied = 0 if habit.startswith("calls twice") else 2
    assert stock.inbox() == {"MAX_RECONSUMED": 3 - applied} | (
        {"PROCESSED": applied} if applied else {}
    )
    assert stock.rows("SELECT counted FROM note WHERE name = 'all'") == [(applied,)]


@pytest.mark.parametrize("rolls_back", ["the handler's", "an outer one", "one of its own", None])
@pytest.mark.parametrize("alone", [False, True], ids=["batch", "alone"])
def test_savepoint_around_the_handler_undoes_no_applied_effect(
    stock: Service, rolls_back: str | None, alone: bool
) -> None:
    group = stock.app.consumer("stock")

    @group.intercepts
    def tolerant(session: Session, event: Event, proceed: Callable[[], None]) -> None:
        with suppress(RuntimeError), session.begin_nested():
            with session.begin_nested():
                proceed()
                if rolls_back == "the handler's" and event.key == "b":
                    raise RuntimeError("the audit does not answer")
            with suppress(RuntimeError), session.begin_nested():
                session.add(Note(name=f"gone {event.key}"))
                session.flush()
                if rolls_back == "one of its own":
                    raise RuntimeError("the audit does not answer")
            if rolls_back == "an outer one" and event.key == "b":
                raise RuntimeError("the audit does not answer")

    @group.handles("orders.placed", alone=alone, retry=ONCE)
    def reserve(session: Session, event: Event) -> None:
        session.add(Note(name=f"reserved {event.key}"))

    drain(stock.app.build_consumer("stock"))
    is_lost = rolls_back in {"the handler's", "an outer one"}
    kept = "ac" if is_lost else "abc"
    assert [name for name in notes(stock) if "reserved" in name] == [f"reserved {k}" for k in kept]
    refused = {"MAX_RECONSUMED": 1} if is_lost else {}
    assert stock.inbox() == {"PROCESSED": len(kept)} | refused
    if is_lost:
        [(reason,)] = stock.rows("SELECT last_error FROM shield_inbox WHERE last_error <> ''")
        assert "rolled back the savepoint in which the handler ran" in reason


def in_words(session: Session, words: str) -> None:
    session.execute(text(words))


@pytest.mark.parametrize("alone", [False, True], ids=["batch", "alone"])
@pytest.mark.parametrize("how", ["words", "words of an outer one", "connection"])
def test_rollback_to_a_savepoint_fails_the_attempt_with_a_reason(
    stock: Service, how: str, alone: bool
) -> None:
    group = stock.app.consumer("stock")

    @group.intercepts
    def tolerant(session: Session, event: Event, proceed: Callable[[], None]) -> None:
        if how == "connection":
            savepoint = session.connection().begin_nested()
            proceed()
            savepoint.rollback() if event.key == "b" else savepoint.commit()
            return
        for words in ("SAVEPOINT Outer_one", "SAVEPOINT mine"):
            in_words(session, words)
        proceed()
        if how == "words of an outer one":
            in_words(session, "RELEASE mine")
        in_words(session, "SAVEPOINT mine")
        in_words(session, "INSERT INTO note VALUES ('gone', 0)")
        in_words(session, "ROLLBACK WORK TO mine")
        if event.key == "b" and how == "words":
            in_words(session, "RELEASE SAVEPOINT mine")
            in_words(session, "rollback to savepoint mine")
        elif event.key == "b":
            in_words(session, "ROLLBACK TO outer_one")

    @group.handles("orders.placed", alone=alone, retry=ONCE)
    def reserve(session: Session, event: Event) -> None:
        session.add(Note(name=f"reserved {event.key}"))

    drain(stock.app.build_consumer("stock"))
    assert notes(stock) == ["reserved a", "reserved c"]
    assert stock.inbox() == {"PROCESSED": 2, "MAX_RECONSUMED": 1}
    [(reason,)] = stock.rows("SELECT last_error FROM shield_inbox WHERE last_error <> ''")
    assert "rolled back the savepoint in which the handler ran" in reason


def in_block(session: Session, event: Event, proceed: Callable[[], None]) -> None:
    driver: Any = session.connection().connection.driver_connection
    with suppress(RuntimeError), driver.transaction():
        proceed()
        if event.key == "b":
            raise RuntimeError("the audit does not answer")


def in_savepoint_of_a_cursor(session: Session, event: Event, proceed: Callable[[], None]) -> None:
    cursor = session.connection().connection.cursor()
    cursor.execute("SAVEPOINT audit")
    proceed()
    cursor.execute("ROLLBACK TO audit" if event.key == "b" else "RELEASE audit")


def in_block_of_two(session: Session, event: Event, proceed: Callable[[], None]) -> None:
    in_block(session, event, lambda: in_savepoint_of_its_own(session, event, proceed))


def in_savepoint_of_its_own(session: Session, event: Event, proceed: Callable[[], None]) -> None:
    with session.begin_nested():
        proceed()


@pytest.mark.parametrize("alone", [False, True], ids=["batch", "alone"])
@pytest.mark.parametrize("inside", [in_block, in_savepoint_of_a_cursor, in_block_of_two])
def test_rollback_of_a_driver_savepoint_fails_with_a_reason(
    stock: Service, inside: Callable[..., None], alone: bool
) -> None:
    group = stock.app.consumer("stock")
    group.intercepts(inside)

    @group.handles("orders.placed", alone=alone, retry=ONCE)
    def reserve(session: Session, event: Event) -> None:
        session.add(Note(name=f"reserved {event.key}"))

    drain(stock.app.build_consumer("stock"))
    assert notes(stock) == ["reserved a", "reserved c"]
    assert stock.inbox() == {"PROCESSED": 2, "MAX_RECONSUMED": 1}
    [(reason,)] = stock.rows("SELECT last_error FROM shield_inbox WHERE last_error <> ''")
    assert "or the driver's block around it" in reason


def test_the_arguments_of_an_interceptor_are_in_no_reason(stock: Service) -> None:
    def check(key: str, session: Session, event: Event, proceed: Callable[[], None]) -> None:
        assert key

    group = stock.app.consumer("stock")
    group.intercepts(partial(check, "s3cr3t"))
    group.handles("orders.placed", retry=ONCE)(effect("done"))
    drain(stock.app.build_consumer("stock"))
    reasons = {row[0] for row in stock.rows("SELECT last_error FROM shield_inbox")}
    assert len(reasons) == 1
    assert "check returned without calling proceed()" in reasons.pop()


def test_events_with_interceptors_share_a_transaction(stock: Service) -> None:
    group, seen = stock.app.consumer("stock"), []
    group.intercepts(in_savepoint_of_its_own)

    @group.handles("orders.placed")
    def reserve(session: Session, event: Event) -> None:
        seen.append(session.scalar(text("SELECT txid_current()")))

    drain(stock.app.build_consumer("stock"))
    assert stock.inbox() == {"PROCESSED": 3}
    assert len(set(seen)) == 1


def test_swallowed_database_error_fails_in_an_interceptor(stock: Service) -> None:
    group = stock.app.consumer("stock")
    group.intercepts(in_savepoint_of_its_own)

    @group.handles("orders.placed", retry=ONCE)
    def reserve(session: Session, event: Event) -> None:
        with suppress(DBAPIError):
            session.execute(text("SELECT 1 / 0"))

    drain(stock.app.build_consumer("stock"))
    assert stock.inbox() == {"MAX_RECONSUMED": 3}
    for (reason,) in stock.rows("SELECT last_error FROM shield_inbox"):
        assert "went on after an error of the database" in reason


@pytest.mark.parametrize("alone", [False, True], ids=["batch", "alone"])
@pytest.mark.parametrize("on", ["session", "connection"])
def test_savepoint_left_open_by_a_handler_affects_no_other_event(
    stock: Service, alone: bool, on: str
) -> None:
    group = stock.app.consumer("stock")

    @group.handles("orders.placed", alone=alone, retry=ONCE)
    def reserve(session: Session, event: Event) -> None:
        holder = session if on == "session" else session.connection()
        if event.key == "a":
            holder.begin_nested()
        session.add(Note(name=f"reserved {event.key}"))
        session.flush()
        if event.key == "b" and (left := holder.get_nested_transaction()) is not None:
            left.rollback()

    drain(stock.app.build_consumer("stock"))
    assert stock.inbox() == {"PROCESSED": 3}
    assert notes(stock) == [f"reserved {key}" for key in "abc"]


@pytest.mark.parametrize("waits", [False, True], ids=["goes on", "waits"])
@pytest.mark.parametrize("alone", [False, True], ids=["batch", "alone"])
def test_proceed_in_another_thread_fails_the_attempt(
    stock: Service, waits: bool, alone: bool
) -> None:
    group = stock.app.consumer("stock")
    begun, returned = threading.Event(), threading.Event()

    with ThreadPoolExecutor(1) as pool:

        @group.intercepts
        def warn_when_slow(session: Session, event: Event, proceed: Callable[[], None]) -> None:
            slow = pool.submit(proceed)
            if waits:
                slow.result()
            while not (slow.done() or begun.wait(0.01)):
                pass

        @group.handles("orders.placed", alone=alone, retry=ONCE)
        def reserve(session: Session, event: Event) -> None:
            begun.set()
            assert waits or returned.wait(60)
            session.add(Note(name=f"reserved {event.key}"))

        drain(stock.app.build_consumer("stock"))
        returned.set()
    assert stock.inbox() == {"MAX_RECONSUMED": 3}
    assert notes(stock) == []
    for (reason,) in stock.rows("SELECT last_error FROM shield_inbox"):
        assert "in another thread" in reason


def test_interceptor_that_returns_before_proceed_fails(stock: Service) -> None:
    group, kept = stock.app.consumer("stock"), []

    @group.intercepts
    def go_on(session: Session, event: Event, proceed: Callable[[], None]) -> None:
        kept.append(greenlet(proceed))
        kept[-1].switch()

    @group.handles("orders.placed", retry=ONCE)
    def reserve(session: Session, event: Event) -> None:
        parent = getcurrent().parent
        assert parent is not None
        parent.switch()
        session.add(Note(name=f"reserved {event.key}"))

    drain(stock.app.build_consumer("stock"))
    assert stock.inbox() == {"MAX_RECONSUMED": 3}
    for (reason,) in stock.rows("SELECT last_error FROM shield_inbox"):
        assert "while proceed() still ran" in reason


def test_proceed_after_the_return_of_its_interceptor_is_refused(stock: Service) -> None:
    group, kept = stock.app.consumer("stock"), []

    @group.intercepts
    def keep(session: Session, event: Event, proceed: Callable[[], None]) -> None:
        proceed()
        kept.append(proceed)

    group.handles("orders.placed", retry=ONCE)(lambda session, event: None)
    drain(stock.app.build_consumer("stock"))
    assert stock.inbox() == {"PROCESSED": 3}
    for proceed in kept:
        with pytest.raises(HandlerError, match="after its return"):
            proceed()
