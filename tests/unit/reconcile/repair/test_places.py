"""The order in which an outbox sends the events of a key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest

from shieldtx.ports.hand_over import Place
from shieldtx.reconcile.repair.places import Places

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def place(seq: int, written: float, due: float | None = None) -> Place:
    """Return the place of an event by hours from noon."""
    return Place(
        seq=seq,
        written_at=NOON + timedelta(hours=written),
        delayed_until=None if due is None else NOON + timedelta(hours=due),
    )


IN_ORDER = [
    place(2, 0.1),
    place(3, 0.0),  # a clock was set back
    place(4, 0.4, due=1),
    place(1, 0.0, due=2),
    place(5, 0.5, due=2),
    place(6, 3),
]


@pytest.mark.parametrize("first", range(len(IN_ORDER)))
def test_number_decides_unless_the_event_was_delayed(first: int):
    for number, other in enumerate(IN_ORDER):
        places = Places()
        places.add(other)
        assert places.any_behind(IN_ORDER[first]) is (number > first)
        assert places.any_before(IN_ORDER[first]) is (number < first)


@pytest.mark.parametrize("some", [*permutations(range(len(IN_ORDER)), 3)])
def test_first_and_last_of_many_places_are_found(some: tuple[int, ...]):
    places, last = Places(), Places()
    for number in some:
        places.add(IN_ORDER[number])
    last.add_last_of(places)
    for number, each in enumerate(IN_ORDER):
        assert places.any_before(each) is (min(some) < number)
        assert places.any_behind(each) is (max(some) > number)
        assert last.any_behind(each) is (max(some) > number)


def test_no_places_are_before_or_after_none():
    assert not any(Places().any_before(each) or Places().any_behind(each) for each in IN_ORDER)
