"""The content of `reconcile.toml`, and the resulting configuration."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from shieldtx.domain.states import TxKind
from shieldtx.errors import ConfigurationError
from shieldtx.reconcile.config import Configuration, read_configuration
from shieldtx.reconcile.expectations import ExpectedGroup, FormerGroup, Others
from shieldtx.reconcile.request import BrokerAccess, ServiceDatabase
from shieldtx.reconcile.webhook import Webhook

EVERYTHING = """
name = "shop"
margin = 600
statement_timeout = "PT30M"

[topics]
bootstrap = "kafka:9092"
prefix = "shop."
security_protocol = "SASL_SSL"
sasl_mechanism = "PLAIN"
sasl_username = "reconcile"
sasl_password = "KAFKA_PASSWORD"
ssl_cafile = "/etc/ca.pem"

[webhook]
url = "WEBHOOK_URL"
token = "WEBHOOK_TOKEN"

[services.orders]
url = "ORDERS_URL"
replica_url = "ORDERS_REPLICA"
schema = "shield"
retention = "P14D"
for_others = ["orders.audited", "orders.exported"]
other_sources = ["billing"]
groups = [{name = "refund", compensates = ["orders.placed"]}]

[services.warehouse]
source = "stock"
url = "STOCK_URL"
retention = "for-ever"

