"""A shared transaction whose savepoints finish no event."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import Session

from shieldtx import Event, Refused, ShieldTx
from shieldtx.consumer import shared_transaction
from shieldtx.ports.inbox import AttemptOutcome
from shieldtx.testing import memory_app
from tests.support.log_records import logged

EVENTS = 20


def test_events_run_alone_when_the_savepoints_finish_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared_transaction, "MOST_SAVEPOINTS", 1)
    shield = ShieldTx()
    shield.declare("orders.placed", payload=int)

    @shield.consumer("stock").handles_many("orders.placed", payload=int)
    def book(session: Session, events: list[Event[Any]]) -> None:
        if any(event.payload % 2 for event in events):
            raise Refused("sold out")

    with memory_app(shield) as app:
        with app.session() as session:
            for number in range(EVENTS):
                event = Event(type="orders.placed", key=f"k{number}", payload=number)
                shield.outbox.add(session, event)
        outcomes = app.drain(check=False).outcomes
    assert outcomes[AttemptOutcome.REFUSED] == outcomes[AttemptOutcome.APPLIED] == EVENTS / 2
    assert logged(caplog.records, "batch_failed")
