"""Received events whose handler was removed: counted, logged, and blocking no other event."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

import pytest

from shieldtx import Event, RetryPolicy
from shieldtx.consumer.consumer import Consumer
from shieldtx.consumer.unhandled import SAMPLE_EVERY, UnhandledEvents
from tests.support.log_records import logged
from tests.support.service import Service, drain, effect, forget_groups, make_topics

Make = Callable[..., Service]
BATCH = 5
PATIENT = RetryPolicy(max_attempts=50, first=timedelta(0), longest=timedelta(0), jitter=0)


class FirstTry:
    """A handler whose first attempt at each event fails."""

    def __init__(self) -> None:
        self.tried: set[str] = set()
        self.may_succeed = False

    def __call__(self, session: object, event: Event) -> None:
        if not self.may_succeed or event.key not in self.tried:
            self.tried.add(event.key)
            raise RuntimeError("not yet")
        effect("applied")(session, event)


def _consumer(service: Service, *event_types: str, handler: FirstTry) -> Consumer:
    forget_groups(service.app, *list(service.app.groups))
    group = service.app.consumer("stock")
    for event_type in event_types:
        group.handles(event_type, retry=PATIENT)(handler)
    return service.app.build_consumer("stock")


def test_a_removed_handlers_events_starve_no_retry(
    make_service: Make, caplog: pytest.LogCaptureFixture
) -> None:
    # All first attempts fail: the breaker would pause the handlers.
    service = make_service("orders", consumer_batch_size=BATCH, consumer_breaker=0)
    service.app.declare("old")
    service.app.declare("new")
    handler = FirstTry()
    before = _consumer(service, "old", "new", handler=handler)
    make_topics(service)
    with service.transaction() as session:
        events = [Event(type="old", key=f"o{n}") for n in range(3 * BATCH)]
        service.app.outbox.add_all(session, events)
    relay = service.relay()
    drain(relay)
    while len(service.rows("SELECT 1 FROM shield_inbox WHERE attempts > 0")) < 3 * BATCH:
        before.run_once()
    before.close()

    now = _consumer(service, "new", handler=handler)
    handler.may_succeed = True
    with service.transaction() as session:
        service.app.outbox.add_all(session, [Event(type="new", key=f"n{n}") for n in range(3)])
    drain(relay)
    with caplog.at_level(logging.WARNING):
        drain(now)
    assert sorted(service.effects("applied")) == ["n0", "n1", "n2"]
    unhandled = logged(caplog.records, "events_unhandled")
    assert unhandled
    for each in unhandled:
        assert (each["group"], each["event_type"], each["kind"]) == ("stock", "old", "COMMIT")
        assert (each["count"], each["at_least"]) == (15, False)


def test_unhandled_events_are_logged_once_a_minute(
    make_service: Make, caplog: pytest.LogCaptureFixture
) -> None:
    class Store:
        samples = 0

        def unhandled(self, *_: object, **__: object) -> dict[tuple[str, str], int]:
            self.samples += 1
            return {("old", "COMMIT"): 3}

    service, store, now = make_service("orders"), Store(), [0.0]
    group = service.app.consumer("stock")
    events = UnhandledEvents(group=group, store=store, clock=lambda: now[0])
    for moment in (0.0, 0.1, SAMPLE_EVERY - 1, SAMPLE_EVERY, SAMPLE_EVERY + 1):
        now[0] = moment
        events.sample()
    assert store.samples == 2
    assert len(logged(caplog.records, "events_unhandled")) == 2
