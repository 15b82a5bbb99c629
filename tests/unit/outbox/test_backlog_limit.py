"""The backlog limit of the write side: its samples of a backlog, and its refusals and warnings."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest
from sqlalchemy import Connection

from shieldtx.domain.event_types import EventTypeRegistry, OnBacklog
from shieldtx.domain.log_throttle import LOG_EVERY
from shieldtx.domain.sampler import SHARE
from shieldtx.errors import BacklogExceeded, ConfigurationError
from shieldtx.outbox.backlog_limit import SAMPLE_EVERY, BacklogLimiter
from tests.support.log_records import fields_of

CONNECTION = cast("Connection", object())
LIMIT = 5


class Outbox:
    """The number of waiting events, and a clock, both set by hand."""

    def __init__(self) -> None:
        self.waiting = 0
        self.looks: list[str] = []
        self.now = 1000.0
        self.took = 0.0
        self.event_types = EventTypeRegistry()
        self.gate = BacklogLimiter(self, clock=lambda: self.now)

    def backlog(self, connection: Connection, topic: str, *, upto: int) -> int:  # noqa: ARG002  as the port
        self.looks.append(topic)
        self.now += self.took
        return min(self.waiting, upto)

    def admit(self, name: str = "orders", connection: Connection | None = CONNECTION) -> None:
        self.gate.admit(self.event_types.get(name), connection)


@pytest.fixture
def outbox() -> Outbox:
    outbox = Outbox()
    outbox.event_types.declare("orders", backlog_limit=LIMIT)
    return outbox


def test_events_are_refused_from_the_limit_on(outbox: Outbox) -> None:
    outbox.waiting = LIMIT - 1
    outbox.admit()
    outbox.waiting = LIMIT
    outbox.now += SAMPLE_EVERY
    with pytest.raises(BacklogExceeded, match="topic orders: 5 events or more wait") as refused:
        outbox.admit()
    error = refused.value
    assert (error.topic, error.backlog, error.limit) == ("orders", LIMIT, LIMIT)


def test_backlog_is_not_counted_between_two_samples(outbox: Outbox) -> None:
    for _ in range(100):
        outbox.admit()
        outbox.now += SAMPLE_EVERY / 101
    assert len(outbox.looks) == 1
    outbox.now += SAMPLE_EVERY
    outbox.admit()
    assert len(outbox.looks) == 2


def test_slow_samples_are_taken_seldom(outbox: Outbox) -> None:
    outbox.took = 0.5
    outbox.admit()
    outbox.now += SHARE * 0.5 - 0.1
    outbox.admit()
    assert len(outbox.looks) == 1
    outbox.now += 0.2
    outbox.admit()
    assert len(outbox.looks) == 2


def test_caller_without_a_connection_uses_or_requests_a_sample(outbox: Outbox) -> None:
    outbox.waiting = LIMIT
    outbox.admit(connection=None)
    assert not outbox.looks
    outbox.gate.sample_for_others(CONNECTION)
    assert outbox.looks == ["orders"]
    with pytest.raises(BacklogExceeded):
        outbox.admit(connection=None)
    outbox.now += SAMPLE_EVERY
    outbox.admit(connection=None)
    outbox.gate.sample_for_others(CONNECTION)
    assert len(outbox.looks) == 2
    outbox.gate.sample_for_others(CONNECTION)
    assert len(outbox.looks) == 2


def test_types_of_one_topic_may_have_limits_of_their_own(outbox: Outbox) -> None:
    outbox.event_types.declare("orders.urgent", topic="orders", backlog_limit=2 * LIMIT)
    outbox.waiting = LIMIT
    outbox.admit("orders.urgent")
    with pytest.raises(BacklogExceeded):
        outbox.admit("orders")


def test_warning_is_throttled_and_the_event_is_accepted(
    outbox: Outbox, own_log: pytest.LogCaptureFixture
) -> None:
    outbox.event_types.declare("paid", backlog_limit=LIMIT, on_backlog="warn")
    outbox.waiting = LIMIT
    for _ in range(3):
        outbox.admit("paid")
    assert [record.levelno for record in own_log.records] == [logging.WARNING]
    assert fields_of(own_log.records[0]) == {
        "action": "backlog_at_limit",
        "topic": "paid",
        "count": LIMIT,
        "limit": LIMIT,
        "on_backlog": "warn",
    }
    outbox.now += LOG_EVERY
    outbox.admit("paid")
    assert len(own_log.records) == 2


def test_type_that_ignores_backlogs_is_never_counted(outbox: Outbox) -> None:
    outbox.waiting = LIMIT
    outbox.event_types.declare("audit", backlog_limit=LIMIT, on_backlog=OnBacklog.IGNORE)
    outbox.admit("audit")
    assert not outbox.looks


def test_settings_limit_applies_to_types_without_their_own() -> None:
    event_types = EventTypeRegistry(backlog_limit=7, on_backlog=OnBacklog.WARN)
    assert not event_types.limits_backlogs
    inherited = event_types.declare("a")
    own = event_types.declare("b", backlog_limit=9, on_backlog="refuse")
    assert (inherited.backlog_limit, inherited.on_backlog) == (7, OnBacklog.WARN)
    assert (own.backlog_limit, own.on_backlog) == (9, OnBacklog.REFUSE)
    assert event_types.limits_backlogs


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backlog_limit": 0}, "backlog_limit 0 must be from 1"),
        ({"backlog_limit": 10_000_000}, 'for none, use on_backlog="ignore"'),
        ({"on_backlog": "block"}, "on_backlog 'block' must be one of refuse, warn, ignore"),
    ],
)
def test_impossible_limit_is_refused_at_its_declaration(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        EventTypeRegistry().declare("a", **options)


class Contended(set[tuple[str, int]]):
    """A set whose last element another thread takes after every test of its length."""

    def __len__(self) -> int:
        return 1


def test_sample_taken_by_another_thread_is_not_an_error(outbox: Outbox) -> None:
    outbox.gate._wanted = Contended()
    outbox.admit(connection=None)
    outbox.gate.sample_for_others(CONNECTION)
    assert outbox.looks == ["orders"]
