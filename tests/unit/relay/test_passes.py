"""The passes of a relay: the backlog that they know, their results, and the release of shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from shieldtx.domain.events import Envelope
from shieldtx.domain.retry import RetryPolicy
from shieldtx.ports.broker import Backpressure, Delivery, DeliveryOutcome, Record
from shieldtx.ports.relay import Claim, ClaimedEvent, Settlement, ShardLeases
from shieldtx.relay.relay import Relay
from shieldtx.relay.settings import RelaySettings
from tests.support.manual_clock import ManualClock

LEASE = timedelta(seconds=40)
BATCH = 40
ACKNOWLEDGED = Delivery(outcome=DeliveryOutcome.ACKNOWLEDGED)


class Database:
    """Returns claims, and records the write-backs and the released shards."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self.calls: list[str] = []
        self.settle_error: Exception | None = None
        self.renew_error: Exception | None = None
        self.while_renewing: Callable[[], object] = lambda: None

    def claim(self, **_: Any) -> Claim:
        return self.claims.pop(0) if self.claims else claim_of(0)

    def settle(self, _: UUID, settlement: Settlement) -> int:
        if self.settle_error is not None:
            raise self.settle_error
        self.calls.append("settle")
        return len(settlement)

    def renew(self, **_: Any) -> ShardLeases:
        self.while_renewing()
        if self.renew_error is not None:
            raise self.renew_error
        return ShardLeases(shards=frozenset({0}), relays=1, surplus=frozenset())

    def leave(self, **_: Any) -> None:
        self.calls.append("leave")


class Broker:
    """Acknowledges all records, under the pressure that a test sets."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.asks_for = Backpressure()
        self.close_error: Exception | None = None

    def publish(self, records: Sequence[Record], **_: Any) -> Sequence[Delivery]:
        self.batches.append(len(records))
        return [ACKNOWLEDGED] * len(records)

    def pressure(self) -> Backpressure:
        return self.asks_for

    def close(self) -> None:
        if self.close_error is not None:
            raise self.close_error


def claim_of(size: int, *, cut: bool = False, lease_left: timedelta = LEASE) -> Claim:
    events = [
        ClaimedEvent(
            Envelope(
                id=uuid4(), source="s", type="t", topic="t", payload="{}", time=datetime.now(UTC)
            ),
            1,
            unconfirmed=False,
        )
        for _ in range(size)
    ]
    return Claim(token=uuid4(), events=events, lease_left=lease_left, cut=cut)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def thread() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as thread:
        yield thread


@pytest.fixture
def relay(clock: ManualClock, database: Database, broker: Broker, thread: Executor) -> Relay:
    return Relay(
        store=database,  # type: ignore[arg-type]
        leases=database,  # type: ignore[arg-type]
        publisher=broker,  # type: ignore[arg-type]
        encode=lambda envelope: Record("t", None, b"{}"),
        settings=RelaySettings(name="one", lease=LEASE, batch_size=BATCH),
        retry_of=lambda event_type: RetryPolicy(),
        local_rollbacks={},
        clock=clock,
        publish_thread=thread,
    )


def test_batch_cut_at_its_bytes_shows_a_backlog(relay: Relay, database: Database) -> None:
    database.claims = [claim_of(1, cut=True)]
    assert relay.run_once().backlog


def test_throttled_relay_with_a_backlog_passes_again(
    relay: Relay, database: Database, broker: Broker, clock: ManualClock
) -> None:
    broker.asks_for = Backpressure(pause=5.0)
    database.claims = [claim_of(1), claim_of(BATCH // 2)]
    relay.run_once()
    clock.now += 5
    assert relay.run_once().backlog
    assert broker.batches == [1, BATCH // 2]


@pytest.mark.parametrize(("waited", "sent"), [(35.0, [3]), (37.0, [])])
def test_batch_is_sent_only_if_its_lease_covers_the_write_back(
    relay: Relay,
    database: Database,
    broker: Broker,
    clock: ManualClock,
    waited: float,
    sent: list[int],
) -> None:
    relay.renew()
    claim = claim_of(3)

    def slow_claim(**_: Any) -> Claim:
        clock.now += waited
        return claim

    database.claim = slow_claim  # type: ignore[method-assign]
    done = relay.run_once()
    assert broker.batches == sent
    assert (done.published, done.released) == ((3, 0) if sent else (0, 3))


def test_slow_renewal_leaves_time_for_the_next_one(
    relay: Relay, database: Database, clock: ManualClock
) -> None:
    def be_slow() -> None:
        clock.now += 30

    database.while_renewing = be_slow
    relay.renew()
    assert relay.until_renewal == LEASE / 4


def test_failed_renewal_of_a_pass_is_reported_by_the_next_one(
    relay: Relay, database: Database, clock: ManualClock
) -> None:
    relay.renew()
    clock.now += 20
    database.claims = [claim_of(3)]
    database.renew_error = OSError("the database is unreachable")
    with pytest.raises(OSError, match="unreachable"):
        relay.run_once()
    database.renew_error = None
    assert relay.run_once().published == 3


def test_relay_releases_its_shards_after_its_write_backs(
    relay: Relay, database: Database, broker: Broker
) -> None:
    database.claims = [claim_of(BATCH), claim_of(BATCH)]
    relay.run_once()
    relay.close()
    assert broker.batches == [BATCH]
    assert database.calls == ["settle", "settle", "leave"]


def test_relay_with_failed_write_backs_keeps_its_shards(relay: Relay, database: Database) -> None:
    database.claims = [claim_of(BATCH), claim_of(BATCH)]
    relay.run_once()
    database.settle_error = OSError("the database is unreachable")
    with pytest.raises(OSError, match="unreachable"):
        relay.close()
    assert database.calls == []


def test_relay_ends_its_thread_if_the_broker_cannot_be_closed(
    relay: Relay, broker: Broker, thread: Executor
) -> None:
    broker.close_error = OSError("the broker is unreachable")
    with pytest.raises(OSError, match="unreachable"):
        relay.close()
    with pytest.raises(RuntimeError):
        thread.submit(print)
