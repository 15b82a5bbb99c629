"""A rollback and its event at two workers of a group concurrently: the effect never comes last."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from shieldtx import RetryPolicy, TxKind
from shieldtx.brokers import cloudevents
from shieldtx.consumer.consumer import Consumer
from shieldtx.domain.events import Envelope, new_event_id
from shieldtx.hooks.contexts import ConsumeContext
from shieldtx.ports.inbox import AttemptOutcome, IncomingEvent
from tests.support.lanes import execute, process
from tests.support.service import Service, as_received, effect, make_topics

Make = Callable[..., Service]
GROUP, TYPE = "shipping", "orders.placed"
ONCE = RetryPolicy(max_attempts=1)


class Race:
    """Two workers of a group that handles events and compensates them."""

    def __init__(self, service: Service, source: str) -> None:
        self.service = service
        group = service.app.consumer(GROUP)
        group.handles(TYPE, retry=ONCE)(effect("shipped"))
        group.compensates(TYPE, retry=ONCE)(effect("unshipped"))
        make_topics(service)
        self.one: Consumer = service.app.build_consumer(GROUP)
        self.other: Consumer = service.app.build_consumer(GROUP)
        self.event = _envelope(source)
        self.rollback = _envelope(
            "stock", kind=TxKind.ROLLBACK, causation_id=self.event.id, causation_source=source
        )

    def receive(self, worker: Consumer, envelope: Envelope, lease: timedelta | None) -> None:
        """Let a worker store an event, started with its batch (with a lease) or not."""
        received = as_received(cloudevents.encode(envelope, ""))
        arrival = IncomingEvent(envelope=envelope, record=received, lease=lease)
        self.started = worker._store.receive(GROUP, [arrival], []).started

    def rows(self) -> list[tuple[str, str, int]]:
        """Return kind, status and attempts of all inbox rows."""
        return self.service.rows(
            "SELECT tx_kind, status, attempts FROM shield_inbox ORDER BY tx_kind"
        )


def _envelope(source: str, kind: TxKind = TxKind.COMMIT, **cause: object) -> Envelope:
    return Envelope(
        id=new_event_id(),
        type=TYPE,
        source=source,
        topic=TYPE,
        payload="null",
        time=datetime.now(UTC),
        kind=kind,
        key="a",
        **cause,
    )


@pytest.fixture(params=["orders", GROUP], ids=["foreign", "own"])
def race(make_service: Make, request: pytest.FixtureRequest) -> Race:
    service = make_service(GROUP)
    race = Race(service, request.param)
    if request.param == GROUP:
        service.app.declare(TYPE)
        with service.transaction() as session:
            service.app.outbox.add_envelope(session, race.event)
    return race


@pytest.mark.parametrize("lease", [None, timedelta(minutes=1)], ids=["waits", "started"])
def test_event_that_arrives_during_its_rollback_is_applied_first(
    race: Race, lease: timedelta | None
) -> None:
    @race.service.app.hooks.before_consume
    def receive_the_event(context: ConsumeContext) -> None:
        if context.kind is TxKind.ROLLBACK and race.rows()[0][0] != "COMMIT":
            race.receive(race.other, race.event, lease)

    race.receive(race.one, race.rollback, None)
    assert process(race.one, race.rollback) is AttemptOutcome.BLOCKED
    assert race.rows()[1] == ("ROLLBACK", "PROCESSING", 0)
    assert process(race.one, race.rollback) is AttemptOutcome.BLOCKED
    if race.started:
        execute(race.other, race.started)
    else:
        assert process(race.other, race.event) is AttemptOutcome.APPLIED
    assert process(race.one, race.rollback) is AttemptOutcome.COMPENSATED
    assert race.rows() == [("COMMIT", "PROCESSED", 1), ("ROLLBACK", "PROCESSED", 1)]
    whats = [what for (what,) in race.service.rows("SELECT what FROM effects")]
    assert whats == ["shipped", "unshipped"]
    [(in_order,)] = race.service.rows(
        "SELECT max(settled_at) FILTER (WHERE tx_kind = 'COMMIT')"
        " < max(settled_at) FILTER (WHERE tx_kind = 'ROLLBACK') FROM shield_inbox"
    )
    assert in_order


def test_event_that_arrives_after_its_rollback_is_refused(race: Race) -> None:
    race.receive(race.one, race.rollback, None)
    own = race.event.source == GROUP
    outcome = process(race.one, race.rollback)
    assert outcome is (AttemptOutcome.COMPENSATED if own else AttemptOutcome.MOOT)
    race.receive(race.other, race.event, timedelta(minutes=1))
    assert not race.started
    assert race.rows() == [("COMMIT", "FENCED", 0), ("ROLLBACK", "PROCESSED", 1)]
    assert "shipped" not in [what for (what,) in race.service.rows("SELECT what FROM effects")]
