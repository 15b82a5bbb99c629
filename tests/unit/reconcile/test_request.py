"""Valid requests, and the addresses of databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shieldtx.domain.states import TxKind
from shieldtx.errors import ConfigurationError
from shieldtx.reconcile.expectations import ExpectedGroup, FormerGroup, Member, Others, Received
from shieldtx.reconcile.jdbc import jdbc_address
from shieldtx.reconcile.observed import Observed, ObservedTopic, ObservedTopics, Past
from shieldtx.reconcile.request import (
    EVERYTHING,
    BrokerAccess,
    ReconcileRequest,
    Selection,
    ServiceDatabase,
    from_json,
    to_json,
)

SECRET = "s3cret/with:odd@signs"
URL = "postgresql+psycopg://anna:s3cret%2Fwith%3Aodd%40signs@db.example:6432/orders"
NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)


def service(name, **changes):
    return ServiceDatabase(**{"name": name, "url": URL, **changes})


def request(**changes):
    services = (service("orders"), service("stock", schema="shield"))
    return ReconcileRequest(**{"services": services, "folder": Path("report"), **changes})


def everything_that_can_be_asked():
    groups = (
        ExpectedGroup(name="reserve", topics=("orders.placed",), max_attempts=5),
        ExpectedGroup(name="release", kind=TxKind.ROLLBACK, upstreams=("mail",)),
    )
    stock = service(
        "stock",
        replica_url=URL,
        schema="shield",
        retention=timedelta(days=30),
        groups=groups,
        others=Others.named("shipping"),
        former_groups=(FormerGroup(name="mail", event_type="invoice.closed"),),
        parallel_topics=("eu", "us"),
    )
    return request(
        services=(service("orders"), stock, service("mail", groups=())),
        run_id="2026-01-15",
        selection=Selection(
            moved_since={"orders": NOON, "stock": NOON - timedelta(microseconds=1)},
            written_since=NOON - timedelta(days=1),
            written_until=NOON,
        ),
        observed=Observed(
            received=(
                Received(
                    downstream="stock",
                    group="reserve",
                    source="orders",
                    kind=TxKind.COMMIT,
                    topic="orders.placed",
                    event_type="orders.placed",
                ),
            ),
            topics=ObservedTopics(
                cluster="c",
                topics={
                    "t": ObservedTopic(topic_id="i", ends={0: 7}, writers=frozenset({"orders"})),
                    "u": None,
                },
            ),
        ),
        past=Past(
            received=(
                Received(
                    downstream="stock",
                    group="reserve",
                    source="orders",
                    kind=TxKind.COMMIT,
                    topic="invoices",
                    event_type="invoice.closed",
                ),
            ),
            former_since={"stock": {"mail: invoice.closed": NOON}},
        ),
        broker=BrokerAccess(bootstrap="kafka:9092", sasl_username="anna", sasl_password=SECRET),
        margin=timedelta(seconds=90),
        statement_timeout=timedelta(minutes=5),
        push_down=False,
        first_rows=0,
        show_payloads=True,
        jdbc_jar=Path("driver.jar"),
        master="spark://master:7077",
    )


@pytest.mark.parametrize("asked", [request(), everything_that_can_be_asked()])
def test_request_is_read_from_json_unchanged(asked):
    line = to_json(asked)
    assert b"\n" not in line
    assert from_json(line) == asked


def test_time_is_read_from_json_in_utc_to_the_microsecond():
    exact = datetime(2026, 1, 15, 12, 0, 0, 1, tzinfo=UTC)
    asked = request(selection=Selection(moved_since={"orders": exact}, written_since=exact))
    selection = from_json(to_json(asked)).selection
    assert selection.moved_since["orders"] == exact
    assert selection.written_since == exact
    assert selection.written_since.utcoffset() == timedelta(0)


def test_request_shows_no_password():
    shown = repr(everything_that_can_be_asked())
    assert SECRET not in shown
    assert "s3cret" not in shown
    assert URL not in shown


def test_unreadable_request_is_refused_without_repeating_it():
    with pytest.raises(ConfigurationError) as refusal:
        from_json('{"services": [{"name": "orders", "url": ["s3cret"]}], "folder": "s3cret"}')
    assert "services.0.url" in str(refusal.value)
    assert "s3cret" not in str(refusal.value)
    assert refusal.value.__cause__ is None


def test_request_that_is_not_json_is_refused_unrepeated():
    with pytest.raises(ConfigurationError) as refusal:
        from_json("s3cret")
    assert "s3cret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"services": ()}, "no service"),
        ({"services": (service("orders"), service("stock"), service("orders"))}, "'orders'"),
        ({"margin": timedelta(seconds=-1)}, "margin"),
        ({"statement_timeout": timedelta(0)}, "time limit"),
        ({"first_rows": -1}, "rows"),
        ({"first_rows": 1_001}, "choose 0 to 1,000"),
    ],
)
def test_inconsistent_request_is_refused(changes, hint):
    with pytest.raises(ConfigurationError, match=hint):
        request(**changes)


def test_one_service_alone_may_be_reconciled_with_itself():
    assert [s.name for s in request(services=(service("orders"),)).services] == ["orders"]


def test_margin_of_zero_is_valid():
    assert request(margin=timedelta(0)).margin == timedelta(0)


def test_default_selection_is_everything():
    assert Selection() == EVERYTHING
    assert EVERYTHING.is_everything
    assert request().selection == EVERYTHING


@pytest.mark.parametrize(
    "narrowed",
    [
        {"moved_since": {"orders": NOON}},
        {"written_since": NOON},
        {"written_until": NOON},
    ],
)
def test_selection_with_a_limit_is_not_everything(narrowed):
    assert not Selection(**narrowed).is_everything


@pytest.mark.parametrize("bound", ["written_since", "written_until"])
def test_bound_without_a_time_zone_is_refused(bound):
    with pytest.raises(ConfigurationError, match="no time zone"):
        Selection(**{bound: NOON.replace(tzinfo=None)})


def test_earlier_runs_without_a_time_zone_are_refused():
    with pytest.raises(ConfigurationError, match="no time zone"):
        Selection(moved_since={"orders": NOON.replace(tzinfo=None)})


@pytest.mark.parametrize("until", [NOON, NOON - timedelta(seconds=1)])
def test_window_that_ends_before_it_begins_is_refused(until):
    with pytest.raises(ConfigurationError, match="not after it begins"):
        Selection(written_since=NOON, written_until=until)


def test_member_has_name_groups_and_types_for_others():
    groups = (ExpectedGroup(name="reserve"),)
    assert service("stock", groups=groups, others=Others.named("shipping")).member == Member(
        name="stock", groups=groups, others=Others.named("shipping")
    )
    assert service("stock").member == Member(name="stock")


def test_jdbc_url_contains_neither_user_nor_password():
    address = jdbc_address("orders", URL)
    assert address.url == "jdbc:postgresql://db.example:6432/orders"
    assert address.properties["user"] == "anna"
    assert address.properties["password"] == SECRET
    assert "s3cret" not in repr(address)


def test_options_common_to_libpq_and_jdbc_are_passed_on():
    address = jdbc_address(
        "orders", "postgresql://a:b@[::1]/o%20k?sslmode=require&connect_timeout=3&keepalives=1"
    )
    assert address.url == "jdbc:postgresql://[::1]:5432/o%20k"
    assert address.properties["sslmode"] == "require"
    assert address.properties["connectTimeout"] == "3"
    assert "keepalives" not in address.properties


def test_session_is_read_only():
    properties = jdbc_address("orders", URL).properties
    assert (properties["readOnly"], properties["readOnlyMode"]) == ("true", "always")


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("sqlite:///orders.db", "PostgreSQL only"),
        ("postgresql://a:s3cret@/orders", "TCP"),
        ("postgresql://a:s3cret@/orders?host=/run/postgresql", "TCP"),
        ("postgresql://a:s3cret@h:1/orders?host=h1:1&host=h2:2", "TCP"),
        ("postgresql://h/orders", "user"),
        ("postgresql://a:s3cret@h", "database"),
        ("postgresql://a:s3cret@h/orders?passfile=x", "passfile"),
        ("not a url, s3cret", "cannot be read"),
    ],
)
def test_url_that_jdbc_cannot_reach_is_refused_unrepeated(url, hint):
    with pytest.raises(ConfigurationError, match=hint) as refusal:
        jdbc_address("orders", url)
    assert "orders" in str(refusal.value)
    assert "s3cret" not in str(refusal.value)
    assert refusal.value.__cause__ is None
