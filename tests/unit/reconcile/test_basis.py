"""The basis of a run's judgement, and the changes after which another run is not comparable."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from shieldtx.domain.states import TxKind
from shieldtx.ports.database_history import DatabaseHistory, SettledRow
from shieldtx.reconcile.basis import (
    Basis,
    basis_of,
    changes,
    clocks_set_back,
    configuration_of,
    from_json,
    losses,
    other_services,
    to_json,
)
from shieldtx.reconcile.expectations import ExpectedGroup, FormerGroup, Others, Received
from shieldtx.reconcile.observed import Observed, ObservedTopic, ObservedTopics
from shieldtx.reconcile.request import BrokerAccess, ReconcileRequest, ServiceDatabase

URL = "postgresql://ann:s3cret-word@db/orders"
HISTORY = DatabaseHistory(
    system="7712", timeline="00000001", objects=(5, 16401, 16420), newest=(UUID(int=7), None)
)
RESERVE = ExpectedGroup(name="reserve", topics=("orders.placed",))
REFUND = ExpectedGroup(name="refund", kind=TxKind.ROLLBACK, topics=("orders.placed",))
ORDERS = ServiceDatabase(name="orders", url=URL, groups=(REFUND,))
STOCK = ServiceDatabase(name="stock", url=URL, groups=(RESERVE, REFUND))
BROKER = BrokerAccess(bootstrap="kafka:9092", sasl_password="s3cret-word")


def basis(*services: ServiceDatabase, history: DatabaseHistory = HISTORY, **changed: Any) -> Basis:
    given = services or (ORDERS, STOCK)
    request = ReconcileRequest(
        services=given, folder=Path("unused"), **({"broker": BROKER} | changed)
    )
    return basis_of(request, {service.name: history for service in given})


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: basis(margin=timedelta(0)), "the margin was 0:15:00 and is 0:00:00"),
        (lambda: basis(broker=None), "topics were read before"),
        (
            lambda: basis(broker=replace(BROKER, topic_prefix="test.")),
            "the topics are those of another broker",
        ),
        (lambda: basis(ORDERS), "service stock was taken out"),
        (lambda: basis(ORDERS, STOCK, replace(STOCK, name="mail")), "service mail was added"),
        *(
            (
                lambda changed=changed: basis(ORDERS, replace(STOCK, **changed)),
                "the configuration of service stock has changed",
            )
            for changed in (
                {"schema": "shield"},
                {"retention": timedelta(days=7)},
                {"others": Others.named("stock.audited")},
                {"groups": None},
                {"former_groups": (FormerGroup(name="mail"),)},
                {"groups": (RESERVE,)},
                {"groups": (replace(RESERVE, max_attempts=3), REFUND)},
                {"groups": (replace(RESERVE, event_types=("x",)), REFUND)},
                {"groups": (replace(RESERVE, upstreams=("orders",)), REFUND)},
            )
        ),
        (
            lambda: replace(basis(), rules=1),
            "another release of shieldtx, with other rules, made the earlier runs",
        ),
    ],
)
def test_everything_that_affects_verdicts_is_a_change(
    other: Callable[[], Basis], said: str
) -> None:
    before = basis() if "rules" not in said else other()
    after = other() if "rules" not in said else basis()
    assert changes(before, after) == [said]


def test_topics_that_are_read_for_the_first_time_are_a_change() -> None:
    assert changes(basis(broker=None), basis()) == ["topics were not read before"]


@pytest.mark.parametrize(
    "other",
    [
        basis(),
        basis(STOCK, ORDERS),
        basis(ORDERS, replace(STOCK, groups=(REFUND, RESERVE))),
        basis(ORDERS, replace(STOCK, url="postgresql://other-account@db/orders")),
        basis(first_rows=0, push_down=False, show_payloads=True),
        basis(history=replace(HISTORY, timeline="00000002")),
    ],
)
def test_anything_that_affects_no_verdict_is_not_a_change(other: Basis) -> None:
    assert changes(basis(), other) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, []),
        ({"newest": (UUID(int=9), UUID(int=8))}, []),
        ({"system": "7713"}, ["is another one, or its tables were recreated"]),
        ({"objects": (5, 16401, 16999)}, ["is another one, or its tables were recreated"]),
        (
            {"timeline": "00000002"},
            ["was restored to a point in time, or a replica of it was promoted"],
        ),
    ],
)
def test_replaced_or_restored_database_is_reported(
    changed: dict[str, Any], said: list[str]
) -> None:
    now = basis(ORDERS, history=replace(HISTORY, **changed))
    assert losses(basis(ORDERS), now) == [f"the database of orders {each}" for each in said]


NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=2)
SETTLED = SettledRow(event_id=UUID(int=7), settled_at=LATER)


@pytest.mark.parametrize(
    ("earlier", "watermarks", "is_ahead"),
    [
        ({}, {}, False),
        ({}, {"orders": NOON, "mail": LATER}, False),
        ({}, {"orders": LATER}, True),
        ({"latest_settled": (None, SETTLED)}, {"orders": NOON}, True),
        ({"latest_settled": (replace(SETTLED, settled_at=NOON), None)}, {}, False),
        ({"asked_at": LATER}, {"orders": NOON}, True),
    ],
)
def test_clock_that_was_ahead_and_was_set_back_is_reported(
    earlier: dict[str, Any], watermarks: dict[str, datetime], is_ahead: bool
) -> None:
    before = basis(ORDERS, history=replace(HISTORY, **earlier))
    now = basis(ORDERS, history=replace(HISTORY, asked_at=NOON))
    said = clocks_set_back(before, now, watermarks)
    expected = (
        "the clock of the database of orders was ahead when an earlier run judged it, and was set "
        "back: that run knew of 2026-01-15 14:00:00+0000, and it is 2026-01-15 12:00:00+0000"
    )
    assert said == [expected] * is_ahead
    assert clocks_set_back(before, basis(ORDERS), watermarks) == []


def test_basis_is_stored_without_secrets_and_read_unchanged() -> None:
    stored = to_json(basis())

    assert "s3cret-word" not in stored
    assert from_json(stored) == basis()


@pytest.mark.parametrize("text", ["{}", "", "[1]", '{"rules": "many"}'])
def test_unreadable_basis_of_another_release_is_ignored(text: str) -> None:
    assert from_json(text) is None


def test_old_names_for_others_cover_topics_and_types() -> None:
    of_old = json.loads(to_json(basis()))
    of_old["services"]["stock"]["others"] = ["stock.audited"]
    del of_old["services"]["stock"]["former_groups"]

    earlier = from_json(json.dumps(of_old))

    assert earlier is not None
    assert earlier.services["stock"].others == Others.named("stock.audited")


def test_observations_of_a_run_are_stored_with_its_basis() -> None:
    received = Received(
        downstream="stock",
        group="reserve",
        source="orders",
        kind=TxKind.COMMIT,
        topic="orders.placed",
        event_type="orders.placed",
    )
    topics = ObservedTopics(
        cluster="c", topics={"t": ObservedTopic(topic_id="i", ends={0: 7}), "u": None}
    )
    met = replace(basis(), observed=Observed(received=(received,), topics=topics))

    assert from_json(to_json(met)) == met
    assert changes(basis(), met) == []


def test_configuration_does_not_depend_on_observations() -> None:
    met = replace(
        basis(STOCK, ORDERS, history=replace(HISTORY, timeline="00000002")), observed=Observed()
    )

    assert configuration_of(to_json(met)) == configuration_of(to_json(basis()))
    assert configuration_of(to_json(met)) != configuration_of(to_json(basis(ORDERS)))
    assert configuration_of("{}") == "{}"


def test_other_services_do_not_depend_on_the_margin_of_a_run() -> None:
    assert other_services(basis(), basis(margin=timedelta(0), broker=None)) == []
    assert other_services(basis(), basis(ORDERS)) == ["service stock was taken out"]
