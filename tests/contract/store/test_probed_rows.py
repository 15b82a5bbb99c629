"""Which rows the probes of a paused handler take, on each database."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shieldtx.domain.events import Envelope
from shieldtx.store.pauses import SqlPauseStore
from tests.contract.conftest import Stores
from tests.contract.store.test_inbox import GROUP, HANDLED, begin, receive, rollback_of, write
from tests.contract.store.test_outbox import envelope

DEAD = timedelta(0)
"""The lease of a probe whose process is dead."""


def longest_due(stores: Stores) -> Envelope:
    event = stores.inbox.longest_due(GROUP, handled=HANDLED)
    assert event is not None
    return event


def probe(stores: Stores, event: Envelope) -> None:
    assert stores.inbox.start_attempt(GROUP, event, lease=DEAD, max_attempts=9, is_probe=True)


def test_next_probe_takes_another_row_than_one_that_died(stores: Stores) -> None:
    events = [envelope(f"k{number}") for number in range(3)]
    receive(stores, *events)
    probed = []
    for _ in events:
        probed.append(longest_due(stores))
        probe(stores, probed[-1])
    assert {event.id for event in probed} == {event.id for event in events}


def test_attempt_other_than_a_probe_keeps_the_due_time(stores: Stores) -> None:
    events = [envelope(f"k{number}") for number in range(2)]
    receive(stores, *events)
    first = longest_due(stores)
    assert stores.inbox.start_attempt(GROUP, first, lease=DEAD, max_attempts=9)
    assert longest_due(stores).id == first.id


def test_newest_row_without_an_attempt_is_found_but_not_blocked(stores: Stores) -> None:
    events = [envelope(f"k{number}") for number in range(3)]
    receive(stores, *events, envelope("k0"))
    found = []
    for _ in events:
        event = stores.inbox.newest_unattempted(GROUP, handled=HANDLED)
        assert event is not None
        found.append(event.id)
        probe(stores, event)
    assert found == [event.id for event in reversed(events)]
    assert stores.inbox.newest_unattempted(GROUP, handled=HANDLED) is None


@pytest.mark.parametrize("is_moot", [True, False])
def test_rollback_with_nothing_to_compensate_is_no_success(stores: Stores, is_moot: bool) -> None:
    """The handler of a moot rollback was not called: it may be broken all the same."""
    event = envelope("k")
    write(stores, event)
    rollback = rollback_of(event)
    receive(stores, rollback)
    attempt = begin(stores, rollback)
    with stores.inbox.effect(attempt) as session:
        if not is_moot:
            stores.inbox.mark_compensated(session, attempt)
    pauses = SqlPauseStore(stores.engine, stores.tables)
    handler = rollback.type, rollback.kind
    assert pauses.has_succeeded(GROUP, handler, within=timedelta(hours=1)) is not is_moot
