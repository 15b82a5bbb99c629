"""Batches that a database refuses, tested without a database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError, OperationalError

from shieldtx.domain.events import Envelope, new_event_id
from shieldtx.errors import ShieldTxError
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import IncomingEvent, Parked, Receipt, ReceivedInPart
from shieldtx.store.halving import receive_in_halves


class OutOfMemory(psycopg.errors.OutOfMemory):
    """The error as the server raises it."""


def arrival(offset: int) -> IncomingEvent:
    record = ReceivedRecord("t.commit", 0, offset, b"k", b"{}")
    event = Envelope(
        id=new_event_id(), type="t", source="s", topic="t", payload="{}", time=datetime.now(UTC)
    )
    return IncomingEvent(envelope=event, record=record)


class Inbox:
    """Accepts at most `most` records at a time, and never a batch with the record at `poison`."""

    def __init__(self, *, most: int, error: Exception, poison: int | None = None) -> None:
        self.most, self.error, self.poison = most, error, poison
        self.received: list[int] = []
        self.calls = 0

    def receive(self, arrivals: Sequence[IncomingEvent], parked: Sequence[Parked]) -> Receipt:
        self.calls += 1
        records = [a.record for a in arrivals] + [p.record for p in parked]
        if len(records) > self.most or self.poison in [r.offset for r in records]:
            raise self.error
        self.received += [r.offset for r in records]
        fresh = [a.envelope for a in arrivals]
        return Receipt(fresh=fresh, started=[], duplicates=0, parked=parked)


def of_the_server(error: psycopg.Error) -> DBAPIError:
    return OperationalError("INSERT ...", {}, error)


@pytest.mark.parametrize("error", [MemoryError(), of_the_server(OutOfMemory("out of memory"))])
def test_batch_that_is_too_large_is_received_in_ordered_parts(error: Exception) -> None:
    inbox = Inbox(most=3, error=error)
    receipt = receive_in_halves(inbox.receive, [arrival(n) for n in range(10)], [], group="stock")
    assert inbox.received == list(range(10))
    assert len(receipt.fresh) == 10


def test_record_that_is_too_large_by_itself_is_named() -> None:
    inbox = Inbox(most=99, error=MemoryError(), poison=2)
    with pytest.raises(ReceivedInPart) as raised:
        receive_in_halves(inbox.receive, [arrival(n) for n in range(4)], [], group="stock")
    assert isinstance(raised.value.error, ShieldTxError)
    assert "t.commit[0]@2 (3 bytes) cannot be stored" in str(raised.value)


@pytest.mark.parametrize("poison", range(9))
def test_records_received_before_an_error_are_in_its_receipt(poison: int) -> None:
    inbox = Inbox(most=3, error=MemoryError(), poison=poison)
    arrivals = [arrival(n) for n in range(9)]
    with pytest.raises((ReceivedInPart, ShieldTxError)) as raised:
        receive_in_halves(inbox.receive, arrivals, [], group="stock")
    assert inbox.received == list(range(poison))
    received = raised.value.receipt.fresh if isinstance(raised.value, ReceivedInPart) else []
    assert received == [a.envelope for a in arrivals[:poison]]


@pytest.mark.parametrize(
    "error",
    [psycopg.OperationalError("connection refused"), psycopg.errors.LockNotAvailable("lock")],
)
def test_error_unrelated_to_batch_size_is_raised_at_once(error: Any) -> None:
    inbox = Inbox(most=0, error=of_the_server(error))
    with pytest.raises(OperationalError):
        receive_in_halves(inbox.receive, [arrival(n) for n in range(4)], [], group="stock")
    assert inbox.calls == 1


def parked(offset: int) -> Parked:
    return Parked(record=ReceivedRecord("t.commit", 0, offset, b"k", b"?"), reason="no JSON")


@pytest.mark.parametrize("most", [1, 2, 3])
def test_receipt_of_parts_counts_all_duplicates_and_parked(most: int) -> None:
    def receive(arrivals: Sequence[IncomingEvent], records: Sequence[Parked]) -> Receipt:
        if len(arrivals) + len(records) > most:
            raise MemoryError
        return Receipt(fresh=[], started=[], duplicates=len(arrivals), parked=records)

    receipt = receive_in_halves(
        receive, [arrival(n) for n in range(5)], [parked(n) for n in range(5, 9)], group="stock"
    )
    assert (receipt.duplicates, len(receipt.parked)) == (5, 4)


@pytest.mark.parametrize("number", [1, 2])
def test_refused_event_keeps_all_parked_records_of_its_batch(number: int) -> None:
    stored: list[int] = []

    def receive(arrivals: Sequence[IncomingEvent], records: Sequence[Parked]) -> Receipt:
        if arrivals:
            raise of_the_server(psycopg.errors.UntranslatableCharacter("no such character"))
        stored.extend(p.record.offset for p in records)
        return Receipt(fresh=[], started=[], duplicates=0, parked=records)

    receipt = receive_in_halves(
        receive,
        [arrival(n) for n in range(number)],
        [parked(n) for n in range(number, 2 * number)],
        group="stock",
    )
    assert stored == list(range(2 * number))
    assert [p.record.offset for p in receipt.parked] == stored


@pytest.mark.parametrize("error", [MemoryError(), of_the_server(OutOfMemory("out of memory"))])
def test_record_is_not_parked_for_lack_of_memory(error: Exception) -> None:
    def receive(arrivals: Sequence[IncomingEvent], records: Sequence[Parked]) -> Receipt:
        assert not records, "a later attempt may store it"
        raise error

    with pytest.raises(ShieldTxError, match="cannot be stored"):
        receive_in_halves(receive, [arrival(0)], [], group="stock")
