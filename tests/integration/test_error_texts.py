"""Any text of an error is stored as its reason, and processing continues."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from shieldtx import Event, Refused, Settings, ShieldTx
from shieldtx.domain.events import LONGEST_ON_THE_WIRE
from shieldtx.ports.broker import Delivery, DeliveryOutcome
from tests.support.log_records import logged
from tests.support.reasons import without_site
from tests.support.service import QUICK, Service, Wire, drain, make_topics

NASTY = "no stock\x00 of \ud800 " + "x" * 100_000


@pytest.fixture
def orders(make_service: Callable[..., Service]) -> Service:
    service = make_service("orders")
    for name in ("order.placed", "order.undone"):
        service.app.declare(name)
    make_topics(service)
    return service


def place(service: Service, **fields) -> None:
    with service.transaction() as session:
        service.app.outbox.add(session, Event(type="order.placed", key="a", **fields))


def reasons(service: Service, table: str) -> list[str]:
    return [reason for (reason,) in service.rows(f"SELECT last_error FROM {table}")]


@pytest.mark.parametrize("error", [ValueError(NASTY), Refused(NASTY)], ids=["bug", "refusal"])
def test_handler_gives_up_with_any_error_text(orders, make_service, error):
    stock = make_service("stock")

    @stock.app.consumer("stock").handles("order.placed", retry=QUICK)
    def refuse(session, event) -> None:
        raise error

    taken_back = []

    @orders.app.consumer("orders").compensates("order.placed")
    def cancel(session, event) -> None:
        taken_back.append(event.key)

    make_topics(stock)
    place(orders)
    consumers = stock.app.build_consumer("stock"), orders.app.build_consumer("orders")
    drain(orders.relay(), stock.relay(), *consumers)
    assert stock.inbox() == {"MAX_RECONSUMED": 1}
    assert "no stock\ufffd of ? xxx" in reasons(stock, "shield_inbox")[0]
    assert taken_back == ["a"]


def test_rejection_is_stored_with_any_text_of_the_broker(orders: Service, wire: Wire):
    wire.fate = lambda record: Delivery(outcome=DeliveryOutcome.REJECTED, reason=NASTY)
    place(orders)
    drain(orders.relay())
    assert orders.outbox() == {"FAILED": 1}
    assert reasons(orders, "shield_outbox")[0].startswith("no stock\ufffd of ?")


def test_failed_local_rollback_lets_only_its_event_wait(orders: Service, wire: Wire):
    @orders.app.local_rollback("order.placed")
    def undo(session, event) -> None:
        raise ValueError(NASTY)

    wire.fate = lambda record: (
        Delivery(outcome=DeliveryOutcome.REJECTED, reason=NASTY) if record.key == b"a" else None
    )
    place(orders)
    with orders.transaction() as session:
        orders.app.outbox.add(session, Event(type="order.placed", key="b"))
    drain(orders.relay())
    assert orders.outbox() == {"INIT": 1, "PROCESSED": 1}


def test_local_rollback_with_a_refused_event_lets_its_event_wait(orders: Service, wire: Wire):
    @orders.app.local_rollback("order.placed")
    def undo(session, event) -> None:
        orders.app.outbox.add(session, Event(type="order.undone", biz_key="once"))

    with orders.transaction() as session:
        orders.app.outbox.add(session, Event(type="order.undone", biz_key="once"))
    wire.fate = lambda record: (
        Delivery(outcome=DeliveryOutcome.REJECTED, reason="too large")
        if record.key == b"a"
        else None
    )
    place(orders)
    drain(orders.relay())
    (reason,) = [r for r in reasons(orders, "shield_outbox") if r]
    assert "local rollback failed: EventRefused" in reason
    assert orders.outbox() == {"INIT": 1, "PROCESSED": 1}


def test_statement_parameters_are_in_no_reason(database_url: str):
    shield = ShieldTx(Settings(source="stock", database_url=database_url))
    with Session(shield.engine) as session, pytest.raises(DBAPIError) as failed:
        session.execute(text("INSERT INTO nowhere VALUES (:card)"), {"card": "4000-1234"})
    shield.close()
    assert "nowhere" in str(failed.value)
    assert "4000-1234" not in str(failed.value)


CARD = "4111-1111-SECRET"


def book(session: Session, event: Event) -> None:
    """Violate a constraint, so that PostgreSQL shows the row."""
    session.execute(text("INSERT INTO pay VALUES (:card, 500)"), {"card": CARD})


def book_and_wrap(session: Session, event: Event) -> None:
    try:
        book(session, event)
    except DBAPIError as error:
        raise RuntimeError(f"cannot book: {error}") from error


def book_and_quote_a_part(session: Session, event: Event) -> None:
    """Cut the error off after the card: "Failing row contains (4111-1111-SECRET, 50"."""
    try:
        book(session, event)
    except DBAPIError as error:
        end = str(error).index(CARD) + len(CARD) + 4
        raise RuntimeError(f"cannot book: {str(error)[:end]}...") from error


def book_and_go_on(session: Session, event: Event) -> None:
    """Swallow the error: the next statement quotes it."""
    with suppress(DBAPIError):
        book(session, event)
    session.execute(text("SELECT 1"))


def book_no_number(session: Session, event: Event) -> None:
    """Let the server quote a value in its primary message."""
    session.execute(text("INSERT INTO pay VALUES ('x', CAST(:card AS integer))"), {"card": CARD})


def book_locked(session: Session, event: Event) -> None:
    """Let a trigger of the application quote the row."""
    session.execute(text("INSERT INTO pay VALUES (:card, 1)"), {"card": CARD})


def book_refused(session: Session, event: Event) -> None:
    """Let that trigger quote the row under the SQLSTATE of a constraint."""
    session.execute(text("INSERT INTO pay VALUES (:card, 2)"), {"card": CARD})


CONDITIONS = {
    book_no_number: "InvalidTextRepresentation, whose text is left out (SQLSTATE 22P02)",
    book_locked: "RaiseException, whose text is left out (SQLSTATE P0001)",
    book_refused: "CheckViolation, whose text is left out (SQLSTATE 23514)",
}

LOCKED = """
    CREATE FUNCTION locked() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF new.amount = 1 THEN RAISE EXCEPTION 'the card % is locked', new.card; END IF;
        IF new.amount = 2 THEN
            RAISE EXCEPTION 'the card % is locked', new.card USING ERRCODE = 'check_violation';
        END IF;
        RETURN new;
    END $$;
    CREATE TRIGGER locked BEFORE INSERT ON pay FOR EACH ROW EXECUTE FUNCTION locked()
