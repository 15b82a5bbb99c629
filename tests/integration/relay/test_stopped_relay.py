"""A relay that is stopped within a transaction owns its shards at most for its lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError, InternalError, OperationalError
from sqlalchemy.orm import Session

from shieldtx import Event, Settings, ShieldTx
from shieldtx.domain.retry import RetryPolicy
from shieldtx.ports.broker import DeliveryOutcome
from shieldtx.relay.relay import Relay
from shieldtx.store import relay_store
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.store.shard_leases import SqlLeaseStore
from shieldtx.testing.memory_broker import MemoryBroker
from tests.conftest import wait
from tests.support.postgres_settings import IDLE_LIMIT, setting
from tests.support.service import Service, Wire, answer, make_topics

PLACED = "orders.placed"
HANDLER_LEASE = timedelta(minutes=10)


@pytest.fixture(params=["its own engine", "the application's engine"])
def app(request: pytest.FixtureRequest, migrated_url: str) -> Iterator[ShieldTx]:
    """A service with a slow handler, whose relays have a short lease."""
    given = create_engine(migrated_url) if request.param != "its own engine" else None
    settings = Settings(
        source="shop",
        database_url=migrated_url,
        relay_lease=1,
        relay_send_timeout=0.5,
        relay_wakeup=False,
    )
    made = ShieldTx(settings, engine=given, broker=MemoryBroker())
    made.consumer("stock").handles(PLACED, lease=HANDLER_LEASE)(lambda session, event: None)
    yield made
    made.close()
    if given is not None:
        given.dispose()


def test_relay_stopped_while_moving_blocked_rows_is_taken_over(app: ShieldTx) -> None:
    stopped = app.build_relay("stopped")
    shards = stopped.renew().shards
    step = _store_of(stopped)._blocked._step("stopped")
    _, leased = step.__enter__()
    assert set(leased) == shards
    _is_taken_over(app, shards)
    with pytest.raises(DBAPIError):
        step.__exit__(None, None, None)


def test_a_relay_that_is_stopped_as_it_renews_is_taken_over(app: ShieldTx) -> None:
    stopped = app.build_relay("stopped")
    shards = stopped.renew().shards
    leases = cast("SqlLeaseStore", stopped._leases)
    transaction = leases._engine.begin()
    transaction.__enter__().execute(text("SELECT FROM shield_shard FOR UPDATE"))
    _is_taken_over(app, shards)
    with pytest.raises(DBAPIError):
        transaction.__exit__(None, None, None)


def test_relay_stopped_while_reading_a_claim_is_taken_over(app: ShieldTx) -> None:
    stopped = app.build_relay("stopped")
    shards = stopped.renew().shards
    connection = _store_of(stopped)._engine.connect()
    connection.begin()
    # More than the buffers of both sides take; this side reads nothing of it.
    connection.connection.driver_connection.pgconn.send_query(
        b"SELECT shard, repeat('x', 20000000) FROM shield_shard FOR SHARE"
    )
    _is_taken_over(app, shards)
    connection.invalidate()
    connection.close()


def test_failure_without_local_rollback_has_the_relays_limit(
    app: ShieldTx, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []

    def lock_rows(connection: Connection, *asked: Any) -> Any:
        limits.append(setting(connection, IDLE_LIMIT))
        return lock(connection, *asked)

    lock = relay_store.lock_rows
    monkeypatch.setattr(relay_store, "lock_rows", lock_rows)
    store = _store_of(app.build_relay("r"))
    assert not store.fail(uuid4(), uuid4(), reason="too large", local_rollback=None)
    assert limits == ["3s"]


def _store_of(relay: Relay) -> SqlRelayStore:
    return cast("SqlRelayStore", relay._in_flight._store)


def _is_taken_over(app: ShieldTx, shards: frozenset[int]) -> None:
    assert shards
    other = app.build_relay("other")

    def takes_over() -> bool:
        # On a busy machine, its own transaction may exceed the limit too.
        with suppress(OperationalError, InternalError):
            return other.renew().shards == shards
        return False

    wait(takes_over, "another relay has the shards", within=30)


def test_local_rollback_may_take_longer_than_a_lease(
    make_service: Callable[..., Service], wire: Wire
) -> None:
    service, seen = make_service("orders"), []
    service.app.declare(PLACED, retry=RetryPolicy(max_attempts=1))
    make_topics(service)
    wire.fate = lambda record: answer(DeliveryOutcome.REJECTED)

    @service.app.local_rollback(PLACED)
    def undo(session: Session, event: Event) -> None:
        seen.append(setting(session.connection(), IDLE_LIMIT))

    with service.transaction() as session:
        service.app.outbox.add(session, Event(type=PLACED))
    service.relay().run_once()
    # The limit of the application's own engine: none.
    assert seen == ["0"]