[[services.warehouse.groups]]
name = "reserve"
receives = ["orders.placed", "orders.changed"]
compensates = ["stock.low"]
compensates_others = ["placed"]
events = ["placed"]
from = ["orders"]
may_be_unused = ["orders.changed"]
max_attempts = 5
"""
ENVIRONMENT = {
    "ORDERS_URL": "postgresql://a:secret@h/orders",
    "ORDERS_REPLICA": "postgresql://a:secret@r/orders",
    "STOCK_URL": "postgresql://a:secret@h/stock",
    "KAFKA_PASSWORD": "hush",
    "WEBHOOK_URL": "https://alerts.example/hook",
    "WEBHOOK_TOKEN": "t0ken",
}


@pytest.fixture
def read(tmp_path: Path):
    def read(text: str, **environment: str) -> Configuration:
        path = tmp_path / "nightly.toml"
        path.write_text(text)
        return read_configuration(path, ENVIRONMENT | environment)

    return read


def test_file_names_the_services_and_their_receivers(read, tmp_path: Path) -> None:
    found = {
        "event_types": ("placed",),
        "max_attempts": 5,
        "may_be_unused": ("orders.changed",),
    }
    assert read(EVERYTHING) == Configuration(
        scope="shop",
        options=("--config", str(tmp_path / "nightly.toml")),
        margin=timedelta(minutes=10),
        statement_timeout=timedelta(minutes=30),
        broker=BrokerAccess(
            bootstrap="kafka:9092",
            topic_prefix="shop.",
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            sasl_username="reconcile",
            sasl_password="hush",
            ssl_cafile="/etc/ca.pem",
        ),
        webhook=Webhook(url="https://alerts.example/hook", token="t0ken"),
        services=(
            ServiceDatabase(
                name="orders",
                url=ENVIRONMENT["ORDERS_URL"],
                replica_url=ENVIRONMENT["ORDERS_REPLICA"],
                schema="shield",
                retention=timedelta(days=14),
                groups=(
                    ExpectedGroup(name="refund", kind=TxKind.ROLLBACK, topics=("orders.placed",)),
                ),
                others=Others.named("orders.audited", "orders.exported"),
                other_sources=("billing",),
            ),
            ServiceDatabase(
                name="stock",
                url=ENVIRONMENT["STOCK_URL"],
                groups=(
                    ExpectedGroup(
                        name="reserve",
                        topics=("orders.placed", "orders.changed"),
                        upstreams=("orders",),
                        **found,
                    ),
                    ExpectedGroup(
                        name="reserve", kind=TxKind.ROLLBACK, topics=("stock.low",), **found
                    ),
                    ExpectedGroup(
                        name="reserve",
                        kind=TxKind.ROLLBACK,
                        of_others=True,
                        topics=("orders.placed", "orders.changed"),
                        event_types=("placed",),
                        upstreams=("orders",),
                        may_be_unused=("orders.changed",),
                    ),
                ),
            ),
        ),
    )


def test_minimal_file_is_enough(read) -> None:
    found = read('[services.orders]\nurl = "ORDERS_URL"\n')
    assert found.scope == "nightly"
    assert found.broker is None
    (service,) = found.services
    assert (service.name, service.groups, service.retention) == ("orders", None, timedelta(days=7))


def test_configuration_shows_no_secret(read) -> None:
    shown = repr(read(EVERYTHING))
    assert "secret" not in shown
    assert "hush" not in shown


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "services: Field required"),
        ("[services]", "services: "),
        ('[services."a b"]\nurl = "ORDERS_URL"', "a b"),
        ("[services.a]", "services.a.url: Field required"),
        ('[services.a]\nurl = "MISSING"', "services.a.url: the environment variable MISSING"),
        ('[services.a]\nurl = "KAFKA_PASSWORD"', "KAFKA_PASSWORD does not hold a database URL"),
        ('[services.a]\nurl = "ORDERS_URL"\nretention = -1', "services.a.retention"),
        (
            '[services.a]\nurl = "ORDERS_URL"\ngroups = [{name = "g"}]',
            "g has no topics: name them in",
        ),
        (
            '[services.a]\nurl = "ORDERS_URL"\nformer_groups = ["mail placed"]',
            "services.a.former_groups.0",
        ),
        ('margin = "PT"\n[services.a]\nurl = "ORDERS_URL"', "margin: "),
        ('[topics]\n[services.a]\nurl = "ORDERS_URL"', "topics.bootstrap: Field required"),
        ("[services.a", "is not TOML"),
    ],
)
def test_error_names_its_place(read, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        read(text)
    assert "nightly.toml" in str(caught.value)


def test_former_groups_are_named_with_or_without_a_type(read) -> None:
    text = """
        [services.stock]
        url = "STOCK_URL"
        former_groups = ["mail", "audit: orders.placed", "audit:paid"]
    """
    (service,) = read(text).services
    assert service.former_groups == (
        FormerGroup(name="mail"),
        FormerGroup(name="audit", event_type="orders.placed"),
        FormerGroup(name="audit", event_type="paid"),
    )


def test_parallel_topics_are_read(read) -> None:
    text = '[services.orders]\nurl = "ORDERS_URL"\nparallel_topics = ["orders.eu", "orders.us"]'
    (service,) = read(text).services

    assert service.member.parallel_topics == ("orders.eu", "orders.us")


@pytest.mark.parametrize("key", ["url", "replica_url"])
def test_url_in_place_of_a_variable_is_not_repeated(read, key: str) -> None:
    text = f'[services.a]\nurl = "ORDERS_URL"\n{key} = "postgresql://a:s3cret@h/d"'
    text = text if key != "url" else text.replace('url = "ORDERS_URL"\n', "", 1)
    with pytest.raises(ConfigurationError, match="environment variable") as caught:
        read(text)
    assert "s3cret" not in str(caught.value)


def test_from_is_refused_for_a_group_that_only_compensates(read) -> None:
    text = """
        [services.stock]
        url = "STOCK_URL"
        groups = [{name = "refund", compensates = ["stock.low"], from = ["orders"]}]
    """
    with pytest.raises(ConfigurationError, match="refund has `from` without `receives`"):
        read(text)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ('compensates = ["stock.low"]', "`compensates_others` without `receives`"),
        ('receives = ["orders"], events = ["paid"]', "placed, which is not among its `events`"),
    ],
)
def test_group_compensates_foreign_events_only_if_handled(read, more: str, problem: str) -> None:
    text = f"""
        [services.stock]
        url = "STOCK_URL"
        groups = [{{name = "reserve", compensates_others = ["placed"], {more}}}]
    """
    with pytest.raises(ConfigurationError, match=problem):
        read(text)


def test_unusable_webhook_is_refused_with_the_place_of_its_name(read, tmp_path: Path) -> None:
    plain = EVERYTHING.replace('"WEBHOOK_TOKEN"', '"WEBHOOK_TOKEN"\nallow_http = false')
    with pytest.raises(ConfigurationError) as refused:
        read(plain, WEBHOOK_URL="http://alerts.example/s3cret")
    assert str(refused.value).startswith(f"{tmp_path / 'nightly.toml'}: webhook.url: ")
    assert "s3cret" not in str(refused.value)
    allowed = plain.replace("false", "true")
    assert read(allowed, WEBHOOK_URL="http://alerts.example/s3cret").webhook.allow_http


@pytest.mark.parametrize("key", ["url", "token"])
def test_webhook_written_in_place_of_its_variable_is_refused(read, key: str) -> None:
    written = f'{key} = "https://alerts.example/s3cret"'
    with pytest.raises(ConfigurationError, match="the name of the environment variable") as refused:
        read(EVERYTHING.replace(f'{key} = "WEBHOOK_{key.upper()}"', written))
    assert "s3cret" not in str(refused.value)
