"""Events that later ones of their key have overtaken in a group: by number, or else by time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from shieldtx.domain.states import TxKind
from shieldtx.ports.hand_over import Arrival, EventPosition, Key
from shieldtx.reconcile.repair.key_order import CLOCK_STEP, KeyOrder

NOW = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MISSING = UUID(int=1)


def position(seq: int, seconds: float = 0, **more: Any) -> EventPosition:
    values = {
        "kind": TxKind.COMMIT,
        "type": "t",
        "topic": "orders",
        "key": "k",
        "written_at": NOW + seconds * SECOND,
        "unconfirmed": False,
        "size": 1,
    }
    return EventPosition(seq=seq, **(values | more))


class Databases:
    """An outbox, and an inbox with the events of `received`."""

    def __init__(
        self, received: Mapping[UUID, EventPosition], *, forgotten: Collection[UUID] = ()
    ) -> None:
        self.received = received
        self.forgotten = forgotten
        self.read = 0

    def positions(self, ids: Sequence[UUID]) -> Mapping[UUID, EventPosition]:
        return {i: self.received[i] for i in ids if i not in self.forgotten}

    def latest_received(
        self, group: str, source: str, keys: Collection[Key]
    ) -> Mapping[Key, datetime]:
        del group, source
        found: dict[Key, datetime] = {}
        for each in self.received.values():
            if (key := each.ordered_by) in keys:
                found[key] = max(each.written_at, found.get(key, each.written_at))
        return found

    def received_after(
        self, group: str, source: str, after: Mapping[Key, datetime], *, since: datetime | None
    ) -> Iterator[Arrival]:
        del group, source, since
        for event_id, each in self.received.items():
            if (key := each.ordered_by) in after and each.written_at >= after[key]:
                self.read += 1
                yield Arrival(event_id=event_id, ordered_by=key, written_at=each.written_at)


def overtaken(
    missing: EventPosition, *received: EventPosition, forgotten: Collection[int] = ()
) -> bool:
    inbox = {UUID(int=100 + number): each for number, each in enumerate(received)}
    databases = Databases(inbox, forgotten={UUID(int=100 + number) for number in forgotten})
    order = KeyOrder(upstream=databases, downstream=databases, source="orders", group="stock")
    return order.overtaken({MISSING: missing}) == {MISSING}


STEP = CLOCK_STEP / SECOND


@pytest.mark.parametrize(
    ("seconds", "seq", "late"),
    [
        (0, 6, True),
        (0, 4, False),
        (STEP, 4, False),
        (STEP + 1, 4, False),
        (3600, 4, False),
        (-STEP, 6, True),
        (-STEP - 1, 6, False),
        (STEP + 1, 6, True),
        (-STEP - 1, 4, False),
    ],
)
def test_number_decides_unless_the_time_is_much_earlier(seconds: float, seq: int, late: bool):
    assert overtaken(position(5), position(seq, seconds)) is late


def test_one_later_event_among_earlier_ones_is_enough():
    earlier = [position(seq, seconds) for seq, seconds in ((1, 8), (2, 3), (3, -4), (4, 9.5))]

    assert not overtaken(position(5), *earlier)
    assert overtaken(position(5), *earlier, position(6, -7))
    assert overtaken(position(5), position(6, -7), *earlier)


def test_later_event_is_found_after_a_clock_was_set_back():
    set_back = [position(seq, 3600 + seq) for seq in range(1, 5)]

    assert not overtaken(position(5), *set_back)
    assert overtaken(position(5), *set_back, position(6, 1))
    assert overtaken(position(5), position(6, -7), *set_back)
    assert not overtaken(position(5), position(6, -STEP - 1), *set_back)


def test_each_of_many_events_of_a_key_is_compared_by_itself():
    received = {
        UUID(int=100): position(4, 60),
        UUID(int=101): position(8, 30),
        UUID(int=102): position(9, -60),
    }
    databases = Databases(received)
    order = KeyOrder(upstream=databases, downstream=databases, source="orders", group="stock")
    missing = {
        UUID(int=n): each
        for n, each in enumerate(
            [position(3, 65), position(5, 70), position(7, 40), position(8, 20), position(10, 0)]
        )
    }

    assert order.overtaken(missing) == {UUID(int=0), UUID(int=2)}


def test_hot_key_reads_only_its_latest_arrivals():
    databases = Databases({UUID(int=n): position(n, n) for n in range(100, 5_000)})
    order = KeyOrder(upstream=databases, downstream=databases, source="orders", group="stock")

    assert order.overtaken({MISSING: position(5)}) == {MISSING}
    assert databases.read <= 2 * STEP + 1


@pytest.mark.parametrize(("seconds", "late"), [(-1, False), (0, True), (1, True)])
def test_time_decides_for_events_purged_from_the_outbox(seconds: float, late: bool):
    received = position(4, seconds), position(3, 2)

    assert overtaken(position(5), *received, forgotten=[0]) is late


@pytest.mark.parametrize("other", [{"key": "l"}, {"topic": "paid"}, {"kind": TxKind.ROLLBACK}])
def test_other_keys_topics_and_kinds_overtake_nothing(other: dict[str, Any]):
    assert not overtaken(position(5), position(6, 1, **other))


def test_event_without_order_is_never_overtaken():
    assert not overtaken(position(5, key=None), position(6, 60))
    assert not overtaken(position(5, kind=TxKind.ROLLBACK), position(6, 60))
