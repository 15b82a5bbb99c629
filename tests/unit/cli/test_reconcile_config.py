"""What is compared where no file names the services: an application that receives its own."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from shieldtx import Settings, ShieldTx
from shieldtx.cli.app_loading import Invocation
from shieldtx.cli.reconcile_config import load_configuration
from shieldtx.reconcile.expectations import Others


@pytest.fixture
def shield(monkeypatch):
    shield = ShieldTx(Settings(source="shop", database_url="sqlite://"))
    module = ModuleType("shop_for_reconcile")
    module.shield = shield
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return shield


def for_others():
    (service,) = load_configuration(None, Invocation(app="shop_for_reconcile:shield")).services
    return service.others


def test_what_no_group_of_an_application_handles_is_for_others(shield):
    for name in ("placed", "refunded", "recalled"):
        shield.declare(name, topic="orders")
    shield.declare("exported", topic="exports")
    shield.declare("audited", topic="audits")
    group = shield.consumer("stock")
    for event_type in ("placed", "audited"):
        group.handles(event_type)(lambda _session, _event: None)

    assert for_others() == Others(topics=("exports",), event_types=("recalled", "refunded"))


def test_a_type_of_an_application_that_is_called_like_its_topic_is_for_others_alone(shield):
    """Another type of the topic that no group handles is no slip that this hides."""
    shield.declare("orders", topic="orders")
    shield.declare("placed", topic="orders")
    shield.consumer("stock").handles("placed")(lambda _session, _event: None)

    assert not for_others().covers("orders", "refunded")
    assert for_others().covers("orders", "orders")


def test_a_type_that_an_application_compensates_goes_to_a_service_that_it_cannot_judge(shield):
    shield.declare("placed", topic="orders")
    shield.consumer("refund").compensates("placed")(lambda _session, _event: None)

    assert for_others() == Others()
