"""Shared transactions that fail as a whole: the events run alone, and the next one is smaller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy.orm import Session

from shieldtx import Event, Refused, ShieldTx
from shieldtx.consumer.batch_executor import FIRST
from shieldtx.consumer.shared_transaction import SharedTransaction
from shieldtx.ports.inbox import Attempt, AttemptOutcome
from shieldtx.testing import memory_app
from tests.support.log_records import logged

EVENTS = 20


def write(shield: ShieldTx, session: Session) -> None:
    for number in range(EVENTS):
        shield.outbox.add(session, Event(type="orders.placed", key=f"k{number}", payload=number))


def test_list_with_refused_events_is_halved_until_they_are_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shield = ShieldTx()
    shield.declare("orders.placed", payload=int)

    @shield.consumer("stock").handles_many("orders.placed", payload=int)
    def book(session: Session, events: list[Event[Any]]) -> None:
        if any(event.payload % 2 for event in events):
            raise Refused("sold out")

    with memory_app(shield) as app:
        with app.session() as session:
            write(shield, session)
        outcomes = app.drain(check=False).outcomes
    assert outcomes[AttemptOutcome.REFUSED] == outcomes[AttemptOutcome.APPLIED] == EVENTS / 2
    assert not logged(caplog.records, "batch_failed")


def test_transaction_after_one_that_took_too_long_is_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    apply = SharedTransaction.apply

    def too_slow_for_many(
        self: SharedTransaction, attempts: Sequence[Attempt], **given: Any
    ) -> Any:
        sizes.append(len(attempts))
        if len(attempts) > FIRST / 2:
            raise TimeoutError("they have taken too much of their leases")
        return apply(self, attempts, **given)

    monkeypatch.setattr(SharedTransaction, "apply", too_slow_for_many)
    shield = ShieldTx()
    shield.declare("orders.placed", payload=int)
    shield.consumer("stock").handles("orders.placed")(lambda _session, _event: None)

    with memory_app(shield) as app:
        with app.session() as session:
            write(shield, session)
        outcomes = app.drain(check=False).outcomes
    assert outcomes == {AttemptOutcome.APPLIED: EVENTS}
    assert sizes[:2] == [FIRST, FIRST / 2]
