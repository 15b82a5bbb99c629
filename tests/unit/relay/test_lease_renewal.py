"""Each pass of a relay renews the shard leases that are due."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from shieldtx.domain.retry import RetryPolicy
from shieldtx.ports.broker import Backpressure
from shieldtx.ports.relay import Claim, ShardLeases
from shieldtx.relay.relay import Relay, RelaySettings

LEASE = timedelta(seconds=40)
ALL = frozenset(range(4))


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Leases:
    """A lease store that counts renewals, and fails or waits where a test wants it."""

    def __init__(self) -> None:
        self.renewals = 0
        self.error: Exception | None = None
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()

    def renew(self, **_: Any) -> ShardLeases:
        self.renewals += 1
        self.has_begun.set()
        assert self.may_end.wait(10)
        if self.error is not None:
            raise self.error
        return ShardLeases(shards=ALL, relays=1, surplus=frozenset())

    def leave(self, **_: Any) -> None:
        """Nothing to free."""


class EmptyOutbox:
    """An outbox store without any due row."""

    def __init__(self) -> None:
        self.claims = 0

    def claim(self, **_: Any) -> Claim:
        self.claims += 1
        return Claim(token=uuid4(), events=[], lease_left=LEASE)


class NoPublisher:
    """A publisher that nothing is given to."""

    def pressure(self) -> Backpressure:
        return Backpressure()

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leases() -> Leases:
    return Leases()


@pytest.fixture
def outbox() -> EmptyOutbox:
    return EmptyOutbox()


@pytest.fixture
def relay(clock: Clock, leases: Leases, outbox: EmptyOutbox) -> Any:
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
    assert relay.until_renewal == LEASE / 4


def test_passes_renew_once_in_a_quarter_of_the_lease(
    relay: Relay, leases: Leases, clock: Clock
) -> None:
    start = clock.now
    for seconds, renewals in ((0, 1), (9.9, 1), (10.1, 2), (20, 2), (20.1, 3), (200, 4)):
        clock.now = start + seconds
        relay.run_once()
        assert leases.renewals == renewals


def test_a_renewal_by_another_thread_is_not_repeated(
    relay: Relay, leases: Leases, clock: Clock
) -> None:
    relay.renew()
    clock.now += 10
    relay.renew_if_due()
    relay.run_once()
    relay.renew_if_due()
    assert leases.renewals == 2


def test_a_pass_awaits_the_first_renewal_of_another_thread(
    relay: Relay, leases: Leases, outbox: EmptyOutbox
) -> None:
    leases.may_end.clear()
    threads = [threading.Thread(target=call) for call in (relay.renew_if_due, relay.run_once)]
    threads[0].start()
    assert leases.has_begun.wait(10)
    threads[1].start()
    leases.may_end.set()
    for thread in threads:
        thread.join(10)
    assert (leases.renewals, outbox.claims) == (1, 1)


def test_a_pass_does_not_await_a_later_renewal(
    relay: Relay, leases: Leases, outbox: EmptyOutbox, clock: Clock
) -> None:
    relay.run_once()
    clock.now += 10
    leases.has_begun.clear()
    leases.may_end.clear()
    renewal = threading.Thread(target=relay.renew_if_due)
    renewal.start()
    assert leases.has_begun.wait(10)
    relay.run_once()
    assert outbox.claims == 2
    leases.may_end.set()
    renewal.join(10)
    assert leases.renewals == 2


def test_a_failed_first_renewal_is_repeated_by_the_next_pass(
    relay: Relay, leases: Leases, outbox: EmptyOutbox
) -> None:
    leases.error = OSError("the database is away")
    for _ in range(2):
        with pytest.raises(OSError, match="away"):
            relay.run_once()
    leases.error = None
    relay.run_once()
    assert (leases.renewals, outbox.claims) == (3, 1)


def test_after_a_failed_renewal_passes_go_on_for_a_quarter(
    relay: Relay, leases: Leases, outbox: EmptyOutbox, clock: Clock
) -> None:
    relay.run_once()
    leases.error = OSError("the database is away")
    clock.now += 10
    with pytest.raises(OSError, match="away"):
        relay.run_once()
    relay.run_once()
    assert (leases.renewals, outbox.claims) == (2, 2)
    clock.now += 10
    with pytest.raises(OSError, match="away"):
        relay.run_once()
    assert leases.renewals == 3
