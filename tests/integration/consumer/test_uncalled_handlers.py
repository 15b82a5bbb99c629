"""Return values of calls are checked: an event whose code has not run is never settled as done."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from shieldtx import Event, Refused
from shieldtx.errors import ConfigurationError, PayloadRefused
from shieldtx.ports.broker import Delivery, DeliveryOutcome
from tests.support.service import QUICK, Service, Wire, drain, make_topics

Make = Callable[..., Service]
NOT_RUN = "whose code has not run"


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """Fail a test after which Python warns of a coroutine that was never awaited."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert not [w for w in warned if "never awaited" in str(w.message)]


@pytest.fixture
def upstream(make_service: Make) -> Service:
    service = make_service("orders")
    service.app.declare("orders.placed", retry=QUICK)
    make_topics(service)
    return service


@pytest.fixture
def downstream(make_service: Make) -> Service:
    return make_service("stock")


async def work(*given: Any) -> None: ...


def later(*given: Any) -> Any:
    """Return a coroutine, as a decorated coroutine function does."""
    return work(*given)


def write(upstream: Service) -> Event:
    event = Event(type="orders.placed", key="a", payload={})
    with upstream.transaction() as session:
        upstream.app.outbox.add(session, event)
    drain(upstream.relay())
    return event


def reason_of(service: Service, table: str = "shield_inbox") -> str:
    ((reason,),) = service.rows(f"SELECT last_error FROM {table} WHERE last_error IS NOT NULL")
    return reason


@pytest.mark.parametrize("way", ["alone", "shared", "list"])
def test_a_handler_whose_code_has_not_run_fails_its_attempts(upstream, downstream, way):
    group = downstream.app.consumer("stock")
    if way == "list":
        group.handles_many("orders.placed", retry=QUICK)(later)
    else:
        group.handles("orders.placed", retry=QUICK, alone=way == "alone")(later)
    write(upstream)
    drain(downstream.app.build_consumer("stock"))
    assert downstream.inbox() == {"MAX_RECONSUMED": 1}
    assert NOT_RUN in reason_of(downstream)
    assert "test_uncalled_handlers.py" in reason_of(downstream)


def test_a_compensation_whose_code_has_not_run_is_dead(upstream, downstream):
    @downstream.app.consumer("stock").handles("orders.placed", retry=QUICK)
    def refuse(session: Session, event: Event) -> None:
        raise Refused("sold out")

    upstream.app.consumer("orders").compensates("orders.placed", retry=QUICK)(later)
    write(upstream)
    drain(downstream.app.build_consumer("stock"), downstream.relay())
    drain(upstream.app.build_consumer("orders"))
    assert upstream.inbox() == {"DEAD": 1}
    assert NOT_RUN in reason_of(upstream)


@pytest.mark.parametrize("interceptor", [later, lambda session, event, proceed: None])
def test_an_interceptor_that_runs_nothing_fails_the_attempt(upstream, downstream, interceptor):
    group, handled = downstream.app.consumer("stock"), []
    group.intercepts(interceptor)
    group.handles("orders.placed", retry=QUICK)(lambda session, event: handled.append(event))
    write(upstream)
    drain(downstream.app.build_consumer("stock"))
    assert (handled, downstream.inbox()) == ([], {"MAX_RECONSUMED": 1})
    assert "has not run" in reason_of(downstream)


def test_local_rollback_that_has_not_run_leaves_the_event_open(upstream, wire: Wire):
    upstream.app.local_rollback("orders.placed")(later)
    wire.fate = lambda record: Delivery(outcome=DeliveryOutcome.REJECTED, reason="too large")
    with upstream.transaction() as session:
        upstream.app.outbox.add(session, Event(type="orders.placed", payload={}))
    upstream.relay().run_once()
    assert "FAILED" not in upstream.outbox()
    assert NOT_RUN in reason_of(upstream, "shield_outbox")


def test_a_check_whose_code_has_not_run_is_unknown(upstream):
    upstream.app.checks("orders.placed")(later)
    with upstream.app.half("orders.placed", {}, immunity=timedelta(0)) as half:
        half.unknown()
    (check_back,) = upstream.app.half_messages.check_backs()
    assert check_back.run_once().unknown == 1
    assert upstream.outbox() == {"HALF": 1}


def test_a_hook_whose_code_has_not_run_is_logged(upstream, caplog):
    upstream.app.hooks.before_send(later)
    with caplog.at_level(logging.ERROR):
        write(upstream)
    assert upstream.outbox() == {"PROCESSED": 1}
    assert NOT_RUN in caplog.text


def test_a_publisher_hidden_by_a_decorator_writes_nothing(upstream):
    place = upstream.app.publishes("orders.placed")(later)
    with Session(upstream.engine) as session, pytest.raises(PayloadRefused, match=NOT_RUN):
        place(session)


def test_a_key_whose_code_has_not_run_is_refused(upstream):
    @upstream.app.publishes("orders.placed", key=lambda payload: payload.items)
    def place(session: Session) -> dict[str, int]:
        return {"id": 1}

    with Session(upstream.engine) as session, pytest.raises(Exception, match=NOT_RUN):
        place(session)


def test_local_transaction_hidden_by_decorator_is_not_committed(upstream):
    pay = upstream.app.transactional("orders.placed", payload=lambda given: {})(later)
    session = Session(create_engine("sqlite://"))
    with session, pytest.raises(ConfigurationError, match=NOT_RUN):
        pay(session)
    assert upstream.outbox() == {"HALF": 1}
