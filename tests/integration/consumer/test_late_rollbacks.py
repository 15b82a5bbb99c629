"""Rollbacks and the purge: a row that a compensation needs stays; without it a rollback is DEAD."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from shieldtx import Event, Refused, RetryPolicy, TxKind
from shieldtx.brokers import cloudevents
from shieldtx.consumer.compensation import Compensation
from shieldtx.consumer.consumer import Consumer
from shieldtx.domain.events import Envelope, age_of, new_event_id
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import Attempt, AttemptOutcome, IncomingEvent
from tests.support.lanes import process
from tests.support.service import Service, as_received, effect, make_topics

Make = Callable[..., Service]
GROUP, TYPE = "shipping", "orders.placed"
MONTH = timedelta(days=30)


def old_id(ago: timedelta = MONTH) -> UUID:
    return UUID(int=new_event_id().int - (int(ago.total_seconds() * 1000) << 80))


def _next_id(event: Envelope) -> UUID:
    """Return an id of the same millisecond."""
    return UUID(int=event.id.int ^ 1)


def _refuse(session: Any, event: Event) -> None:
    raise Refused("not today")


class Undoing:
    """A service whose group handles and compensates, a month after the events."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.trouble: list[Exception] = []
        service.app.declare(TYPE)
        self.group = service.app.consumer(GROUP)
        self.group.compensates(TYPE, retry=RetryPolicy(max_attempts=1))(self._undo)
        make_topics(service)

    def _undo(self, session: Any, event: Event) -> None:
        if self.trouble:
            raise self.trouble[0]
        effect("undone")(session, event)

    def write(self, **more: Any) -> Envelope:
        """Write an event of the service, sent a month ago."""
        event = _envelope(GROUP, **more)
        with self.service.transaction() as session:
            self.service.app.outbox.add_envelope(session, event)
        self.service.execute("UPDATE shield_outbox SET status = 'PROCESSED'")
        self._age("shield_outbox")
        return event

    def receive(self, envelope: Envelope) -> Consumer:
        """Receive an event, and return the worker that received it."""
        worker = self.service.app.build_consumer(GROUP)
        received = as_received(cloudevents.encode(envelope, ""))
        worker._store.receive(GROUP, [IncomingEvent(envelope=envelope, record=received)], [])
        return worker

    def let_all_be_due(self) -> None:
        """Shorten all waits."""
        self.service.execute("UPDATE shield_inbox SET due_at = now() WHERE settled_at IS NULL")

    def work(self, envelope: Envelope) -> AttemptOutcome:
        """Receive an event, and process it."""
        worker = self.receive(envelope)
        outcome = process(worker, envelope)
        self._age("shield_inbox")
        return outcome

    def replay(self, rollback: Envelope) -> AttemptOutcome:
        """Replay a DEAD rollback, as an operator does."""
        self.service.execute(
            "UPDATE shield_inbox SET status = 'PROCESSING', attempts = 0, settled_at = NULL"
            " WHERE status = 'DEAD'"
        )
        return process(self.service.app.build_consumer(GROUP), rollback)

    def purge(self) -> None:
        retention = self.service.app.build_retention()
        while retention.run_once().removed:
            pass

    def rows(self, table: str) -> list[tuple[str, str]]:
        return self.service.rows(f"SELECT tx_kind, status FROM {table} ORDER BY 1, 2")

    def reason(self) -> str:
        [(reason,)] = self.service.rows("SELECT last_error FROM shield_inbox WHERE status = 'DEAD'")
        return str(reason)

    def _age(self, table: str) -> None:
        self.service.execute(
            f"UPDATE {table} SET settled_at = '2020-01-01 00:00:00.000000' "
            "WHERE status NOT IN ('INIT', 'PROCESSING')"
        )


