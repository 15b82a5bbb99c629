"""Options of Kafka clients: allowed with limits, refused with a reason, unknown by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from pydantic import SecretStr

from shieldtx import Settings, ShieldTx
from shieldtx.brokers.client_options import (
    ALLOWED,
    CONSUMER_TIMES,
    REFUSED,
    ClientOptions,
    Role,
    checked_options,
    for_kafka_python,
    for_librdkafka,
)
from shieldtx.brokers.kafka import confluent_producer
from shieldtx.brokers.kafka.broker import KafkaBroker
from shieldtx.brokers.kafka.publisher import KafkaPublisher
from shieldtx.brokers.kafka.settings import connection_of, group_options
from shieldtx.errors import BrokerUnavailable, ConfigurationError
from shieldtx.ports.broker import Record

CLIENTS: dict[Role, Any] = {
    Role.PRODUCER: KafkaProducer,
    Role.CONSUMER: KafkaConsumer,
    Role.ADMIN: KafkaAdminClient,
}
CONFLUENT = "confluent-kafka"
PAGE = Path(__file__).parents[3] / "docs/how-to/connections.md"


def settings(**given: Any) -> Settings:
    given.setdefault("kafka_bootstrap", "127.0.0.1:1")
    return Settings(source="shop", database_url=SecretStr("sqlite://"), **given)


def an_allowed_value(name: str) -> Any:
    option = ALLOWED[name]
    if option.least is not None:
        return option.least
    return option.choices[0] if option.choices else "text"


@pytest.mark.parametrize("role", Role)
def test_kafka_python_knows_every_allowed_option(role: Role) -> None:
    given = {n: an_allowed_value(n) for n, option in ALLOWED.items() if role in option.roles}
    assert given.keys() == checked_options("here", given, None).keys()
    assert for_kafka_python(given).keys() <= CLIENTS[role].DEFAULT_CONFIG.keys()


def test_librdkafka_accepts_every_option_of_a_producer() -> None:
    given = {n: an_allowed_value(n) for n, o in ALLOWED.items() if Role.PRODUCER in o.roles}
    confluent_kafka.Producer({"bootstrap.servers": "127.0.0.1:1", **for_librdkafka(given)})


@pytest.mark.parametrize("bound", ["least", "most"])
@pytest.mark.parametrize("name", ALLOWED)
def test_each_client_starts_with_each_option_at_its_limits(name: str, bound: str) -> None:
    value = an_allowed_value(name) if ALLOWED[name].least is None else getattr(ALLOWED[name], bound)
    given = settings(kafka_options={name: value}, relay_send_timeout=60, relay_lease=120)
    confluent = KafkaBroker.from_settings(given.model_copy(update={"kafka_producer": CONFLUENT}))
    confluent.publisher()
    connection = connection_of(given)
    with closing(KafkaBroker.from_settings(given).subscriber("g", ["t"])) as subscriber:
        group = subscriber._options
    # No broker is needed: the clients check their options before they connect.
    for role, options in ((Role.PRODUCER, {}), (Role.CONSUMER, group), (Role.ADMIN, {})):
        with pytest.raises(BrokerUnavailable):
            connection.open(CLIENTS[role], within=0.01, role=role, **options)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"reconnect.backoff.ms": 2_000}, (2_000, 2_000)),
        ({"reconnect.backoff.ms": 200}, (200, None)),
        ({"reconnect.backoff.max.ms": 50}, (50, 50)),
        ({"reconnect.backoff.max.ms": 500}, (None, 500)),
        ({"reconnect.backoff.ms": 2_000, "reconnect.backoff.max.ms": 3_000}, (2_000, 3_000)),
    ],
)
def test_waits_before_a_reconnection_follow_each_other(
    given: dict[str, int], expected: tuple[int | None, int | None]
) -> None:
    options = ClientOptions(common=given).of(Role.PRODUCER)
    found = options.get("reconnect.backoff.ms"), options.get("reconnect.backoff.max.ms")
    assert found == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {
                "kafka_options": {"reconnect.backoff.ms": 2_000},
                "kafka_admin_options": {"reconnect.backoff.max.ms": 500},
            },
            r"backoff.ms of admins \(2000\) must not be above reconnect.backoff.max.ms \(500\)",
        ),
        (
            {
                "kafka_options": {"request.timeout.ms": 2_000},
                "kafka_consumer_options": {"fetch.max.wait.ms": 2_000},
            },
            r"fetch.max.wait.ms of consumers \(2000\) must be below request.timeout.ms \(2000\)",
        ),
        (
            {
                "kafka_consumer_options": {
                    "request.timeout.ms": 60_000,
                    "connections.max.idle.ms": 60_000,
                }
            },
            r"request.timeout.ms of consumers \(60000\) must be below connections.max.idle.ms",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        settings(**given)


def test_times_of_consumers_are_compared_with_their_defaults() -> None:
    with closing(KafkaBroker.from_settings(settings()).subscriber("g", ["t"])) as subscriber:
        options = KafkaConsumer.DEFAULT_CONFIG | subscriber._options
    assert for_kafka_python(CONSUMER_TIMES).items() <= options.items()


def test_option_that_librdkafka_refuses_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALLOWED, "no.such.option", ALLOWED["linger.ms"])
    given = settings(kafka_producer=CONFLUENT, kafka_producer_options={"no.such.option": 1})
    broker = KafkaBroker.from_settings(given)
    with pytest.raises(ConfigurationError, match=r"No such configuration property.*no\.such"):
        broker.publisher()
    publisher = KafkaPublisher(connection_of(given), connect=confluent_producer.connect)
    (delivery,) = publisher.publish([Record("t", None, b"1", ())], timeout=5)
    assert (delivery.outcome, "No such configuration" in delivery.reason) == ("UNSENT", True)


@pytest.mark.parametrize("name", [*REFUSED, "ssl.keystore.password", "sasl.jaas.config"])
def test_option_that_breaks_a_promise_is_refused_with_a_reason(name: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"{name} cannot be set: ")):
        settings(kafka_options={name: "1"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"linger": 1}, "linger is not an option that shieldtx knows; did you mean linger.ms?"),
        ({"compression_type": "gzip"}, "did you mean compression.type?"),
        ({"zzz": 1}, "zzz is not an option that shieldtx knows$"),
        ({"linger.ms": 101}, "linger.ms must be 0 to 100, not 101"),
        ({"linger.ms": "soon"}, "linger.ms must be a whole number, not 'soon'"),
        ({"linger.ms": True}, "linger.ms must be a whole number"),
        ({"compression.type": "rar"}, "compression.type must be one of none, gzip"),
        ({"client.id": 1}, "client.id must be a text"),
    ],
)
def test_an_unknown_or_invalid_option_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        settings(kafka_options=given)


def test_an_option_of_another_client_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"linger\.ms is not an option of a consumer"):
        settings(kafka_consumer_options={"linger.ms": 1})
    with pytest.raises(ConfigurationError, match="set it for all"):
        settings(kafka_producer_options={"client.id": "x"})


def test_options_of_the_environment_reach_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SHIELDTX_SOURCE": "shop",
        "SHIELDTX_DATABASE_URL": "sqlite://",
        "SHIELDTX_KAFKA_OPTIONS": '{"client.id": "orders", "linger.ms": "7"}',
        "SHIELDTX_KAFKA_PRODUCER_OPTIONS": '{"linger.ms": 9}',
        "SHIELDTX_KAFKA_CONSUMER_OPTIONS": '{"fetch.min.bytes": 2}',
    }.items():
        monkeypatch.setenv(name, value)
    connection = connection_of(Settings.from_env())
    assert connection.client_id == "orders"
    assert connection.client_options.of(Role.PRODUCER) == {"linger.ms": 9}
    assert connection.client_options.of(Role.CONSUMER) == {"fetch.min.bytes": 2}
    assert connection.client_options.of(Role.ADMIN) == {}


def test_options_in_code_are_added_and_checked() -> None:
    given = settings(kafka_options={"client.id": "a", "linger.ms": 1})
    shield = ShieldTx(given, kafka_options={"linger.ms": 2})
    assert shield.settings.kafka_options == {"client.id": "a", "linger.ms": 2}
    assert given.kafka_options == {"client.id": "a", "linger.ms": 1}
    with pytest.raises(ConfigurationError, match="acks cannot be set"):
        ShieldTx(given, kafka_options={"acks": "1"})


def test_no_compression_is_none_for_kafka_python() -> None:
    assert for_kafka_python({"compression.type": "none"}) == {"compression_type": None}
    options = ClientOptions(producer={"compression.type": "gzip"})
    assert for_kafka_python(options.of(Role.PRODUCER)) == {"compression_type": "gzip"}


def test_a_request_must_end_within_its_batch() -> None:
    with pytest.raises(ConfigurationError, match="must not be above SHIELDTX_RELAY_SEND_TIMEOUT"):
        settings(kafka_producer_options={"request.timeout.ms": 10_001})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"consumer_heartbeat_interval": 6}, "must be at most a third of"),
        ({"consumer_instance_id": "a b"}, "SHIELDTX_CONSUMER_INSTANCE_ID"),
        ({"consumer_poll_timeout": 11}, "SHIELDTX_CONSUMER_POLL_TIMEOUT"),
    ],
)
def test_invalid_times_and_names_of_members_are_refused(
    given: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        settings(**given)


def test_the_poll_interval_allows_for_the_longest_pass() -> None:
    short, long = timedelta(minutes=2), timedelta(minutes=31)
    assert group_options(settings(), longest_pass=short).max_poll_interval == 300
    assert group_options(settings(), longest_pass=long).max_poll_interval == 33 * 60
    chosen = settings(consumer_max_poll_interval=121)
    assert group_options(chosen, longest_pass=short).max_poll_interval == 121
    with pytest.raises(ConfigurationError, match="SHIELDTX_CONSUMER_MAX_POLL_INTERVAL"):
        KafkaBroker.from_settings(chosen, longest_pass=lambda: long).subscriber("g", ["t"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kafka_oauth_client_id": "a"}, "SHIELDTX_KAFKA_OAUTH_URL is not"),
        ({"kafka_oauth_url": "https://id.example/token"}, "needs SHIELDTX_KAFKA_OAUTH_CLIENT_ID"),
        (
            {
                "kafka_oauth_url": "http://id.example/token",
                "kafka_oauth_client_id": "a",
                "kafka_oauth_client_secret": "b",
            },
            "must begin with https://",
        ),
        (
            {"kafka_security_protocol": "SASL_SSL", "kafka_sasl_mechanism": "OAUTHBEARER"},
            "nothing returns tokens",
        ),
        ({"kafka_ssl_certfile": "/nowhere"}, "uses no certificates"),
        ({"kafka_security_protocol": "SSL", "kafka_ssl_certfile": "/nowhere"}, "there is no file"),
        ({"kafka_security_protocol": "SSL", "kafka_ssl_key_password": "x"}, "_CERTFILE is not"),
    ],
)
def test_accounts_that_cannot_work_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        connection_of(settings(**given))


def test_secrets_are_not_shown() -> None:
    given = settings(kafka_ssl_key_password="hush-1", kafka_oauth_client_secret="hush-2")
    assert "hush" not in repr(given)


def test_the_page_lists_every_option() -> None:
    rows = re.findall(r"^\| `([a-z.]+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    page = dict(rows)
    for name, reason in REFUSED.items():
        assert page.pop(name) == reason
    for name, option in ALLOWED.items():
        line = page.pop(name)
        assert line.endswith(f"| {option.meaning}")
        if option.least is not None:
            assert f"| {option.least:,} to {option.most:,} |" in line
