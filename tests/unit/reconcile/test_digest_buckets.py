"""The distribution of ids over buckets."""

from __future__ import annotations

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shieldtx.domain.events import new_event_id
from shieldtx.reconcile.digest_buckets import ONE, buckets_for

LAST = UUID(int=(1 << 128) - 1)
IDS = st.uuids(allow_nil=True)


@given(st.lists(IDS, max_size=20), st.integers(0, 3_000), st.lists(IDS, min_size=1))
def test_each_id_lies_in_one_bucket(samples, rows, ids):
    buckets = buckets_for(rows, samples)
    assert buckets.number >= 1
    for event_id in ids:
        holding = [
            number
            for number in range(buckets.number)
            for low, high in buckets.ranges([number])
            if (low is None or low <= event_id) and (high is None or event_id < high)
        ]
        assert len(holding) == 1


@given(st.lists(IDS, min_size=2, max_size=20), st.integers(0, 3_000), st.data())
def test_neighbours_are_read_as_one_range(samples, rows, data):
    buckets = buckets_for(rows, samples)
    numbers = data.draw(st.sets(st.integers(0, buckets.number - 1), max_size=30))
    ranges = buckets.ranges(numbers)
    for (_, high), (low, _) in pairwise(ranges):
        assert high is not None
        assert low is not None
        assert high < low
    apart = [number for number in numbers if number - 1 not in numbers]
    assert len(ranges) == len(apart)


def test_all_buckets_are_one_range_without_ends():
    buckets = buckets_for(10_000, [new_event_id(), LAST])
    assert buckets.ranges(range(buckets.number)) == [(None, None)]


@pytest.mark.parametrize("samples", [[], [new_event_id()]])
def test_fewer_than_two_ids_are_not_divided(samples):
    assert buckets_for(1_000_000, samples) is ONE


def test_bucket_holds_about_a_hundred_rows_up_to_a_limit():
    ends = [UUID(int=0), LAST]
    assert buckets_for(10_000_000, ends).number == pytest.approx(100_000, rel=0.01)
    assert buckets_for(10**10, ends).number <= (1 << 17) + 2


@pytest.mark.parametrize("samples", [(1 << 17) + 1, (1 << 17) + 2, 400_000])
@pytest.mark.parametrize("rows", [0, 10**10])
def test_samples_of_many_services_stay_below_the_bucket_limit(samples, rows):
    ids = [UUID(int=(1 << 120) + (number << 68)) for number in range(samples)]
    buckets = buckets_for(rows, ids)
    assert buckets.number <= (1 << 17) + 2
    # The ends are kept, and no part is much larger than another.
    widths = {high - low for low, high in pairwise(buckets.bounds)}
    assert (buckets.bounds[0], buckets.bounds[-1]) == (ids[0].int >> 68, ids[-1].int >> 68)
    assert max(widths) - min(widths) <= 1