def _envelope(by: str, kind: TxKind = TxKind.COMMIT, **more: Any) -> Envelope:
    return Envelope(
        **{
            "id": old_id(),
            "type": TYPE,
            "source": by,
            "topic": TYPE,
            "payload": "null",
            "time": datetime.now(UTC),
            "kind": kind,
            "key": "a",
        }
        | more
    )


def rollback_of(event: Envelope, **more: Any) -> Envelope:
    cause = {"causation_id": event.id, "causation_source": event.source}
    return _envelope("stock", TxKind.ROLLBACK, **cause | more)


@pytest.fixture
def undoing(make_service: Make) -> Undoing:
    return Undoing(make_service(GROUP))


def test_a_uuid7_has_the_age_of_its_event() -> None:
    now = datetime.now(UTC).timestamp()
    age = age_of(old_id(), now)
    assert age is not None
    assert abs(age - MONTH) < timedelta(minutes=1)
    assert age_of(UUID(int=old_id().int & ~(0xF << 76)), now) is None


def test_the_event_of_a_dead_compensation_survives_its_retention(undoing: Undoing) -> None:
    undoing.trouble.append(RuntimeError("bank away"))
    event = undoing.write()
    rollback = rollback_of(event)
    assert undoing.work(rollback) is AttemptOutcome.DEAD
    undoing.purge()
    assert undoing.rows("shield_outbox") == [("COMMIT", "PROCESSED")]
    undoing.trouble.clear()
    assert undoing.replay(rollback) is AttemptOutcome.COMPENSATED
    undoing._age("shield_inbox")
    undoing.purge()
    undoing.purge()
    assert undoing.rows("shield_outbox") == undoing.rows("shield_inbox") == []


def test_event_of_a_waiting_rollback_survives_its_retention(undoing: Undoing) -> None:
    event = undoing.write()
    undoing.group.handles(TYPE)(effect("shipped"))
    foreign = _envelope("orders")
    assert undoing.work(foreign) is AttemptOutcome.APPLIED
    for taken_back in (event, foreign):
        worker = undoing.service.app.build_consumer(GROUP)
        rollback = rollback_of(taken_back)
        record = ReceivedRecord(topic="t", partition=0, offset=0, key=None, value=b"")
        worker._store.receive(GROUP, [IncomingEvent(envelope=rollback, record=record)], [])
    undoing.purge()
    assert undoing.rows("shield_outbox") == [("COMMIT", "PROCESSED")]
    assert ("COMMIT", "PROCESSED") in undoing.rows("shield_inbox")


def test_received_event_is_kept_only_for_its_own_groups_rollback(undoing: Undoing) -> None:
    undoing.group.handles(TYPE)(effect("shipped"))
    undoing.trouble.append(RuntimeError("carrier away"))
    event, other = _envelope("orders"), _envelope("orders")
    assert [undoing.work(event), undoing.work(other)] == [AttemptOutcome.APPLIED] * 2
    rollback = rollback_of(event)
    assert undoing.work(rollback) is AttemptOutcome.DEAD
    undoing.purge()
    assert undoing.rows("shield_inbox") == [("COMMIT", "PROCESSED"), ("ROLLBACK", "DEAD")]
    undoing.trouble.clear()
    assert undoing.replay(rollback) is AttemptOutcome.COMPENSATED
    assert undoing.service.effects("undone") == ["a"]


def test_compensation_mark_stays_while_a_rollback_may_follow(
    undoing: Undoing,
) -> None:
    undoing.trouble.append(RuntimeError("bank away"))
    event = undoing.write()
    first = rollback_of(event)
    assert undoing.work(first) is AttemptOutcome.DEAD
    undoing.trouble.clear()
    assert undoing.work(rollback_of(event, source="billing")) is AttemptOutcome.COMPENSATED
    undoing.purge()
    assert undoing.replay(first) is AttemptOutcome.MOOT
    assert undoing.service.effects("undone") == ["a"]


