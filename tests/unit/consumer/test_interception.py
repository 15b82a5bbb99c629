"""What an interceptor's call leaves behind, and what of a handler's errors is a failure."""

from __future__ import annotations

import gc
import weakref
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from sqlalchemy.orm import Session

from shieldtx import Event
from shieldtx.consumer.batch_executor import _FailedCall, _InterruptedCall
from shieldtx.consumer.failures import failure_of
from shieldtx.consumer.interception import intercept
from shieldtx.errors import HandlerError


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Held:
    """What a handler's frame refers to: rows of a session, mostly."""


@pytest.mark.usefixtures("no_collector")
def test_the_frame_of_a_handler_that_failed_is_let_go_of_at_once() -> None:
    found: list[weakref.ref[Held]] = []

    def handle() -> None:
        held = Held()
        found.append(weakref.ref(held))
        raise ValueError("refused")

    def pass_on(session: Session, event: Event, proceed: Callable[[], None]) -> None:
        proceed()

    try:
        intercept(pass_on, Session(), Event(type="order.placed"), handle)
    except ValueError:
        failed = True
    assert failed
    assert found[0]() is None


def test_an_interceptor_that_swallows_an_error_is_told_so() -> None:
    def handle() -> None:
        raise ValueError("refused")

    def swallow(session: Session, event: Event, proceed: Callable[[], None]) -> None:
        with suppress(ValueError):
            proceed()

    with pytest.raises(HandlerError, match="although proceed") as failed:
        intercept(swallow, Session(), Event(type="order.placed"), handle)
    assert isinstance(failed.value.__cause__, ValueError)


@pytest.mark.parametrize(
    "error",
    [
        BaseExceptionGroup("tasks", [CancelledError(), SystemExit()]),
        BaseExceptionGroup("tasks", [KeyboardInterrupt(), ValueError()]),
        ExceptionGroup("tasks", [ValueError()]),
    ],
)
def test_a_group_goes_on_as_it_is_that_ends_the_process_or_is_a_failure_already(
    error: BaseExceptionGroup[BaseException],
) -> None:
    assert failure_of(error) is error


@pytest.mark.parametrize(
    "error",
    [CancelledError(), BaseExceptionGroup("tasks", [CancelledError(), ValueError()])],
)
def test_a_cancelled_task_is_a_failure(
    error: CancelledError | BaseExceptionGroup[BaseException],
) -> None:
    assert isinstance(failure_of(error), HandlerError)


def test_an_error_that_is_only_passed_on_has_nothing_of_a_payload_in_its_text() -> None:
    """It may be logged as the context of another one."""
    error = ValueError("8271828")
    assert str(_FailedCall(0, 1, error)) == str(_InterruptedCall([], error)) == "ValueError"
