"""A Kafka with authentication: accounts, their permissions, and passwords that are never shown."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
)

from shieldtx.brokers.kafka.broker import (
    KafkaConnection,
    KafkaPublisher,
    KafkaSubscriber,
    KafkaTopics,
)
from shieldtx.embedded import EmbeddedKafka
from shieldtx.embedded.free_ports import free_port
from shieldtx.errors import BrokerError, BrokerUnavailable, ConfigurationError
from shieldtx.ports.broker import Delivery, DeliveryOutcome, Record, TopicCleanup

PASSWORD = "correct-horse-battery"


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """A broker with two listeners: one for accounts, one for the tests themselves."""

    server: EmbeddedKafka
    door: str

    def account(self, password: str = PASSWORD, mechanism: str = "PLAIN") -> KafkaConnection:
        return KafkaConnection(
            bootstrap_servers=self.door,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_username="shop",
            sasl_password=password,
        )

    def topic(self, *may: ACLOperation) -> str:
        """Make a topic on which the account may perform the given operations."""
        name = f"t-{uuid.uuid4().hex}"
        admin = KafkaAdminClient(bootstrap_servers=self.server.bootstrap)
        admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1}})
        admin.wait_for_topics([name])
        self._allow(admin, ResourcePattern(ResourceType.TOPIC, name), *may)
        admin.close()
        return name

    def group(self) -> str:
        """Make a group that the account may join."""
        name = f"g-{uuid.uuid4().hex}"
        admin = KafkaAdminClient(bootstrap_servers=self.server.bootstrap)
        self._allow(admin, ResourcePattern(ResourceType.GROUP, name), ACLOperation.READ)
        admin.close()
        return name

    def allow(self, topic: str, *may: ACLOperation) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.server.bootstrap)
        self._allow(admin, ResourcePattern(ResourceType.TOPIC, topic), *may)
        admin.close()

    def _allow(
        self, admin: KafkaAdminClient, resource: ResourcePattern, *may: ACLOperation
    ) -> None:
        acls = [
            ACL(
                principal="User:shop",
                host="*",
                operation=operation,
                permission_type=ACLPermissionType.ALLOW,
                resource_pattern=resource,
            )
            for operation in may
        ]
        if acls:
            assert admin.create_acls(acls)["failed"] == []


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    port, door, controller = free_port(), free_port(), free_port()
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="broker" password="x" user_broker="x" user_shop="{PASSWORD}";'
    )
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},ACCOUNTS://127.0.0.1:{door},"
        f"CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},ACCOUNTS://127.0.0.1:{door}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,ACCOUNTS:SASL_PLAINTEXT"
        ),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.accounts.plain.sasl.jaas.config": jaas,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # Each client of the other listener, the broker included.
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedKafka(port=port, settings=settings) as server:
        yield Guarded(server=server, door=f"127.0.0.1:{door}")


def record(topic: str, value: str, key: str = "k") -> Record:
    return Record(topic=topic, key=key.encode(), value=value.encode())


def outcomes(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.outcome.name for delivery in deliveries]


def test_an_account_publishes_and_reads(guarded: Guarded) -> None:
    topic = guarded.topic(ACLOperation.WRITE, ACLOperation.READ)
    publisher = KafkaPublisher(guarded.account())
    subscriber = KafkaSubscriber(guarded.account(), group=guarded.group(), topics=[topic])
    try:
        assert outcomes(publisher.publish([record(topic, "x")], timeout=20)) == ["ACKNOWLEDGED"]
        assert [r.value for r in subscriber.poll(timeout=20, limit=1)] == [b"x"]
    finally:
        publisher.close()
        subscriber.close()


def test_topic_without_write_permission_is_refused_alone(guarded: Guarded) -> None:
    mine, others = guarded.topic(ACLOperation.WRITE), guarded.topic(ACLOperation.READ)
    sent = [record(mine if n % 3 else others, str(n), key=str(n % 5)) for n in range(60)]
    publisher = KafkaPublisher(guarded.account())
    try:
        ended = publisher.publish(sent, timeout=30)
        assert outcomes(ended) == ["ACKNOWLEDGED" if n % 3 else "REFUSED" for n in range(60)]
        assert "TopicAuthorizationFailed" in ended[0].reason

        guarded.allow(others, ACLOperation.WRITE)
        assert outcomes(publisher.publish(sent[:1], timeout=30)) == ["ACKNOWLEDGED"]
    finally:
        publisher.close()


def test_topic_without_any_permission_is_refused_alone(guarded: Guarded) -> None:
    mine, hidden = guarded.topic(ACLOperation.WRITE), guarded.topic()
    publisher = KafkaPublisher(guarded.account())
    try:
        ended = publisher.publish([record(hidden, "x"), record(mine, "y")], timeout=30)
        assert outcomes(ended) == ["REFUSED", "ACKNOWLEDGED"]
        assert "TopicAuthorizationFailed" in ended[0].reason
    finally:
        publisher.close()


def test_reading_without_permission_is_an_error_not_an_outage(guarded: Guarded) -> None:
    hidden, readable = guarded.topic(), guarded.topic(ACLOperation.READ)
    for subscriber in (
        KafkaSubscriber(guarded.account(), group=guarded.group(), topics=[hidden]),
        KafkaSubscriber(guarded.account(), group="somebody-elses", topics=[readable]),
    ):
        try:
            with pytest.raises(BrokerError, match="AuthorizationFailed") as error:
                subscriber.poll(timeout=1, limit=1)
            assert not isinstance(error.value, BrokerUnavailable)
        finally:
            subscriber.close()


def test_topic_creation_without_permission_is_an_error(guarded: Guarded) -> None:
    admin = KafkaTopics(guarded.account())
    try:
        with pytest.raises(BrokerError, match=r"Authorization ?[Ff]ailed"):
            admin.create(["n-forbidden"], partitions=1, replication=1)
    finally:
        admin.close()


def test_cleanup_of_a_topic_is_unknown_without_the_permission(guarded: Guarded) -> None:
    shown = guarded.topic(ACLOperation.WRITE, ACLOperation.DESCRIBE_CONFIGS)
    admin = KafkaTopics(guarded.account())
    try:
        cleanups = admin.cleanups([shown, guarded.topic(ACLOperation.WRITE)])
        assert cleanups == {shown: TopicCleanup(is_compacted=False, retention=timedelta(days=7))}
    finally:
        admin.close()


def test_wrong_password_is_reported_and_never_shown(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = guarded.account(password="marker-of-a-secret")
    # The broker refuses and closes the connection at once: the client may see only that.
    named = re.compile("SaslAuthenticationFailed|check username and password")
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(BrokerError) as error:
            KafkaTopics(wrong, timeout=2).describe(["x"])
        publisher = KafkaPublisher(wrong)
        (ended,) = publisher.publish([record("x", "y")], timeout=2)
        publisher.close()
    assert named.search(str(error.value))
    assert ended.outcome is DeliveryOutcome.UNSENT
    assert named.search(ended.reason)
    assert "KafkaAdminClient" in caplog.text
    shown = [caplog.text, repr(wrong), str(wrong), str(error.value), ended.reason]
    assert not [text for text in shown if "marker-of-a-secret" in text]


def test_account_for_a_port_without_accounts_is_named(guarded: Guarded) -> None:
    account = replace(guarded.account(), bootstrap_servers=guarded.server.bootstrap)
    with pytest.raises(BrokerError, match=r"IllegalSaslState.*no account.*SECURITY_PROTOCOL"):
        KafkaTopics(account, timeout=5).describe(["x"])


def test_a_right_password_is_never_shown_either(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    topic = guarded.topic(ACLOperation.WRITE, ACLOperation.READ)
    account = guarded.account()
    with caplog.at_level(logging.DEBUG):
        publisher = KafkaPublisher(account)
        publisher.publish([record(topic, "x")], timeout=20)
        publisher.close()
        subscriber = KafkaSubscriber(account, group=guarded.group(), topics=[topic])
        subscriber.poll(timeout=20, limit=1)
        subscriber.close()
    assert "Kafka" in caplog.text
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"bootstrap_servers": "kafka"}, "BOOTSTRAP: address 1 is not host:port"),
        ({"bootstrap_servers": "a:1,,b:2"}, "address 2 is not host:port"),
        ({"bootstrap_servers": "a:http"}, "host:port"),
        ({"security_protocol": "TLS"}, "SHIELDTX_KAFKA_SECURITY_PROTOCOL: 'TLS'"),
        ({"security_protocol": "TLS", "in_file": True}, "topics.security_protocol: 'TLS'"),
        ({"sasl_username": "a"}, "unset SHIELDTX_KAFKA_SASL_USERNAME"),
        ({"security_protocol": "SASL_SSL"}, "SASL_MECHANISM: not set; use one of PLAIN"),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"},
            "OAUTHBEARER",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "a"},
            "SHIELDTX_KAFKA_SASL_PASSWORD is not set",
        ),
        ({"security_protocol": "SSL", "ssl_cafile": "/no/such.pem"}, r"/no/such\.pem"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(
    settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        KafkaConnection(**{"bootstrap_servers": "127.0.0.1:9092", **settings})
