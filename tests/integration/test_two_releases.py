"""One outbox with two releases or two sources: a relay leaves rows alone that it does not know."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from shieldtx import Event, Refused, RetryPolicy, ShieldTx
from shieldtx.app import workers
from shieldtx.ports.broker import DeliveryOutcome
from tests.support.log_records import logged
from tests.support.service import QUICK, Service, Wire, answer, drain, effect, make_topics

LATER = RetryPolicy(first=timedelta(hours=1), longest=timedelta(hours=1), jitter=0)


@pytest.fixture
def new(make_service: Callable[..., Service]) -> Service:
    """The new release, which declares a type with a local rollback."""
    service = make_service("orders")
    service.app.declare("orders.split", retry=QUICK)
    make_topics(service)
    return service


@pytest.fixture
def beside(new: Service, wire: Wire) -> Callable[[str], ShieldTx]:
    """Make other applications on the same tables."""

    def make(source: str) -> ShieldTx:
        settings = new.app.settings.model_copy(update={"source": source})
        return ShieldTx(settings, engine=new.engine, broker=wire)

    return make


def test_an_old_release_sends_a_new_type_and_never_fails_it(
    new: Service, beside: Callable[[str], ShieldTx], wire: Wire
) -> None:
    undone = []

    @new.app.local_rollback("orders.split")
    def undo(session: Session, event: Event) -> None:
        undone.append(event.key)

    with new.transaction() as session:
        new.app.outbox.add_all(session, [Event(type="orders.split", key=k) for k in "ab"])
    wire.fate = lambda record: answer(DeliveryOutcome.REJECTED) if record.key == b"a" else None
    relay = beside("orders").build_relay("old")
    done = relay.run_once()
    assert (done.published, done.failed, done.retried) == (1, 0, 1)
    [(status, reason)] = new.rows("SELECT status, last_error FROM shield_outbox WHERE key = 'a'")
    assert status == "INIT"
    assert "does not declare the event type 'orders.split'" in reason
    relay.close()
    new.execute("UPDATE shield_outbox SET due_at = now()")
    assert new.relay("new").run_once().failed == 1
    assert undone == ["a"]


def test_rows_of_another_source_are_left_unchanged(
    new: Service, beside: Callable[[str], ShieldTx]
) -> None:
    billing = beside("billing")
    billing.declare("invoices.made")
    with new.transaction() as session:
        billing.outbox.add(session, Event(type="invoices.made", key="k"))
    with new.transaction() as session:
        new.app.outbox.add(session, Event(type="orders.split", key="k"))
    assert new.relay().run_once().published == 1
    assert new.rows("SELECT source, status FROM shield_outbox ORDER BY source") == [
        ("billing", "INIT"),
        ("orders", "PROCESSED"),
    ]
    assert new.app.stores.limits().other_sources("orders") == {"billing": 1}
    assert new.app.stores.limits().other_sources("billing") == {}


def test_key_blocked_by_rows_of_another_source_is_free(
    new: Service, beside: Callable[[str], ShieldTx], wire: Wire
) -> None:
    before = beside("billing")
    before.declare("orders.split", retry=LATER)
    with new.transaction() as session:
        before.outbox.add(session, Event(type="orders.split", payload=1, key="k"))
    wire.fate = lambda _record: answer(DeliveryOutcome.REFUSED)
    relay = before.build_relay("before")
    assert relay.run_once().retried == 1
    relay.close()
    wire.fate = lambda _record: None
    with new.transaction() as session:
        before.outbox.add(session, Event(type="orders.split", payload=2, key="k"))
        before.outbox.add(session, Event(type="orders.split", payload=3), delay=LATER.first)
        new.app.outbox.add_all(
            session, [Event(type="orders.split", payload=n, key="k") for n in (4, 5)]
        )
    # A relay of an earlier release blocked the rows after the row of the other source.
    new.execute("UPDATE shield_outbox SET holds_key = true WHERE source = 'orders'")
    relay = new.relay("after")
    drain(relay)
    assert [record.value for record in wire.published] == [b"4", b"5"]
    assert new.app.stores.limits().other_sources("orders") == {"billing": 3}


def test_two_live_services_on_one_schema_are_both_warned(
    new: Service, beside: Callable[[str], ShieldTx], caplog: pytest.LogCaptureFixture
) -> None:
    billing = beside("billing")
    billing.declare("orders.split")
    relays = [new.app.build_relay(), billing.build_relay()]
    for relay in relays * 3:
        relay.renew()
    for app in (new.app, billing):
        with new.transaction() as session:
            events = [Event(type="orders.split", key=f"k{n}") for n in range(40)]
            app.outbox.add_all(session, events)
    drain(*relays)
    for app in (new.app, billing):
        workers._warn_of_other_sources(app)
    warned = logged(caplog.records, "schema_shared")
    sources = [(each["source"], each["other_source"]) for each in warned]
    assert sources == [("orders", "billing"), ("billing", "orders")]
    assert all(str(each["advice"]).startswith("Give each service a schema") for each in warned)


@pytest.mark.parametrize("applied", [False, True])
def test_group_compensates_only_applied_events_of_another_source(
    new: Service, beside: Callable[[str], ShieldTx], applied: bool
) -> None:
    billing, undone = beside("billing"), []
    group, other = billing.consumer("billing"), billing.consumer("other")

    def refuse(session: Session, event: Event) -> None:
        raise Refused("no")

    @group.compensates("orders.split", retry=QUICK)
    def undo(session: Session, event: Event) -> None:
        undone.append(event.key)

    group.handles("orders.split", retry=QUICK)(effect("split") if applied else refuse)
    other.handles("orders.split", retry=QUICK)(refuse)
    with new.transaction() as session:
        new.app.outbox.add(session, Event(type="orders.split", key="k"))
    consumers = [billing.build_consumer(name) for name in ("billing", "other")]
    relay = new.relay()
    drain(relay, *consumers)
    relay.close()
    relay = billing.build_relay("billing's")
    drain(relay, *consumers)
    relay.close()
    rollbacks = new.rows("SELECT status FROM shield_inbox WHERE tx_kind = 'ROLLBACK'")
    assert rollbacks == [("PROCESSED",)] * (1 if applied else 2)
    assert undone == (["k"] if applied else [])
