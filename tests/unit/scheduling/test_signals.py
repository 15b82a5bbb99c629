"""Signals end a block gracefully; the earlier handlers are restored after the block."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from shieldtx.scheduling.signals import graceful_signals

GRACEFUL = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in GRACEFUL}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_each_signal_calls_the_function_with_its_number() -> None:
    came: list[int] = []
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with graceful_signals(came.append):
        for number in GRACEFUL:
            signal.raise_signal(number)
    assert came == list(GRACEFUL)


def test_ignored_hangup_stays_ignored() -> None:
    came: list[int] = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with graceful_signals(came.append):
        signal.raise_signal(signal.SIGHUP)
    assert came == []
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_earlier_handlers_are_restored_after_an_error() -> None:
    def end(number: int) -> None:
        raise InterruptedError(number)

    before = [signal.getsignal(number) for number in GRACEFUL]
    with pytest.raises(InterruptedError), graceful_signals(end):
        signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(number) for number in GRACEFUL] == before
