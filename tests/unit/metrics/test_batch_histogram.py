"""A histogram of whole batches: it shows what prometheus_client's own shows for the same values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from shieldtx.metrics.batch_histogram import BatchHistogram

BOUNDS = (0.5, 1.0, 2.5)
VALUES = st.lists(st.sampled_from([0.0, 0.5, 0.75, 1.0, 1.5, 2.5, 9.0]), max_size=20)


def text_of(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return sorted(line for line in lines if "_created" not in line)


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), VALUES), max_size=5))
def test_batches_show_as_single_values_do(batches: list[tuple[str, list[float]]]) -> None:
    expected, made = CollectorRegistry(), CollectorRegistry()
    theirs = Histogram("age_seconds", "Ages.", ["topic"], buckets=BOUNDS, registry=expected)
    ours = BatchHistogram("age_seconds", "Ages.", ["topic"], BOUNDS)
    made.register(ours)
    for topic, values in batches:
        child = theirs.labels(topic)
        for value in values:
            child.observe(value)
        ours.observe((topic,), values)
    assert text_of(made) == text_of(expected)


def test_its_name_is_taken_in_a_registry() -> None:
    registry = CollectorRegistry()
    registry.register(BatchHistogram("age_seconds", "Ages.", ["topic"], BOUNDS))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Histogram("age_seconds", "Ages.", registry=registry)
