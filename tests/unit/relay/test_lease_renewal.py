"""Each pass of a relay renews the shard leases that are due."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from shieldtx.domain.retry import RetryPolicy
from shieldtx.ports.broker import Backpressure
from shieldtx.ports.relay import Claim, ShardLeases
from shieldtx.relay.relay import Relay
from shieldtx.relay.settings import RelaySettings
from tests.support.log_records import logged
from tests.support.manual_clock import ManualClock

LEASE = timedelta(seconds=40)
ALL = frozenset(range(4))


class Leases:
    """A lease store that counts renewals, and fails or waits when a test sets it to."""

    def __init__(self) -> None:
        self.renewals = 0
        self.error: Exception | None = None
        self.shards = ALL
        self.surplus: frozenset[int] = frozenset()
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()

    def renew(self, **_: Any) -> ShardLeases:
        self.renewals += 1
        self.has_begun.set()
        assert self.may_end.wait(10)
        if self.error is not None:
            raise self.error
        return ShardLeases(shards=self.shards, relays=1, surplus=self.surplus)

    def release(self, **_: Any) -> None:
        raise OSError("the server has ended")

    def leave(self, **_: Any) -> None:
        """Release nothing."""


class EmptyOutbox:
    """An outbox store without any due row."""

    def __init__(self) -> None:
        self.claims = 0

    def claim(self, **_: Any) -> Claim:
        self.claims += 1
        return Claim(token=uuid4(), events=[], lease_left=LEASE)


class NoPublisher:
    """A publisher that receives no records."""

    def pressure(self) -> Backpressure:
        return Backpressure()

    def close(self) -> None:
        """Close nothing."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def leases() -> Leases:
    return Leases()


@pytest.fixture
def outbox() -> EmptyOutbox:
    return EmptyOutbox()


@pytest.fixture
def relay(clock: ManualClock, leases: Leases, outbox: EmptyOutbox) -> Any:
    relay = Relay(
        store=outbox,  # type: ignore[arg-type]
        leases=leases,  # type: ignore[arg-type]
        publisher=NoPublisher(),  # type: ignore[arg-type]
        encode=lambda envelope: pytest.fail("nothing is sent"),
        settings=RelaySettings(name="one", lease=LEASE),
        retry_of=lambda event_type: RetryPolicy(),
        local_rollbacks={},
        clock=clock,
    )
    yield relay
    relay.close()


def test_first_pass_takes_the_leases(relay: Relay, leases: Leases) -> None:
    assert relay.shards == frozenset()
    assert relay.until_renewal == timedelta(0)
    relay.run_once()
    assert (relay.shards, leases.renewals) == (ALL, 1)
    assert relay.until_renewal == LEASE / 2


def test_passes_renew_once_in_half_of_the_lease(
    relay: Relay, leases: Leases, clock: ManualClock
) -> None:
    start = clock.now
    for seconds, renewals in ((0, 1), (19.9, 1), (20.1, 2), (40, 2), (40.2, 3), (200, 4)):
        clock.now = start + seconds
        relay.run_once()
        assert leases.renewals == renewals


def test_passes_leave_renewals_to_a_thread_that_makes_them(
    relay: Relay, leases: Leases, clock: ManualClock
) -> None:
    for renewals in range(1, 6):
        relay.renew()
        relay.run_once()
        clock.now += 10
        relay.run_once()
        assert leases.renewals == renewals


def test_changes_of_the_owned_shards_are_logged_once(
    relay: Relay, leases: Leases, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shieldtx")
    for shards in (ALL, ALL, frozenset({0, 1})):
        leases.shards = shards
        relay.renew()
    [taken] = logged(caplog.records, "shards_taken")
    assert (taken["shards"], taken["count"]) == ([0, 1, 2, 3], 4)
    assert [lost["shards"] for lost in logged(caplog.records, "shards_lost")] == [[2, 3]]


def test_lost_shards_are_logged_if_the_release_of_others_fails(
    relay: Relay, leases: Leases, caplog: pytest.LogCaptureFixture
) -> None:
    relay.renew()
    leases.shards, leases.surplus = frozenset({0, 1}), frozenset({1})
    for _ in range(2):
        with pytest.raises(OSError, match="ended"):
            relay.renew()
    assert [lost["shards"] for lost in logged(caplog.records, "shards_lost")] == [[2, 3]]


def test_each_requested_renewal_is_made(relay: Relay, leases: Leases) -> None:
    # Each failed renewal must count: a worker whose renewals fail has to end.
    leases.error = OSError("no permission")
    for _ in range(3):
        with pytest.raises(OSError, match="no permission"):
            relay.renew()
    assert leases.renewals == 3


@pytest.mark.parametrize("waited", [0, 10, 20, 39])
def test_no_pass_awaits_the_renewal_of_another_thread(
    relay: Relay, leases: Leases, outbox: EmptyOutbox, clock: ManualClock, waited: float
) -> None:
    relay.run_once()
    clock.now += 10
    leases.has_begun.clear()
    leases.may_end.clear()
    renewal = threading.Thread(target=relay.renew)
    renewal.start()
    assert leases.has_begun.wait(10)
    clock.now += waited
    relay.run_once()
    assert outbox.claims == 2
    leases.may_end.set()
    renewal.join(10)
    assert leases.renewals == 2


def test_failed_first_renewal_is_repeated_by_the_next_pass(
    relay: Relay, leases: Leases, outbox: EmptyOutbox
) -> None:
    leases.error = OSError("the database is away")
    for _ in range(2):
        with pytest.raises(OSError, match="away"):
            relay.run_once()
    leases.error = None
    relay.run_once()
    assert (leases.renewals, outbox.claims) == (3, 1)


def test_failed_renewal_is_raised_after_the_pass_and_repeated(
    relay: Relay, leases: Leases, outbox: EmptyOutbox, clock: ManualClock
) -> None:
    relay.run_once()
    leases.error = OSError("the database is away")
    clock.now += 20
    with pytest.raises(OSError, match="away"):
        relay.run_once()
    assert (leases.renewals, outbox.claims) == (2, 2), "claimed before the renewal"
    relay.run_once()
    assert (leases.renewals, outbox.claims) == (2, 3)
    clock.now += 10
    with pytest.raises(OSError, match="away"):
        relay.run_once()
    assert leases.renewals == 3