def test_a_rollback_of_a_purged_event_is_dead_with_its_reason(undoing: Undoing) -> None:
    undoing.group.handles(TYPE)(effect("shipped"))
    event = _envelope("orders")
    assert undoing.work(event) is AttemptOutcome.APPLIED
    undoing.purge()
    assert undoing.rows("shield_inbox") == []
    assert undoing.work(rollback_of(event)) is AttemptOutcome.DEAD
    assert f"comes too late: event {event.id} of orders is 30 days old" in undoing.reason()


def test_rollbacks_of_two_sources_with_one_id_are_not_lost(undoing: Undoing) -> None:
    """The second event cannot be taken back under the same id: its rollback needs an operator."""
    undoing.group.handles(TYPE)(effect("shipped"))
    one = _envelope("orders")
    other = _envelope("shops", id=one.id)
    for event in (one, other):
        assert undoing.work(event) is AttemptOutcome.APPLIED
    assert undoing.work(rollback_of(one)) is AttemptOutcome.COMPENSATED
    assert undoing.work(rollback_of(one, id=old_id())) is AttemptOutcome.MOOT
    assert undoing.work(rollback_of(other, id=old_id())) is AttemptOutcome.DEAD
    assert "shield_inbox_compensated_id_key" in undoing.reason()
    assert undoing.service.effects("undone") == ["a"]


def test_event_that_arrives_after_its_late_rollback_is_refused(
    undoing: Undoing,
) -> None:
    undoing.group.handles(TYPE)(effect("shipped"))
    event = _envelope("orders")
    rollback = rollback_of(event)
    assert undoing.work(rollback) is AttemptOutcome.DEAD
    assert undoing.work(event) is AttemptOutcome.BLOCKED
    undoing.purge()
    assert undoing.rows("shield_inbox") == [("COMMIT", "FENCED"), ("ROLLBACK", "DEAD")]
    assert undoing.replay(rollback) is AttemptOutcome.DEAD
    assert "comes too late" in undoing.reason()
    assert undoing.service.effects() == []


def test_rollback_of_another_groups_event_waits_for_operator(
    undoing: Undoing,
) -> None:
    event = _envelope("orders")
    undoing.service.app.consumer("another").handles(TYPE)(effect("shipped"))
    worker = undoing.service.app.build_consumer("another")
    received = as_received(cloudevents.encode(event, ""))
    worker._store.receive("another", [IncomingEvent(envelope=event, record=received)], [])
    assert undoing.work(rollback_of(event)) is AttemptOutcome.DEAD
    assert f"group {GROUP!r} has no handler for {TYPE}" in undoing.reason()
    assert undoing.rows("shield_inbox") == [("COMMIT", "INIT"), ("ROLLBACK", "DEAD")]


def test_rollback_of_another_services_event_of_own_type_is_moot(
    undoing: Undoing,
) -> None:
    """The other service takes the event back; both services read the rollbacks of the type."""
    event = _envelope("orders", id=old_id(timedelta(days=5)))
    assert undoing.work(rollback_of(event)) is AttemptOutcome.MOOT
    assert undoing.rows("shield_inbox") == [("ROLLBACK", "PROCESSED")]


def test_rollback_of_a_possibly_purged_event_waits_for_operator(
    undoing: Undoing,
) -> None:
    event = _envelope("the-old-name", id=old_id(timedelta(days=10)))
    assert undoing.work(rollback_of(event)) is AttemptOutcome.DEAD
    assert "SHIELDTX_RETENTION_OUTBOX is 7 days" in undoing.reason()


def test_rollback_in_an_unrelated_group_waits_for_operator(
    make_service: Make,
) -> None:
    shipping = make_service("shipping")
    shipping.app.consumer("returns").compensates(TYPE, retry=RetryPolicy(max_attempts=1))(
        effect("undone")
    )
    make_topics(shipping)
    rollback = rollback_of(_envelope("orders"))
    worker = shipping.app.build_consumer("returns")
    received = as_received(cloudevents.encode(rollback, ""))
    worker._store.receive("returns", [IncomingEvent(envelope=rollback, record=received)], [])
    assert process(worker, rollback) is AttemptOutcome.DEAD


