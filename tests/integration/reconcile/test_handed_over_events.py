"""An event that a repair has handed over is processed as any received event."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from shieldtx import Event
from shieldtx.consumer.consumer import Consumer
from shieldtx.consumer.unhandled import SAMPLE_EVERY, UnhandledEvents
from shieldtx.ports.hand_over import Sent
from shieldtx.ports.repair import RepairAction, Repaired
from shieldtx.reconcile.repair.decisions import Policy
from shieldtx.reconcile.repair.limits import PART_BYTES
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.repair import SqlRepairStore
from shieldtx.tracing.timeline import trace
from tests.support.log_records import logged
from tests.support.repair_scenarios import BOTH, Pair
from tests.support.service import QUICK, Service, drain, effect, forget_groups, make_topics

HANDED_OVER = (Verdict.MISSING_DOWNSTREAM, RepairAction.HAND_OVER)
PLAIN = Policy(services=BOTH)
MB = 1_000_000


@pytest.fixture
def pair(make_service: Callable[..., Service]) -> Pair:
    return Pair(lambda name: make_service(name, trace=True))


def hand_over_all(pair: Pair) -> None:
    """Lose the events that stock has received, and hand them over."""
    pair.work()
    pair.lose_inbox_rows("stock")
    missing = pair.missing("stock")
    assert pair.repair(missing, policy=PLAIN).repaired == {HANDED_OVER: Repaired(done=len(missing))}


def consumer(pair: Pair, *event_types: str, handler: Callable[..., None]) -> Consumer:
    """Return a worker of another release of stock."""
    forget_groups(pair.stock.app, *list(pair.stock.app.groups))
    group = pair.stock.app.consumer("stock")
    for event_type in event_types:
        group.handles(event_type, retry=QUICK)(handler)
    make_topics(pair.stock)
    return pair.stock.app.build_consumer("stock")


def test_a_refused_event_is_rolled_back_and_compensated(pair: Pair):
    pair.write(1)
    hand_over_all(pair)
    pair.refuse = True

    pair.work()

    (row,) = pair.received("stock")
    assert (row["status"], row["record_partition"]) == ("MAX_RECONSUMED", None)
    assert pair.orders.effects("compensated") == ["k0"]


def test_handed_over_event_keeps_its_payload_and_its_schema(pair: Pair):
    pair.write(2)
    schema = "urn:shieldtx:orders.placed:1"
    pair.orders.execute("UPDATE shield_outbox SET dataschema = :schema", schema=schema)
    hand_over_all(pair)
    assert {(row["dataschema"], row["payload"]) for row in pair.received("stock")} == {
        (schema, row["payload"]) for row in pair.sent()
    }


def test_failed_attempt_is_retried_and_each_step_is_traced(pair: Pair):
    pair.write(1)
    hand_over_all(pair)
    failures = [ConnectionError("away"), ConnectionError("away")]

    def flaky(session: Any, event: Event) -> None:
        if failures:
            raise failures.pop()
        effect("stock")(session, event)

    worker = consumer(pair, "orders.placed", handler=flaky)
    assert worker.run_once().more
    assert (
        pair.stock.app.stores.inbox().pending("stock", handled={("orders.placed", "COMMIT")}) == {}
    )
    status = pair.stock.app.stores.status().read()
    assert [group.group for group in status.groups] == ["mail", "stock"]
    assert status.groups[1].backlog.states["PROCESSING"].rows == 1
    drain(worker)

    assert pair.stock.effects("stock") == ["k0"]
    (row,) = pair.received("stock")
    assert (row["status"], row["attempts"]) == ("PROCESSED", 3)
    for service in (pair.orders, pair.stock):
        service.app.tracer.flush()
    life = trace(
        row["event_id"],
        {"orders": pair.orders.app.stores.trace(), "stock": pair.stock.app.stores.trace()},
    )
    assert life is not None
    (hop,) = [hop for hop in life.hops if hop.group == "stock"]
    assert hop.status == "PROCESSED"
    assert hop.steps[-1].what == "APPLIED"
    (letter,) = [
        letter
        for letter in pair.stock.app.stores.dead_letters().find(row["event_id"])
        if letter.group == "stock"
    ]
    assert letter.status == "PROCESSED"


def test_a_type_without_a_handler_waits_and_is_never_given_up(
    pair: Pair, caplog: pytest.LogCaptureFixture
):
    pair.write(2)
    hand_over_all(pair)
    worker = consumer(pair, "orders.paid", handler=effect("stock"))
    minutes = iter(range(100))

    for _ in range(5):
        drain(worker)
    unhandled = UnhandledEvents(
        group=pair.stock.app.groups["stock"],
        store=pair.stock.app.stores.inbox(),
        clock=lambda: next(minutes) * SAMPLE_EVERY,
    )
    with caplog.at_level(logging.WARNING):
        unhandled.sample()

    *_, waiting = logged(caplog.records, "events_unhandled")
    assert (waiting["event_type"], waiting["kind"]) == ("orders.placed", "COMMIT")
    assert (waiting["group"], waiting["count"]) == ("stock", 2)
    handed = pair.received("stock")
    assert [(row["status"], row["attempts"]) for row in handed] == [("INIT", 0), ("INIT", 0)]
    assert pair.stock.outbox() == {}
    worker.close()

    drain(consumer(pair, "orders.placed", handler=effect("stock")))
    assert pair.stock.effects("stock") == ["k0", "k1"]


# --- memory --------------------------------------------------------------------------------------


def test_payloads_are_read_a_few_at_a_time(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    """Of 40 MB, memory holds at most the drivers' copies of one part."""
    with pair.orders.transaction() as session:
        for n in range(40):
            payload = {"n": n, "scan": "x" * (MB - 1000)}
            pair.orders.app.outbox.add(
                session, Event(type="orders.placed", key="k", payload=payload)
            )
    pair.work()
    pair.lose_inbox_rows("stock")
    missing = pair.missing("stock")
    read: list[int] = []
    sent = SqlRepairStore.sent

    def counted(self: SqlRepairStore, *given: Any, **named: Any) -> Sent:
        found = sent(self, *given, **named)
        read.append(sum(len(envelope.payload) for envelope in found.envelopes))
        return found

    monkeypatch.setattr(SqlRepairStore, "sent", counted)
    tracemalloc.start()
    report = pair.repair(missing, policy=PLAIN)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert report.repaired == {HANDED_OVER: Repaired(done=40)}
    assert sum(read) > 39 * MB
    assert max(read) <= PART_BYTES
    assert peak < 12 * MB, "besides, libpq has a copy of what it reads and of what it writes"
    digests = [
        service.rows(f"SELECT md5(payload) FROM shield_{table} {which} ORDER BY event_id")
        for service, table, which in (
            (pair.orders, "outbox", ""),
            (pair.stock, "inbox", "WHERE consumer_group = 'stock'"),
        )
    ]
    assert digests[0] == digests[1]
