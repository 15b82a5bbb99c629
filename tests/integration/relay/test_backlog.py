"""A relay with a backlog claims ahead, and keeps the order of its sends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy.exc import OperationalError, ProgrammingError

from shieldtx import Event
from shieldtx.ports.broker import DeliveryOutcome, Record
from shieldtx.relay.relay import Relay
from shieldtx.relay.result import RelayResult
from tests.support.service import QUICK, Service, Wire, answer, drain, make_topics

BATCH = 4


@pytest.fixture
def service(make_service: Callable[..., Service]) -> Service:
    service = make_service("orders", relay_batch_size=BATCH)
    service.app.declare("things.happened", retry=QUICK)
    make_topics(service)
    return service


def write(service: Service, count: int, *, key: str = "k") -> list[str]:
    with service.transaction() as session:
        events = [Event(type="things.happened", key=key, payload=n) for n in range(count)]
        return [str(event_id) for event_id in service.app.outbox.add_all(session, events)]


def sent(wire: Wire) -> list[str]:
    """Return the ids of the sent records, each once."""
    return list(dict.fromkeys(_id(record) for record in wire.published))


def _id(record: Record) -> str:
    return dict(record.headers)["ce_id"].decode()


def test_the_next_batch_is_claimed_while_one_is_published(service: Service, wire: Wire) -> None:
    ids = write(service, 3 * BATCH)
    relay = service.relay()
    first = relay.run_once()
    assert (first.claimed, first.ahead, first.more) == (0, BATCH, True)
    assert service.outbox() == {"PROCESSING": 2 * BATCH, "INIT": BATCH}
    second = relay.run_once()
    assert (second.claimed, second.published, second.ahead) == (BATCH, BATCH, BATCH)
    drain(relay)
    assert service.outbox() == {"PROCESSED": 3 * BATCH}
    assert sent(wire) == ids


def pass_that_publishes(relay: Relay, eventually: Callable[..., None], when: str) -> RelayResult:
    """Run passes until a pass publishes something, and return that pass."""
    passes: list[RelayResult] = []

    def it_does() -> bool:
        passes.append(relay.run_once())
        return passes[-1].published > 0

    eventually(it_does, when)
    return passes[-1]


def test_pass_that_sent_all_asks_for_another_only_after_a_retry(
    make_service: Callable[..., Service], wire: Wire, eventually: Callable[..., None]
) -> None:
    service = make_service("orders", relay_batch_size=100)
    service.app.declare("things.happened", retry=QUICK)
    make_topics(service)
    relay = service.relay()
    first = write(service, 1)
    wire.fate = lambda _: answer(DeliveryOutcome.REFUSED)
    done = relay.run_once()
    assert (done.retried, done.backlog) == (1, False)
    blocked_keys = write(service, 2)
    wire.fate = lambda _: None
    done = pass_that_publishes(relay, eventually, "the retry is due")
    assert sent(wire)[-1:] == first
    assert done.backlog
    done = relay.run_once()
    assert (done.published, done.backlog) == (2, False)
    assert sent(wire) == first + blocked_keys


def test_pass_that_reaches_the_broker_again_asks_for_another(
    make_service: Callable[..., Service], wire: Wire, eventually: Callable[..., None]
) -> None:
    service = make_service("orders", relay_batch_size=100)
    service.app.declare("things.happened", retry=QUICK)
    make_topics(service)
    relay = service.relay()
    ids = write(service, 3)
    wire.fate = lambda _: answer(DeliveryOutcome.UNSENT)
    assert relay.run_once().released == 3
    wire.fate = lambda _: None
    done = pass_that_publishes(relay, eventually, "the pause is over")
    assert (done.published, done.backlog) == (1, True)
    done = relay.run_once()
    assert (done.published, done.backlog) == (2, False)
    assert sent(wire) == ids


@pytest.mark.parametrize(
    "outcome", [DeliveryOutcome.UNSENT, DeliveryOutcome.UNCONFIRMED, DeliveryOutcome.REFUSED]
)
def test_events_claimed_ahead_overtake_no_unacknowledged_event(
    service: Service, wire: Wire, outcome: DeliveryOutcome, eventually: Callable[..., None]
) -> None:
    ids = write(service, 3 * BATCH)
    relay = service.relay()
    wire.fate = lambda record: answer(outcome) if _id(record) in ids[1:BATCH] else None
    relay.run_once()
    # No record of the second batch was sent, and its attempts do not count.
    assert sent(wire) == ids[:1]
    assert service.rows("SELECT sum(attempts) FROM shield_outbox WHERE event_id = ANY(:ids)",
                        ids=ids[BATCH:]) == [(0,)]  # fmt: skip
    wire.fate = lambda _: None

    def everything_is_sent() -> bool:
        relay.run_once()
        return service.outbox() == {"PROCESSED": 3 * BATCH}

    eventually(everything_is_sent, "the backlog is empty")
    assert sent(wire) == ids


def test_rejected_event_blocks_only_its_key_until_it_fails(service: Service, wire: Wire) -> None:
    ids = write(service, 3 * BATCH)
    relay = service.relay()
    wire.fate = lambda record: answer(DeliveryOutcome.REJECTED) if _id(record) == ids[2] else None
    drain(relay)
    assert service.outbox() == {"PROCESSED": 3 * BATCH - 1, "FAILED": 1}
    assert sent(wire) == [*ids[:2], *ids[3:]]


def test_a_relay_that_stops_releases_its_claims(service: Service, wire: Wire) -> None:
    ids = write(service, 3 * BATCH)
    relay = service.relay("one")
    relay.run_once()
    relay.close()
    assert service.outbox() == {"PROCESSED": BATCH, "INIT": 2 * BATCH}
    drain(service.relay("two"))
    assert sent(wire) == ids
    assert len(wire.published) == len(ids)


def test_shards_are_released_without_claims_in_flight(service: Service, wire: Wire) -> None:
    for number in range(3 * BATCH):
        write(service, 1, key=f"k{number}")
    relay, other = service.relay("one"), service.app.build_relay("two")
    relay.run_once()
    other.renew()
    relay.renew()
    assert service.outbox() == {"PROCESSED": BATCH, "INIT": 2 * BATCH}
    assert len(other.renew().shards) == 4
    drain(relay, other)
    assert len(sent(wire)) == len(wire.published) == 3 * BATCH
    # The rows that were settled at the renewal are counted too.
    assert service.outbox() == {"PROCESSED": 3 * BATCH}


def test_events_sent_during_a_database_failure_are_sent_once(service: Service, wire: Wire) -> None:
    """Their rows are settled after the failure."""
    ids = write(service, 3 * BATCH)
    relay = service.relay()
    relay.run_once()

    def take_the_table_away() -> None:
        wire.before_publish = lambda: None
        service.execute("ALTER TABLE shield_outbox RENAME TO away")

    wire.before_publish = take_the_table_away
    with pytest.raises(ProgrammingError, match="shield_outbox"):
        drain(relay)
    service.execute("ALTER TABLE away RENAME TO shield_outbox")
    drain(relay)
    assert service.outbox() == {"PROCESSED": 3 * BATCH}
    assert sent(wire) == ids


def test_failing_publisher_leaves_its_batch_unconfirmed(
    service: Service, wire: Wire, eventually: Callable[..., None]
) -> None:
    ids = write(service, 3 * BATCH)
    relay = service.relay()

    def break_down() -> None:
        raise OperationalError("publish", {}, RuntimeError("unforeseen"))

    wire.before_publish = break_down
    assert "unforeseen" in relay.run_once().outage
    assert service.rows("SELECT DISTINCT status, unconfirmed, count(*) FROM shield_outbox "
                        "GROUP BY 1, 2 ORDER BY 2") == [
        ("INIT", False, 2 * BATCH),
        ("INIT", True, BATCH),
    ]  # fmt: skip
    wire.before_publish = lambda: None

    def everything_is_sent() -> bool:
        relay.run_once()
        return service.outbox() == {"PROCESSED": 3 * BATCH}

    eventually(everything_is_sent, "the backlog is empty")
    assert sent(wire) == ids
