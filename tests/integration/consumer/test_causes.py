"""The cause of an event is the event that was handled when it was added, wherever it was added."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from sqlalchemy import String
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from shieldtx import Event
from shieldtx.ports.inbox import AttemptOutcome
from tests.integration.consumer.test_consumer import World, world
from tests.support.handler_styles import STYLES
from tests.support.service import effect

__all__ = ["world"]

HANDLER_STYLES = STYLES


class Base(DeclarativeBase):
    """The application's own tables."""


class Reserved(Base):
    __tablename__ = "reserved"

    key: Mapped[str] = mapped_column(String, primary_key=True)


class Added(Enum):
    """The places where an application adds the events of its handlers."""

    ON_THE_SESSION = auto()
    ON_ITS_CONNECTION = auto()
    ON_A_SESSION_OF_ITS_CONNECTION = auto()
    ON_A_SESSION_BOUND_TO_IT_BY_CLASSES = auto()
    IN_A_FLUSH = auto()
    BEFORE_THE_COMMIT = auto()
    BEFORE_THE_COMMIT_WITH_ITS_CAUSE = auto()


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("added", Added)
def test_event_added_anywhere_names_its_own_cause(world: World, added: Added, alone: bool) -> None:
    app = world.downstream.app
    app.declare("stock.reserved")
    late = {Added.BEFORE_THE_COMMIT, Added.BEFORE_THE_COMMIT_WITH_ITS_CAUSE}

    # Not in the session's info: a value left there would end the transaction of a batch.
    waiting: WeakKeyDictionary[Session, list[Event]] = WeakKeyDictionary()

    def publish(session: Session, *_: object) -> None:
        for reserved in waiting.pop(session, []):
            app.outbox.add(session, reserved)

    @app.consumer("stock").handles("orders.placed", alone=alone)
    def reserve(session: Session, event: Event) -> None:
        named = event.id if added is Added.BEFORE_THE_COMMIT_WITH_ITS_CAUSE else None
        reserved = Event(type="stock.reserved", key=event.key, causation_id=named)
        effect("done")(session, event)
        if added in {*late, Added.IN_A_FLUSH}:
            waiting.setdefault(session, []).append(reserved)
            session.add(Reserved(key=event.key))
            return
        connection = session.connection()
        if added is Added.ON_A_SESSION_BOUND_TO_IT_BY_CLASSES:
            binds = dict.fromkeys(app.tables.metadata.sorted_tables, connection)
            on: Any = Session(world.downstream.engine, binds=binds)
        elif added is Added.ON_A_SESSION_OF_ITS_CONNECTION:
            on = Session(connection)
        else:
            on = session if added is Added.ON_THE_SESSION else connection
        app.outbox.add(on, reserved)

    Base.metadata.create_all(world.downstream.engine)
    events = world.write(*"abc")
    name = "before_commit" if added in late else "before_flush"
    sqlalchemy_event.listen(Session, name, publish)
    try:
        done = world.consumer().run_once()
    finally:
        sqlalchemy_event.remove(Session, name, publish)
    assert done.outcomes == {AttemptOutcome.APPLIED: 3}
    rows = world.downstream.rows("SELECT key, causation_id, causation_source FROM shield_outbox")
    assert sorted(rows) == [(e.key, e.id, "orders") for e in events]
    assert sorted(world.downstream.effects("done")) == ["a", "b", "c"]
