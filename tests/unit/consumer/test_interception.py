"""References that an interceptor's call keeps, and errors of a handler that count as failures."""

from __future__ import annotations

import gc
import weakref
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from sqlalchemy.orm import Session

from shieldtx import Event
from shieldtx.consumer.batch_calls import FailedCall, InterruptedCall
from shieldtx.consumer.failures import failure_of
from shieldtx.consumer.interception import intercept
from shieldtx.errors import HandlerError


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Held:
    """An object in a handler's frame, such as a row of a session."""


@pytest.mark.usefixtures("no_collector")
def test_frame_of_a_failed_handler_is_released_at_once() -> None:
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


def test_interceptor_that_swallows_an_error_is_refused() -> None:
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
def test_group_with_an_exit_or_of_failures_is_raised_unchanged(
    error: BaseExceptionGroup[BaseException],
) -> None:
    assert failure_of(error) is error


@pytest.mark.parametrize(
    "error",
    [CancelledError(), BaseExceptionGroup("tasks", [CancelledError(), ValueError()])],
)
def test_cancelled_task_is_a_failure(
    error: CancelledError | BaseExceptionGroup[BaseException],
) -> None:
    assert isinstance(failure_of(error), HandlerError)


def test_error_that_is_passed_on_has_no_payload_in_its_text() -> None:
    """The error may be logged as the context of another one."""
    error = ValueError("8271828")
    assert str(FailedCall(0, 1, error)) == str(InterruptedCall([], error)) == "ValueError"
