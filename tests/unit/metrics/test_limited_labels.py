"""The number of an application's values that become labels."""

from __future__ import annotations

from shieldtx.metrics.limited_labels import OTHER, LimitedLabels


def test_values_above_the_limit_share_a_label() -> None:
    labels = LimitedLabels(2)
    assert [labels.of(each) for each in "abcab"] == ["a", "b", OTHER, "a", "b"]
