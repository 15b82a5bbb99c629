"""The log of events without a handler on topics that a group reads."""

from __future__ import annotations

import logging

import pytest

from shieldtx.consumer.passed_over import LOG_EVERY, MOST_TYPES, PassedOverEvents
from tests.support.log_records import logged
from tests.support.manual_clock import ManualClock
from tests.unit.brokers.test_cloudevents import ORDER


def test_passed_over_types_are_logged_once_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    events = PassedOverEvents("stock", clock=clock)
    caplog.set_level(logging.INFO)
    for _ in range(3):
        events.add(ORDER)
        events.log()
    clock.now += LOG_EVERY
    events.log()
    events.log()
    first, second = logged(caplog.records, "events_passed_over")
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert (first["count"], second["count"]) == (1, 2)
    names = [first[field] for field in ("group", "event_type", "topic", "kind")]
    assert names == ["stock", "orders.placed", "orders", "COMMIT"]


def test_number_of_logged_types_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    events = PassedOverEvents("stock", clock=ManualClock())
    for number in range(MOST_TYPES + 50):
        events.add(ORDER.evolve(type=f"t{number}"))
    events.log()
    lines = logged(caplog.records, "events_passed_over")
    assert len(lines) == MOST_TYPES + 1
    assert lines[-1]["count"] == 50
