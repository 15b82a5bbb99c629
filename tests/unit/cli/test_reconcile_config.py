"""The compared services without a file: an application that receives its own events."""

from __future__ import annotations

import sqlite3
import sys
from types import ModuleType

import pytest
import typer
from sqlalchemy.exc import IntegrityError

from shieldtx import Settings, ShieldTx
from shieldtx.cli.app_loading import Invocation
from shieldtx.cli.reconcile_config import ending_as_error, load_configuration
from shieldtx.reconcile.expectations import Others
from shieldtx.reconcile.findings import RunOutcome


@pytest.fixture
def shield(monkeypatch):
    shield = ShieldTx(Settings(source="shop", database_url="sqlite://"))
    module = ModuleType("shop_for_reconcile")
    vars(module)["shield"] = shield
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return shield


def for_others():
    (service,) = load_configuration(None, Invocation(app="shop_for_reconcile:shield")).services
    return service.others


def test_types_that_no_group_handles_are_for_others(shield):
    for name in ("placed", "refunded", "recalled"):
        shield.declare(name, topic="orders")
    shield.declare("exported", topic="exports")
    shield.declare("audited", topic="audits")
    group = shield.consumer("stock")
    for event_type in ("placed", "audited"):
        group.handles(event_type)(lambda _session, _event: None)

    assert for_others() == Others(topics=("exports",), event_types=("recalled", "refunded"))


def test_type_named_like_its_topic_is_for_others_alone(shield):
    """The type does not hide a mistyped name: another type of the topic that no group handles."""
    shield.declare("orders", topic="orders")
    shield.declare("placed", topic="orders")
    shield.consumer("stock").handles("placed")(lambda _session, _event: None)

    assert not for_others().covers("orders", "refunded")
    assert for_others().covers("orders", "orders")


def test_compensated_type_is_not_for_others(shield):
    """The type goes to a service that the application cannot judge."""
    shield.declare("placed", topic="orders")
    shield.consumer("refund").compensates("placed")(lambda _session, _event: None)

    assert for_others() == Others()


def test_traceback_of_a_defect_shows_no_row(capsys: pytest.CaptureFixture[str]):
    row = IntegrityError("INSERT", {"p": "4711 0815"}, sqlite3.IntegrityError("not unique"))

    with pytest.raises(typer.Exit) as ended, ending_as_error():
        raise LookupError("which run") from row

    assert ended.value.exit_code == RunOutcome.ERROR
    shown = capsys.readouterr().err
    assert "LookupError: which run" in shown
    assert "4711" not in shown
