"""A local rollback that does not complete leaves nothing, and its event waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from shieldtx import Event, RetryPolicy, TxKind, new_event_id
from shieldtx.errors import HandlerError
from shieldtx.ports.broker import DeliveryOutcome
from shieldtx.relay.relay import Relay
from tests.support.handler_styles import STYLES, HandlerStyle
from tests.support.service import Service, Wire, answer, drain, effect, make_topics

HANDLER_STYLES = [style for style in STYLES if style.lanes == 1]
LATER = RetryPolicy(first=timedelta(hours=1), longest=timedelta(hours=1))

Undo = Callable[[Session], None]


@pytest.fixture
def service(make_service: Callable[..., Service], wire: Wire) -> Service:
    """A service in whose database every row of `details` needs one of `orders` at COMMIT."""
    made = make_service("orders")
    made.app.declare("things.happened", retry=LATER)
    make_topics(made)
    made.execute("CREATE TABLE orders (key text PRIMARY KEY)")
    made.execute("CREATE TABLE details (key text REFERENCES orders DEFERRABLE INITIALLY DEFERRED)")
    wire.fate = lambda record: answer(DeliveryOutcome.REJECTED) if record.key == b"poison" else None
    return made


@pytest.fixture
def relay_with(service: Service) -> Callable[[Undo], Relay]:
    """Build a relay whose local rollback leaves an effect, and then acts as a test chooses."""

    def build(undo: Undo) -> Relay:
        @service.app.local_rollback("things.happened")
        def function(session: Session, undone: Event) -> None:
            effect("half undone")(session, undone)
            undo(session)

        return service.relay()

    return build


def write(service: Service, *keys: str) -> None:
    with service.transaction() as session:
        service.app.outbox.add_all(session, [Event(type="things.happened", key=k) for k in keys])


def orphan(session: Session) -> None:
    session.execute(text("INSERT INTO details VALUES ('nobody')"))


def swallow_an_error(session: Session) -> None:
    with suppress(DBAPIError):
        session.execute(text("SELECT * FROM nowhere"))


def swallow_a_refused_commit(session: Session) -> None:
    with suppress(HandlerError):
        session.commit()


def roll_back_below(session: Session) -> None:
    session.connection().rollback()


def roll_back_and_begin_below(session: Session) -> None:
    connection: Connection = session.connection()
    connection.rollback()
    connection.execute(text("SELECT 1"))


def commit_below(session: Session) -> None:
    session.connection().commit()


def roll_back_by_cursor(session: Session) -> None:
    session.connection().connection.cursor().execute("ROLLBACK")
    session.execute(text("INSERT INTO orders VALUES ('after')"))


FAILURES = {
    "by cursor": (roll_back_by_cursor, "leave commit"),
    "deferred": (orphan, "violates foreign key"),
    "swallowed": (swallow_an_error, "went on after an error"),
    "commit": (Session.commit, "leave commit"),
    "swallowed commit": (swallow_a_refused_commit, "leave commit"),
    "commit below": (commit_below, "leave commit"),
    "rollback": (Session.rollback, "leave commit"),
    "rollback below": (roll_back_below, "leave commit"),
    "rollback and begin below": (roll_back_and_begin_below, "leave commit"),
    "close": (Session.close, "leave commit"),
}


@pytest.mark.filterwarnings("ignore:transaction already deassociated")
@pytest.mark.parametrize(("undo", "said"), FAILURES.values(), ids=list(FAILURES))
def test_failed_local_rollback_leaves_nothing_others_are_sent(
    service: Service, relay_with: Callable[[Undo], Relay], undo: Undo, said: str
) -> None:
    relay = relay_with(undo)
    write(service, "poison", "a")
    done = relay.run_once()
    assert (done.failed, done.retried, done.published, done.lost) == (0, 1, 1, 0)
    assert service.outbox() == {"INIT": 1, "PROCESSED": 1}
    assert service.effects() == []
    [(reason,)] = service.rows("SELECT last_error FROM shield_outbox WHERE status = 'INIT'")
    assert "local rollback failed" in reason
    assert said in reason
    write(service, "b")
    assert relay.run_once().published == 1


@pytest.fixture
def refusing_hook() -> Iterator[None]:
    """A hook of the application that refuses the commit of each session with changed `details`."""

    def refuse(session: Session) -> None:
        if session.info.get("touched"):
            raise ArithmeticError("the books do not balance")

    event.listen(Session, "before_commit", refuse)
    yield
    event.remove(Session, "before_commit", refuse)


@pytest.mark.usefixtures("refusing_hook")
def test_refused_commit_of_a_local_rollback_leaves_nothing(
    service: Service, relay_with: Callable[[Undo], Relay]
) -> None:
    relay = relay_with(lambda session: session.info.update(touched=True))
    write(service, "poison", "a")
    assert relay.run_once().retried == 1
    assert service.outbox() == {"INIT": 1, "PROCESSED": 1}
    assert service.effects() == []


def test_a_local_rollback_may_use_savepoints(
    service: Service, relay_with: Callable[[Undo], Relay]
) -> None:
    def undo(session: Session) -> None:
        with suppress(DBAPIError), session.begin_nested():
            session.execute(text("SELECT * FROM nowhere"))
        with session.begin_nested():
            effect("more")(session, Event(type="things.happened", key="more"))

    relay = relay_with(undo)
    write(service, "poison")
    assert relay.run_once().failed == 1
    assert service.outbox() == {"FAILED": 1}
    assert service.effects() == ["poison", "more"]


def test_failed_rollback_event_undoes_nothing(
    service: Service, relay_with: Callable[[Undo], Relay]
) -> None:
    relay = relay_with(lambda _: None)
    with service.transaction() as session:
        refused = Event(
            type="things.happened",
            kind=TxKind.ROLLBACK,
            key="poison",
            causation_id=new_event_id(),
            causation_source="elsewhere",
        )
        service.app.outbox.add(session, refused)
    drain(relay)
    assert service.outbox() == {"FAILED": 1}
    assert service.effects("half undone") == []


@pytest.mark.plain_handlers
def test_a_cancelled_task_of_a_local_rollback_is_retried(
    make_service: Callable[..., Service], wire: Wire
) -> None:
    style = HandlerStyle(name="coroutine", driver="psycopg")
    service = make_service("undoing", style=style)
    service.app.declare("things.happened", retry=LATER)
    make_topics(service)
    wire.fate = lambda record: answer(DeliveryOutcome.REJECTED)

    @service.app.local_rollback("things.happened")
    async def undo(session: AsyncSession, event: Event) -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    relay = service.relay()
    write(service, "a")
    # The relay goes on, and the row waits for a later attempt.
    drain(relay)
    assert service.outbox() == {"INIT": 1}
