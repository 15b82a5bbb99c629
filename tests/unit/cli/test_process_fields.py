"""Records of a worker name its service and its process."""

from __future__ import annotations

import json
import logging
import os

import pytest

from shieldtx.cli.logging import LogFormat, LogLevel, set_up
from shieldtx.cli.process_fields import name_service

log = logging.getLogger("shieldtx.test")

pytestmark = pytest.mark.usefixtures("own_logging")


def entry_of(capsys: pytest.CaptureFixture[str], **fields: object) -> dict[str, object]:
    log.info("worker started", extra=fields)
    found: dict[str, object] = json.loads(capsys.readouterr().err)
    return found


def test_record_names_service_and_process(capsys: pytest.CaptureFixture[str]) -> None:
    set_up(LogLevel.INFO, LogFormat.JSON)
    name_service("stock")
    entry = entry_of(capsys, action="worker_started")
    assert (entry["service"], entry["pid"]) == ("stock", os.getpid())


def test_field_of_the_record_itself_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    set_up(LogLevel.INFO, LogFormat.JSON)
    name_service("stock")
    assert entry_of(capsys, service="till")["service"] == "till"


def test_record_of_another_command_has_no_service(capsys: pytest.CaptureFixture[str]) -> None:
    set_up(LogLevel.INFO, LogFormat.JSON)
    assert not {"service", "pid"} & set(entry_of(capsys, action="schema_upgrade"))
