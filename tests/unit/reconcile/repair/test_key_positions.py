"""The order in which an outbox sends the events of a key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest

from shieldtx.ports.hand_over import KeyPosition
from shieldtx.reconcile.repair.key_positions import KeyPositions

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def position(seq: int, written: float, due: float | None = None) -> KeyPosition:
    """Return the place of an event by hours from noon."""
    return KeyPosition(
        seq=seq,
        written_at=NOON + timedelta(hours=written),
        delayed_until=None if due is None else NOON + timedelta(hours=due),
    )


IN_ORDER = [
    position(2, 0.1),
    position(3, 0.0),  # a clock was set back
    position(4, 0.4, due=1),
    position(1, 0.0, due=2),
    position(5, 0.5, due=2),
    position(6, 3),
]


@pytest.mark.parametrize("first", range(len(IN_ORDER)))
def test_number_decides_unless_the_event_was_delayed(first: int):
    for number, other in enumerate(IN_ORDER):
        key_positions = KeyPositions()
        key_positions.add(other)
        assert key_positions.any_after(IN_ORDER[first]) is (number > first)
        assert key_positions.any_before(IN_ORDER[first]) is (number < first)


@pytest.mark.parametrize("some", [*permutations(range(len(IN_ORDER)), 3)])
def test_first_and_last_of_many_places_are_found(some: tuple[int, ...]):
    key_positions, last = KeyPositions(), KeyPositions()
    for number in some:
        key_positions.add(IN_ORDER[number])
    last.add_last_of(key_positions)
    for number, each in enumerate(IN_ORDER):
        assert key_positions.any_before(each) is (min(some) < number)
        assert key_positions.any_after(each) is (max(some) > number)
        assert last.any_after(each) is (max(some) > number)


def test_no_places_are_before_or_after_none():
    assert not any(
        KeyPositions().any_before(each) or KeyPositions().any_after(each) for each in IN_ORDER
    )