"""


@pytest.fixture
def stock(make_service: Callable[..., Service]) -> Service:
    service = make_service("stock")
    service.execute(
        "CREATE TABLE pay (card text, amount int CONSTRAINT small CHECK (amount < 100))"
    )
    service.execute(LOCKED)
    make_topics(service)
    return service


def told_by(service: Service, log: pytest.LogCaptureFixture) -> str:
    """Return all rows of a service's tables and the log."""
    tables = ("shield_inbox", "shield_outbox", "shield_trace")
    rows = [row for table in tables for row in service.rows(f"SELECT t::text FROM {table} t")]
    return log.text + str(rows)


WRITERS = [book, book_and_wrap, book_and_quote_a_part, book_and_go_on, *CONDITIONS]


@pytest.mark.parametrize("handler", WRITERS)
@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
def test_no_row_is_shown_by_logs_tables_and_topics(orders, stock, wire, caplog, handler, level):
    stock.app.consumer("stock").handles("order.placed", retry=QUICK)(handler)
    stock.app.tracer.attach(stock.app.hooks)
    place(orders)
    with caplog.at_level(level, "shieldtx"):
        drain(orders.relay(), stock.app.build_consumer("stock"), stock.relay())
    stock.app.tracer.flush()
    assert stock.inbox() == {"MAX_RECONSUMED": 1}
    assert "SECRET" not in told_by(stock, caplog)
    assert not [record for record in wire.published if b"SECRET" in (record.value or b"")]
    assert handler.__name__ in caplog.text, "the traceback names the code"
    # The first and the last of three attempts log a traceback; it may have further ones inside.
    assert len(logged(caplog.records, "handler_failed")) == 1
    assert caplog.text.count("Traceback (most recent call last)") >= 2
    if handler is book:
        (reason,) = reasons(stock, "shield_inbox")
        assert without_site(reason).endswith(
            'constraint "small" (SQLSTATE 23514, constraint small)'
        )
    if condition := CONDITIONS.get(handler):
        (reason,) = reasons(stock, "shield_inbox")
        assert without_site(reason).endswith(f": {condition}")


def test_a_refusal_is_logged_without_a_traceback(orders, stock, caplog):
    @stock.app.consumer("stock").handles("order.placed", retry=QUICK)
    def refuse(session, event) -> None:
        raise Refused("sold out")

    place(orders)
    with caplog.at_level("INFO", "shieldtx"):
        drain(orders.relay(), stock.app.build_consumer("stock"))
    assert "Refused: sold out" in caplog.text
    assert "Traceback" not in caplog.text


def test_no_row_is_shown_by_a_local_rollback_a_check_and_a_hook(stock, wire, caplog):
    for name in ("order.placed", "order.paid"):
        stock.app.declare(name)
    stock.app.local_rollback("order.placed")(book_and_wrap)

    @stock.app.checks("order.paid")
    def check(event):
        with stock.transaction() as session:
            book(session, event)

    @stock.app.hooks.before_send
    def hook(context):
        with stock.transaction() as session:
            book(session, context)

    with stock.app.half("order.paid", {}, immunity=timedelta(0)) as half:
        half.unknown()
    wire.fate = lambda record: Delivery(outcome=DeliveryOutcome.REJECTED, reason="too large")
    place(stock)
    with caplog.at_level("DEBUG", "shieldtx"):
        (check_back,) = stock.app.half_messages.check_backs()
        assert check_back.run_once().unknown == 1
        stock.relay().run_once()
    assert "SECRET" not in told_by(stock, caplog)
    for name in ("book_and_wrap", "in check", "in hook"):
        assert name in caplog.text, name


def test_the_reason_on_the_wire_has_a_bounded_length(orders, stock, wire):
    @stock.app.consumer("stock").handles("order.placed", retry=QUICK)
    def refuse(session, event) -> None:
        raise Refused("é" * 10_000)

    place(orders)
    drain(orders.relay(), stock.app.build_consumer("stock"), stock.relay())
    (rollback,) = [r for r in wire.published if r.topic.endswith(".rollback")]
    assert len(json.loads(rollback.value or b"")["reason"]) == LONGEST_ON_THE_WIRE
