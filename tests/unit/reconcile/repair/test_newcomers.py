"""Arrivals in a group while a repair hands events over to it: counted, and read only if new."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from shieldtx.domain.states import TxKind
from shieldtx.ports.hand_over import Arrival, EventPosition, Key
from shieldtx.reconcile.repair.key_order import KeyOrder
from shieldtx.reconcile.repair.newcomers import Newcomers

NOW = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)


def position(seq: int, key: str = "k", seconds: float = 0) -> EventPosition:
    return EventPosition(
        seq=seq,
        kind=TxKind.COMMIT,
        type="t",
        topic="orders",
        key=key,
        written_at=NOW + timedelta(seconds=seconds),
        unconfirmed=False,
        size=1,
    )


class Databases:
    """An outbox with the events of `positions`, and an inbox with some of them."""

    def __init__(self, positions: Mapping[UUID, EventPosition]) -> None:
        self.all = dict(positions)
        self.inbox: list[UUID] = []
        self.read = 0

    def positions(self, ids: Sequence[UUID]) -> Mapping[UUID, EventPosition]:
        return {i: self.all[i] for i in ids if i in self.all}

    def received_after(
        self, group: str, source: str, after: Mapping[Key, datetime], *, since: datetime | None
    ) -> Iterator[Arrival]:
        del group, source, since
        for event_id in self.inbox:
            each = self.all[event_id]
            if (key := each.ordered_by) in after and each.written_at >= after[key]:
                self.read += 1
                yield Arrival(event_id=event_id, ordered_by=key, written_at=each.written_at)

    def count_received(
        self, group: str, source: str, keys: Collection[Key], *, since: datetime
    ) -> Mapping[Key, int]:
        del group, source, since
        return Counter(key for i in self.inbox if (key := self.all[i].ordered_by) in keys)


class HandingOver:
    """A repair that hands over events of an outbox, by their numbers."""

    def __init__(self, positions: Iterable[EventPosition], *, late: Collection[int] = ()) -> None:
        self.databases = Databases({UUID(int=each.seq): each for each in positions})
        self.done: set[UUID] = set()
        in_order = {i: each for i, each in self.databases.all.items() if each.seq not in late}
        order = KeyOrder(
            upstream=self.databases, downstream=self.databases, source="orders", group="stock"
        )
        self.newcomers = Newcomers(order, in_order, since=NOW, own=self.done)

    def overtaken(self, *numbers: int) -> set[int]:
        return {i.int for i in self.newcomers.overtaken([UUID(int=n) for n in numbers])}

    def hand_over(self, *numbers: int) -> None:
        ids = [UUID(int=number) for number in numbers]
        self.databases.inbox += ids
        self.done.update(ids)
        self.newcomers.hand_over(self.databases.all[i] for i in ids)

    def receive(self, each: EventPosition) -> None:
        event_id = UUID(int=each.seq)
        self.databases.all[event_id] = each
        self.databases.inbox.append(event_id)


@pytest.mark.parametrize("late", [(), range(1, 1_000, 2)])
def test_own_events_of_the_repair_are_never_read(late: Collection[int]):
    repair = HandingOver((position(n, f"k{n % 3}") for n in range(1_000)), late=late)

    for start in range(0, 1_000, 10):
        numbers = range(start, start + 10)
        assert repair.overtaken(*numbers) == set()
        repair.hand_over(*numbers)

    assert repair.databases.read == 0


def test_arrival_between_two_batches_overtakes_later_ones():
    repair = HandingOver(position(n) for n in range(6))
    for number in (0, 1, 2):
        assert repair.overtaken(number) == set()
        repair.hand_over(number)

    # A clock is slow: neither the time nor the number is that of the last event.
    repair.receive(position(40, seconds=-5))
    assert repair.overtaken(3) == {3}
    read = repair.databases.read
    assert repair.overtaken(4, 5) == {4, 5}
    assert repair.databases.read == read


def test_arrival_of_an_earlier_event_is_read_once():
    repair = HandingOver(position(n) for n in range(1, 60))
    repair.overtaken(1)
    repair.receive(position(0))

    for number in range(1, 60):
        assert repair.overtaken(number) == set()
        repair.hand_over(number)
    assert repair.databases.read == 1
    repair.receive(position(99))
    assert repair.overtaken(58, 59) == {58, 59}


def test_arrivals_are_found_if_as_many_were_handed_over():
    repair = HandingOver(position(n) for n in range(4))
    repair.overtaken(0, 1)
    repair.hand_over(0, 1)
    repair.receive(position(98))
    repair.receive(position(99))

    assert repair.overtaken(2, 3) == {2, 3}


def test_arrival_purged_from_the_outbox_overtakes_too():
    repair = HandingOver(position(n) for n in range(2))
    repair.overtaken(0)
    repair.receive(position(99, seconds=1))
    repair.databases.positions = lambda ids: {}

    assert repair.overtaken(1) == {1}


def test_other_keys_are_not_read():
    repair = HandingOver([position(0, "a"), position(1, "b"), position(2, "a")])
    assert repair.overtaken(0, 1) == set()
    repair.receive(position(9, "b"))

    assert repair.overtaken(2) == set()
    assert repair.overtaken(1) == {1}
