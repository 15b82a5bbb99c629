"""The demo, ended early by real signals, leaves no process running."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.acceptance.running_demo import PATIENCE_S, demo
from tests.conftest import Eventually

pytestmark = pytest.mark.demo


def test_audit_of_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with demo(tmp_path, "--again") as running:
        assert running.finish() == 2
    assert "holds nothing that a run with --keep has left" in running.said


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize(
    ("number", "moment", "status"),
    [
        pytest.param(signal.SIGTERM, "PostgreSQL is up", 143, id="SIGTERM at the start"),
        pytest.param(signal.SIGINT, "applied [1-9]", 130, id="Ctrl-C while the services work"),
        pytest.param(signal.SIGKILL, "applied [1-9]", -9, id="SIGKILL while the services work"),
    ],
)
def test_no_process_outlives_the_demo(
    number: signal.Signals, moment: str, status: int, tmp_path: Path, eventually: Eventually
) -> None:
    with demo(tmp_path, "--baskets", "60") as running:
        running.await_words(moment)
        running.send(number)

        assert running.finish() == status
        assert len(running.family) >= 2
        eventually(lambda: not running.survivors(), f"all its processes are gone: {running.family}")
