"""The behaviour of every inbox store, on each database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import create_engine, select

from shieldtx.domain.events import Envelope, new_event_id
from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.errors import LeaseLost
from shieldtx.ports.broker import BATCH_BYTES, ReceivedRecord
from shieldtx.ports.inbox import Attempt, IncomingEvent, Parked, Receipt
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.unfinished_rows import UnfinishedRows
from tests.contract.conftest import POSTGRESQL, Stores
from tests.contract.store.test_outbox import envelope, write

GROUP = "group"
LEASE = timedelta(minutes=1)
HANDLED = frozenset(("things.happened", kind) for kind in TxKind)


def record(offset: int = 0) -> ReceivedRecord:
    return ReceivedRecord(topic="things.commit", partition=0, offset=offset, key=b"k", value=b"{}")


def receive(stores: Stores, *envelopes: Envelope, group: str = GROUP) -> Receipt:
    arrivals = [IncomingEvent(envelope=e, record=record(n)) for n, e in enumerate(envelopes)]
    return stores.inbox.receive(group, arrivals, [])


def begin(stores: Stores, event: Envelope, most: int = 10, lease: timedelta = LEASE) -> Attempt:
    attempt = stores.inbox.start_attempt(GROUP, event, lease=lease, max_attempts=most)
    assert attempt is not None
    return attempt


def may_begin(stores: Stores, event: Envelope) -> bool:
    return stores.inbox.start_attempt(GROUP, event, lease=LEASE, max_attempts=10) is not None


def due(stores: Stores, limit: int = 10) -> list[UUID]:
    return [e.id for e in stores.inbox.due(GROUP, handled=HANDLED, limit=limit)]


def finish(stores: Stores, attempt: Attempt) -> None:
    with stores.inbox.effect(attempt):
        pass


def row(stores: Stores, event: Envelope) -> Any:
    i = stores.tables.inbox
    with stores.engine.connect() as connection:
        return connection.execute(
            select(i.c.status, i.c.attempts, i.c.last_error).where(i.c.event_id == event.id)
        ).one()


def row_of(stores: Stores, event: Envelope, *, group: str) -> Any:
    i = stores.tables.inbox.c
    with stores.engine.connect() as connection:
        return connection.execute(
            select(i.status, i.attempts).where(i.event_id == event.id, i.consumer_group == group)
        ).one()


def rollback_of(event: Envelope, **more: Any) -> Envelope:
    return envelope(
        event.key,
        **{
            "kind": TxKind.ROLLBACK,
            "source": "downstream",
            "causation_id": event.id,
            "causation_source": event.source,
        }
        | more,
    )


def test_new_events_are_returned_in_the_order_of_arrival(stores: Stores) -> None:
    events = [envelope(f"k{n}") for n in range(20)]
    assert [e.id for e in receive(stores, *events).fresh] == [e.id for e in events]
    assert [e.id for e in stores.inbox.due(GROUP, handled=HANDLED, limit=100)] == [
        e.id for e in events
    ]
    assert due(stores, limit=3) == [e.id for e in events[:3]]


@pytest.mark.parametrize("kind", TxKind)
def test_rows_without_a_handler_are_not_due_but_counted(stores: Stores, kind: TxKind) -> None:
    old = [envelope(f"o{n}", type="things.were", kind=kind) for n in range(5)]
    other = TxKind.ROLLBACK if kind is TxKind.COMMIT else TxKind.COMMIT
    odd = envelope("p", kind=other)
    new = envelope("n", kind=kind)
    receive(stores, *old, odd, new)
    handled = {("things.happened", kind)}
    inbox = stores.inbox
    assert [e.id for e in inbox.due(GROUP, handled=handled, limit=5)] == [new.id]
    assert sum(inbox.pending(GROUP, handled=handled).values()) == 1
    assert inbox.unhandled(GROUP, handled=handled, limit=100) == {
        ("things.were", kind): 5,
        ("things.happened", other): 1,
    }
    assert sum(inbox.unhandled(GROUP, handled=handled, limit=3).values()) == 3
    assert inbox.due(GROUP, handled=set(), limit=5) == []
    assert sum(inbox.unhandled(GROUP, handled=set(), limit=100).values()) == 7


def test_unfinished_rows_of_all_types_are_counted_up_to_a_limit(stores: Stores) -> None:
    unfinished = UnfinishedRows(stores.engine, stores.tables, batch_bytes=BATCH_BYTES)
    assert unfinished.count(GROUP, limit=100) == 0
    settled, started, odd = envelope("a"), envelope("b"), envelope("c", type="things.were")
    receive(stores, settled, started, odd)
    receive(stores, *(envelope("d") for _ in range(5)), group="another")
    finish(stores, begin(stores, settled))
    begin(stores, started)
    assert unfinished.count(GROUP, limit=100) == 2
    assert unfinished.count(GROUP, limit=1) == 1


def test_settled_rows_and_other_groups_are_not_counted(stores: Stores) -> None:
    settled, odd = envelope("a"), envelope("b", type="things.were")
    receive(stores, settled)
    finish(stores, begin(stores, settled))
    receive(stores, envelope("a"), odd, group="another")
    assert stores.inbox.pending(GROUP, handled=HANDLED) == {}
    assert stores.inbox.unhandled(GROUP, handled=HANDLED, limit=100) == {}


def test_an_event_is_received_once_per_group(stores: Stores) -> None:
    event = envelope()
    assert len(receive(stores, event, event).fresh) == 1
    assert receive(stores, event).duplicates == 1
    assert len(receive(stores, event, group="another").fresh) == 1


def test_the_same_id_from_another_source_is_another_event(stores: Stores) -> None:
    event = envelope()
    receive(stores, event)
    assert len(receive(stores, event.evolve(source="elsewhere")).fresh) == 1


def test_a_business_key_seen_in_another_event_is_parked(stores: Stores) -> None:
    receive(stores, envelope(biz_key="once"))
    receipt = receive(stores, envelope(biz_key="once"))
    assert (len(receipt.fresh), receipt.duplicates, len(receipt.parked)) == (0, 0, 1)
    # A rollback of the same business object may repeat the business key.
    assert len(receive(stores, rollback_of(envelope(biz_key="once"), biz_key="once")).fresh) == 1


def test_a_parked_record_is_kept_once(stores: Stores) -> None:
    for _ in range(2):
        stores.inbox.receive(GROUP, [], [Parked(record=record(), reason="bad bytes")])
    with stores.engine.connect() as connection:
        reasons = connection.scalars(select(stores.tables.parked.c.reason)).all()
    assert reasons == ["bad bytes"]


def test_an_attempt_is_counted_and_leased(stores: Stores) -> None:
    event = envelope()
    receive(stores, event)
    assert begin(stores, event).number == 1
    assert row(stores, event)[:2] == ("PROCESSING", 1)
    assert not may_begin(stores, event)
    assert stores.inbox.due(GROUP, handled=HANDLED, limit=10) == []


def test_leased_row_is_not_started_again_by_its_group(
    stores: Stores,
) -> None:
    event = envelope()
    receive(stores, event)
    receive(stores, event, group="another")
    begin(stores, event)
    assert not may_begin(stores, event)
    assert row_of(stores, event, group="another") == ("INIT", 0)


@pytest.mark.parametrize("stores", [POSTGRESQL], indirect=True)
def test_row_whose_handler_outlives_its_lease_does_not_block(stores: Stores) -> None:
    event = envelope()
    receive(stores, event)
    attempt = begin(stores, event, lease=timedelta(0))
    impatient = create_engine(stores.engine.url, connect_args={"options": "-c lock_timeout=500"})
    second = SqlInboxStore(impatient, stores.tables)
    with stores.inbox.effect(attempt):
        started = second.start_attempt(GROUP, event, lease=LEASE, max_attempts=10)
    impatient.dispose()
    assert started is None
    assert row(stores, event)[:2] == ("PROCESSED", 1)


def test_a_later_event_of_a_key_waits_for_the_earlier_one(stores: Stores) -> None:
    first, second, other = envelope("a"), envelope("a"), envelope("b")
    receive(stores, first, second, other)
    assert [e.id for e in stores.inbox.due(GROUP, handled=HANDLED, limit=10)] == [
        first.id,
        other.id,
    ]
    assert not may_begin(stores, second)
    finish(stores, begin(stores, first))
    assert may_begin(stores, second)


def test_an_open_row_of_a_key_blocks_no_other_group(stores: Stores) -> None:
    event = envelope("a")
    receive(stores, envelope("a"), group="another")
    receive(stores, event)
    assert due(stores) == [event.id]
    assert may_begin(stores, event)


def test_events_without_a_key_wait_for_no_other(stores: Stores) -> None:
    first, second = envelope(None), envelope(None)
    receive(stores, first, second)
    begin(stores, first)
    assert may_begin(stores, second)


@pytest.mark.begun_by_hand
def test_the_effect_and_its_status_are_one_transaction(stores: Stores) -> None:
    event = envelope()
    receive(stores, event)
    attempt = begin(stores, event)
    with pytest.raises(RuntimeError), stores.inbox.effect(attempt):
        raise RuntimeError
    assert row(stores, event).status == "PROCESSING"
    finish(stores, attempt)
    assert row(stores, event).status == "PROCESSED"


def test_a_settled_row_cannot_be_entered_again(stores: Stores) -> None:
    event = envelope()
    receive(stores, event)
    attempt = begin(stores, event)
    finish(stores, attempt)
    with pytest.raises(LeaseLost):
        finish(stores, attempt)
    assert not may_begin(stores, event)
    assert not stores.inbox.postpone(attempt, delay=LEASE, reason="x")
    assert not stores.inbox.give_up(attempt, reason="x", in_transaction=None)


def test_a_worker_that_was_taken_over_can_write_nothing(stores: Stores) -> None:
    event = envelope()
    receive(stores, event)
    old = begin(stores, event, lease=timedelta(0))
    new = begin(stores, event)
    with pytest.raises(LeaseLost):
        finish(stores, old)
    assert not stores.inbox.postpone(old, delay=LEASE, reason="x")
    assert not stores.inbox.give_up(old, reason="x", in_transaction=None)
    assert new.number == 2
    finish(stores, new)


def test_a_postponed_row_comes_back_when_it_is_due(stores: Stores) -> None:
    now, later = envelope("a"), envelope("b")
    receive(stores, now, later)
    stores.inbox.postpone(begin(stores, now), delay=timedelta(0), reason="again")
    stores.inbox.postpone(begin(stores, later), delay=LEASE, reason="later")
    assert [e.id for e in stores.inbox.due(GROUP, handled=HANDLED, limit=10)] == [now.id]
    assert begin(stores, now).number == 2
    assert row(stores, later) == ("PROCESSING", 1, "later")


def test_deferred_row_waits_and_its_attempt_is_not_counted(stores: Stores) -> None:
    event = envelope(dataschema="urn:shieldtx:orders.placed:2")
    receive(stores, event)
    stores.inbox.postpone(begin(stores, event), delay=timedelta(0), reason="x")
    attempt = begin(stores, event)
    assert stores.inbox.defer(attempt, delay=LEASE, reason="of version 2")
    assert row(stores, event) == ("PROCESSING", 1, "of version 2")
    assert stores.inbox.due(GROUP, handled=HANDLED, limit=10) == []
    assert not stores.inbox.defer(attempt, delay=LEASE, reason="x")


def test_received_event_keeps_the_schema_of_its_record(stores: Stores) -> None:
    event = envelope(dataschema="https://example.org/orders.placed/3")
    receive(stores, event)
    assert [e.dataschema for e in stores.inbox.due(GROUP, handled=HANDLED, limit=10)] == [
        event.dataschema
    ]


def test_attempt_after_the_last_is_exhausted_and_not_counted(stores: Stores) -> None:
    event = envelope()
    receive(stores, event)
    begin(stores, event, most=1, lease=timedelta(0))
    attempt = begin(stores, event, most=1)
    assert (attempt.number, attempt.exhausted) == (1, True)
    stores.inbox.give_up(attempt, reason="died", in_transaction=None)
    assert row(stores, event) == ("MAX_RECONSUMED", 1, "died")


@pytest.mark.begun_by_hand
@pytest.mark.parametrize(("kind", "end"), [("COMMIT", "MAX_RECONSUMED"), ("ROLLBACK", "DEAD")])
def test_giving_up_and_its_callback_share_one_transaction(
    stores: Stores, kind: str, end: str
) -> None:
    event = envelope(kind=TxKind(kind), causation_id=new_event_id())
    receive(stores, event)
    attempt = begin(stores, event)

    def fail(session: object) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        stores.inbox.give_up(attempt, reason="x", in_transaction=fail)
    assert row(stores, event).status == "PROCESSING"
    assert stores.inbox.give_up(attempt, reason="x", in_transaction=None)
    assert row(stores, event).status == end


NAMES_NO_SOURCE = {"causation_source": None}


@pytest.mark.parametrize("more", [{}, NAMES_NO_SOURCE], ids=["source", "no source"])
def test_a_rollback_waits_for_the_event_that_it_takes_back(
    stores: Stores, more: dict[str, Any]
) -> None:
    event = envelope(None)
    rollback = rollback_of(event, **more)
    receive(stores, event, rollback)
    attempt = begin(stores, event)
    assert not may_begin(stores, rollback)
    finish(stores, attempt)
    assert may_begin(stores, rollback)


def test_a_rollback_does_not_wait_for_its_event_in_another_group(stores: Stores) -> None:
    event = envelope(None)
    rollback = rollback_of(event)
    receive(stores, event, group="another")
    receive(stores, rollback)
    assert due(stores) == [rollback.id]
    assert may_begin(stores, rollback)


def test_two_rollbacks_that_name_each_other_do_not_wait(stores: Stores) -> None:
    named = envelope(None)
    one = rollback_of(named)
    other = rollback_of(one, id=named.id, source=named.source)
    receive(stores, one, other)
    assert due(stores) == [one.id, other.id]
    begin(stores, one)
    assert may_begin(stores, other)


@pytest.mark.parametrize("more", [{}, NAMES_NO_SOURCE], ids=["source", "no source"])
def test_early_rollback_and_its_event_do_not_deadlock(stores: Stores, more: dict[str, Any]) -> None:
    """A rollback received before its event waits for the event, and not the reverse."""
    first, event = envelope("k"), envelope("k")
    rollback = rollback_of(event, **more)
    receive(stores, rollback, first, event)
    assert [e.id for e in stores.inbox.due(GROUP, handled=HANDLED, limit=10)] == [first.id]
    assert not may_begin(stores, rollback)
    assert not may_begin(stores, event)
    finish(stores, begin(stores, first))
    finish(stores, begin(stores, event))
    assert may_begin(stores, rollback)


def test_the_original_of_a_rollback_is_found_on_the_right_side(stores: Stores) -> None:
    written, received = envelope("a"), envelope("b", source="elsewhere")
    write(stores, written)
    receive(stores, received)
    finish(stores, begin(stores, received))
    mine, others = rollback_of(written), rollback_of(received)
    receive(stores, mine, others)
    with stores.inbox.effect(begin(stores, mine)) as session:
        attempt = Attempt(envelope=mine, group=GROUP, number=1, token=new_event_id())
        original = stores.inbox.original(session, attempt, written_here=True)
        assert original is not None
        assert (original.envelope.id, original.status) == (written.id, None)
        assert stores.inbox.original(session, attempt, written_here=False) is None
    with stores.inbox.effect(begin(stores, others)) as session:
        attempt = Attempt(envelope=others, group=GROUP, number=1, token=new_event_id())
        original = stores.inbox.original(session, attempt, written_here=False)
        assert original is not None
        assert (original.envelope.id, original.status) == (received.id, InboxStatus.PROCESSED)


@pytest.mark.parametrize("stores", ["postgresql"], indirect=True)
def test_the_received_original_of_a_rollback_is_locked(stores: Stores) -> None:
    received = envelope("b", source="elsewhere")
    receive(stores, received)
    finish(stores, begin(stores, received))
    rollback = rollback_of(received)
    receive(stores, rollback)
    attempt = begin(stores, rollback)
    i = stores.tables.inbox
    free = select(i.c.event_id).where(i.c.event_id == received.id).with_for_update(skip_locked=True)
    with stores.inbox.effect(attempt) as session:
        assert stores.inbox.original(session, attempt, written_here=False) is not None
        with stores.engine.begin() as another:
            assert another.execute(free).all() == []


@pytest.mark.begun_by_hand
def test_compensation_is_marked_once(stores: Stores) -> None:
    event = envelope("a")
    write(stores, event)
    first, second = rollback_of(event), rollback_of(event)
    receive(stores, first, second)
    attempt = begin(stores, first)
    with stores.inbox.effect(attempt) as session:
        stores.inbox.mark_compensated(session, attempt)
    again = begin(stores, second)
    with stores.inbox.effect(again) as session:
        original = stores.inbox.original(session, again, written_here=True)
        assert original is not None
        assert original.compensated
    third = rollback_of(event)
    receive(stores, third)
    late = begin(stores, third)
    with pytest.raises(Exception, match=r"(?i)unique"), stores.inbox.effect(late) as session:
        stores.inbox.mark_compensated(session, late)


def test_compensation_is_marked_for_its_group_only(stores: Stores) -> None:
    event = envelope("a")
    write(stores, event)
    first, second = rollback_of(event), rollback_of(event)
    receive(stores, first, second)
    noted = begin(stores, first)
    with stores.inbox.effect(noted) as session:
        stores.inbox.mark_compensated(session, noted)
    with stores.inbox.effect(begin(stores, second)) as session:
        of_another = Attempt(envelope=second, group="another", number=1, token=new_event_id())
        original = stores.inbox.original(session, of_another, written_here=True)
        assert original is not None
        assert not original.compensated


def test_rollback_written_here_is_not_an_original(stores: Stores) -> None:
    written = rollback_of(envelope("a"), source="things")
    write(stores, written)
    rollback = rollback_of(written)
    receive(stores, rollback)
    attempt = begin(stores, rollback)
    with stores.inbox.effect(attempt) as session:
        assert stores.inbox.original(session, attempt, written_here=True) is None


def test_the_cause_of_an_event_is_known_by_its_id_and_source(stores: Stores) -> None:
    cause, namesake = envelope("a"), envelope("b", source="elsewhere")
    namesake = namesake.evolve(id=cause.id)
    receive(stores, namesake, group="another")
    receive(stores, cause)
    with stores.inbox.effect(begin(stores, cause)) as session:
        for named in (cause, namesake):
            written = envelope(causation_id=named.id, causation_source=named.source)
            found = stores.inbox.cause(session, written)
            assert found is not None
            assert (found.source, found.key) == (named.source, named.key)
        foreign = envelope(causation_id=cause.id, causation_source="nowhere")
        for written in (foreign, envelope()):
            assert stores.inbox.cause(session, written) is None


def test_a_tombstone_refuses_the_late_event(stores: Stores) -> None:
    event = envelope("a", source="elsewhere")
    rollback = rollback_of(event)
    receive(stores, rollback)
    attempt = begin(stores, rollback)
    with stores.inbox.effect(attempt) as session:
        assert stores.inbox.fence(session, attempt)
        assert not stores.inbox.fence(session, attempt)
    assert row(stores, event).status == "FENCED"
    assert receive(stores, event).duplicates == 1
    assert stores.inbox.due(GROUP, handled=HANDLED, limit=10) == []