def test_rollback_of_a_rollback_waits_for_operator(undoing: Undoing) -> None:
    undoing.group.handles(TYPE)(effect("shipped"))
    rollback = rollback_of(_envelope("orders", id=new_event_id()), id=new_event_id())
    assert undoing.work(rollback) is AttemptOutcome.MOOT
    of_it = rollback_of(rollback, id=new_event_id())
    assert undoing.work(of_it) is AttemptOutcome.DEAD
    assert "which is a rollback itself: nothing takes one back" in undoing.reason()


def test_rollback_of_an_old_rollback_waits_for_operator(undoing: Undoing) -> None:
    undoing.group.handles(TYPE)(effect("shipped"))
    rollback = rollback_of(_envelope("orders", id=new_event_id()), id=old_id())
    assert undoing.work(rollback) is AttemptOutcome.MOOT
    assert undoing.work(rollback_of(rollback, id=new_event_id())) is AttemptOutcome.DEAD
    assert "comes too late" in undoing.reason()


def test_event_arriving_as_its_rollback_is_given_up_is_undone(
    undoing: Undoing, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[object] = []
    undoing.service.app.hooks.before_consume(lambda _: called.append("before"))
    undoing.service.app.hooks.on_consume_error(lambda context: called.append(context.outcome))
    undoing.group.handles(TYPE)(effect("shipped"))
    event = _envelope("orders")
    rollback = rollback_of(event)
    refuse = Compensation._refuse_late

    def refuse_while_it_comes(self: Compensation, attempt: Attempt) -> None:
        undoing.receive(event)
        refuse(self, attempt)

    with monkeypatch.context() as patched:
        patched.setattr(Compensation, "_refuse_late", refuse_while_it_comes)
        assert undoing.work(rollback) is AttemptOutcome.BLOCKED
    assert called == ["before", AttemptOutcome.BLOCKED]
    undoing.let_all_be_due()
    assert undoing.work(event) is AttemptOutcome.APPLIED
    undoing.let_all_be_due()
    assert undoing.work(rollback) is AttemptOutcome.COMPENSATED


def test_foreign_event_in_the_same_tables_is_not_an_own_event(
    undoing: Undoing,
) -> None:
    """An event that its handler refused is not taken back, although its row is in the outbox."""
    undoing.group.handles("basket.filled", retry=RetryPolicy(max_attempts=1))(_refuse)
    undoing.group.compensates("basket.filled")(effect("undone"))
    event = undoing.write(source="till", type="basket.filled")
    assert undoing.work(event) is AttemptOutcome.REFUSED
    assert undoing.work(rollback_of(event)) is AttemptOutcome.MOOT
    assert undoing.service.effects("undone") == []


def test_a_rollback_of_a_young_event_that_has_not_come_is_moot(undoing: Undoing) -> None:
    undoing.group.handles(TYPE)(effect("shipped"))
    event = _envelope("orders", id=old_id(timedelta(days=10)))
    assert undoing.work(rollback_of(event)) is AttemptOutcome.MOOT


def test_event_belongs_to_its_service_after_a_rename(
    make_service: Make,
) -> None:
    undoing = Undoing(make_service(GROUP))
    event = undoing.write(source="the-old-name")
    assert undoing.work(rollback_of(event, causation_source="somebody-else")) is AttemptOutcome.DEAD
    assert undoing.work(rollback_of(event)) is AttemptOutcome.COMPENSATED


def test_cause_of_an_unsettled_event_survives_its_retention(undoing: Undoing) -> None:
    undoing.group.handles(TYPE)(effect("shipped"))
    cause = _envelope("orders")
    assert undoing.work(cause) is AttemptOutcome.APPLIED
    event = undoing.write(causation_id=cause.id, causation_source="orders")
    undoing.service.execute("UPDATE shield_outbox SET status = 'INIT', settled_at = NULL")
    undoing.purge()
    assert undoing.rows("shield_inbox") == [("COMMIT", "PROCESSED")]
    assert undoing.work(rollback_of(event)) is AttemptOutcome.COMPENSATED
    passed_on = undoing.service.rows(
        "SELECT causation_source FROM shield_outbox WHERE tx_kind = 'ROLLBACK'"
    )
    assert passed_on == [("orders",)]


def test_rollback_of_an_event_with_a_purged_cause_is_dead(undoing: Undoing) -> None:
    event = undoing.write(causation_id=old_id(), causation_source="orders")
    assert undoing.work(rollback_of(event)) is AttemptOutcome.DEAD
    assert "which is 30 days old and was perhaps purged here" in undoing.reason()
    assert undoing.service.effects("undone") == []


def test_rollback_chain_ends_at_a_cause_never_received(undoing: Undoing) -> None:
    event = undoing.write(causation_id=old_id(timedelta(days=1)), causation_source="orders")
    assert undoing.work(rollback_of(event)) is AttemptOutcome.COMPENSATED


def test_old_event_written_by_a_compensation_can_be_taken_back(
    undoing: Undoing,
) -> None:
    first = undoing.write()
    rollback = rollback_of(first)
    assert undoing.work(rollback) is AttemptOutcome.COMPENSATED
    second = undoing.write(id=_next_id(first), causation_id=rollback.id, causation_source="stock")
    assert undoing.work(rollback_of(second, id=_next_id(rollback))) is AttemptOutcome.COMPENSATED
    # The chain ends there: a rollback cannot be taken back.
    assert undoing.service.effects("undone") == ["a", "a"]
    assert undoing.service.rows("SELECT 1 FROM shield_outbox WHERE tx_kind = 'ROLLBACK'") == []


def test_rollback_stays_as_long_as_the_event_that_it_caused(
    undoing: Undoing,
) -> None:
    first = undoing.write()
    rollback = rollback_of(first)
    assert undoing.work(rollback) is AttemptOutcome.COMPENSATED
    second = undoing.write(id=_next_id(first), causation_id=rollback.id, causation_source="stock")
    undoing.service.execute(
        "UPDATE shield_outbox SET status = 'INIT', settled_at = NULL WHERE event_id = :id",
        id=second.id,
    )
    undoing.purge()
    undoing.purge()
    assert undoing.rows("shield_outbox") == [("COMMIT", "INIT")]
    assert undoing.rows("shield_inbox") == [("ROLLBACK", "PROCESSED")]
    undoing.service.execute("UPDATE shield_outbox SET status = 'PROCESSED'")
    undoing._age("shield_outbox")
    undoing.purge()
    undoing.purge()
    assert undoing.rows("shield_outbox") == undoing.rows("shield_inbox") == []


def test_a_rollback_without_an_age_waits_for_an_operator(
    undoing: Undoing,
) -> None:
    undoing.group.handles(TYPE)(effect("shipped"))
    event = _envelope("a producer in Java", id=uuid4())
    assert undoing.work(event) is AttemptOutcome.APPLIED
    undoing.purge()
    assert undoing.work(rollback_of(event)) is AttemptOutcome.DEAD
    assert "not a UUIDv7" in undoing.reason()
    assert undoing.service.effects() == ["a"]


def test_event_after_its_rollback_has_no_effect_with_any_id(
    undoing: Undoing,
) -> None:
    undoing.group.handles(TYPE)(effect("shipped"))
    event = _envelope("a producer in Java", id=uuid4())
    assert undoing.work(rollback_of(event)) is AttemptOutcome.DEAD
    undoing.work(event)
    assert undoing.service.effects() == []
