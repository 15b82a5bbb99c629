"""Signals during `relay --once` and `consume --once`."""

from __future__ import annotations

import os
import signal

import pytest

from shieldtx.cli.workers import _stopped_by_signals
from shieldtx.scheduling import worker
from tests.support.log_records import logged


class Left(BaseException):
    """The process has ended."""


def test_both_signals_are_logged_before_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def leave(status: int) -> None:
        raise Left(status)

    monkeypatch.setattr(worker, "leave", leave)
    caplog.set_level("INFO")

    with _stopped_by_signals("relay --once") as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set()
        with pytest.raises(Left) as left:
            os.kill(os.getpid(), signal.SIGINT)

    assert left.value.args == (128 + signal.SIGINT,)
    (stopping,) = logged(caplog.records, "worker_stopping")
    (ended,) = logged(caplog.records, "worker_ended_at_once")
    assert (stopping["worker"], stopping["reason"]) == ("relay --once", "SIGTERM")
    assert (ended["worker"], ended["reason"]) == ("relay --once", "SIGINT during the stop")
    assert ended["exit_status"] == 130
