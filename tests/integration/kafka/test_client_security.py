"""A Kafka that requires client certificates on one listener, and OAUTHBEARER on another."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from pydantic import SecretStr

from shieldtx import Settings
from shieldtx.brokers.kafka.broker import KafkaBroker
from shieldtx.embedded import EmbeddedKafka
from shieldtx.embedded.free_ports import free_port
from shieldtx.errors import BrokerError, BrokerUnavailable, ConfigurationError
from shieldtx.ports.broker import DeliveryOutcome, Record

KEY_PASSWORD = "correct-horse"
CLIENTS = ["kafka-python", "confluent-kafka"]


@dataclass(frozen=True, kw_only=True)
class Secured:
    """The broker, with the address of each listener and the files of the certificates."""

    server: EmbeddedKafka
    tls: str
    tokens: str
    folder: Path

    def settings(self, bootstrap: str, **given: Any) -> Settings:
        url = SecretStr("sqlite://")
        return Settings(source="shop", database_url=url, kafka_bootstrap=bootstrap, **given)

    def with_certificate(self, name: str = "client", **given: Any) -> Settings:
        return self.settings(
            self.tls,
            kafka_security_protocol="SSL",
            kafka_ssl_cafile=str(self.folder / "ca.pem"),
            kafka_ssl_certfile=str(self.folder / f"{name}.pem"),
            kafka_ssl_keyfile=str(self.folder / f"{name}.key"),
            kafka_ssl_key_password=SecretStr(KEY_PASSWORD),
            **given,
        )

    def with_tokens(self, **given: Any) -> Settings:
        return self.settings(
            self.tokens,
            kafka_security_protocol="SASL_PLAINTEXT",
            kafka_sasl_mechanism="OAUTHBEARER",
            **given,
        )

    def topic(self) -> str:
        name = f"t-{uuid.uuid4().hex}"
        topics = KafkaBroker.from_settings(self.settings(self.server.bootstrap)).topics()
        topics.create([name], partitions=1, replication=1)
        topics.close()
        return name


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_certificates(folder: Path) -> None:
    """Write a CA, and certificates of the broker, of a client, and of a client of another CA."""
    new = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    for ca in ("ca", "other"):
        openssl(folder, *new, "-subj", f"/CN={ca}", "-keyout", f"{ca}.key", "-out", f"{ca}.pem")
    for name, ca in (("broker", "ca"), ("client", "ca"), ("stranger", "other")):
        subject = ("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1")
        signed = (*new, *subject, "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key")
        openssl(folder, *signed, "-keyout", "plain.key", "-out", f"{name}.pem")
        encrypted = ("pkcs8", "-topk8", "-in", "plain.key", "-passout", f"pass:{KEY_PASSWORD}")
        openssl(folder, *encrypted, "-out", f"{name}.key")
        chain = (folder / "plain.key").read_text() + (folder / f"{name}.pem").read_text()
        (folder / f"{name}-keystore.pem").write_text(chain)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    port, tls, tokens, controller = (free_port() for _ in range(4))
    addresses = f"PLAINTEXT://127.0.0.1:{port},TLS://127.0.0.1:{tls},TOKENS://127.0.0.1:{tokens}"
    one, two = "listener.name.tls.", "listener.name.tokens."
    login = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    settings = {
        "listeners": f"{addresses},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": addresses,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL,TOKENS:SASL_PLAINTEXT"
        ),
        f"{one}ssl.client.auth": "required",
        f"{one}ssl.keystore.type": "PEM",
        f"{one}ssl.keystore.location": str(folder / "broker-keystore.pem"),
        f"{one}ssl.truststore.type": "PEM",
        f"{one}ssl.truststore.location": str(folder / "ca.pem"),
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        # Tokens without a signature, which the broker checks for their times.
        f"{two}oauthbearer.sasl.jaas.config": f'{login} unsecuredLoginStringClaim_sub="broker";',
    }
    with EmbeddedKafka(port=port, settings=settings) as server:
        at = "127.0.0.1"
        yield Secured(server=server, tls=f"{at}:{tls}", tokens=f"{at}:{tokens}", folder=folder)


def publish_and_read(broker: KafkaBroker, topic: str) -> None:
    publisher, subscriber = broker.publisher(), broker.subscriber(f"g-{uuid.uuid4().hex}", [topic])
    record = Record(topic=topic, key=b"k", value=b"x", headers=())
    try:
        (delivery,) = publisher.publish([record], timeout=20)
        assert delivery.outcome is DeliveryOutcome.ACKNOWLEDGED, delivery
        assert [r.value for r in subscriber.poll(timeout=20, limit=1)] == [b"x"]
    finally:
        publisher.close()
        subscriber.close()


def reason_of(broker: KafkaBroker, topic: str) -> str:
    """Return why a record is not acknowledged."""
    publisher = broker.publisher()
    record = Record(topic=topic, key=b"k", value=b"x", headers=())
    try:
        (delivery,) = publisher.publish([record], timeout=5)
    except (BrokerError, BrokerUnavailable) as error:
        return str(error)
    finally:
        publisher.close()
    assert delivery.outcome is not DeliveryOutcome.ACKNOWLEDGED
    return str(delivery.reason)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_certificate_is_accepted(secured: Secured, client: str) -> None:
    given = secured.with_certificate(kafka_producer=client)
    publish_and_read(KafkaBroker.from_settings(given), secured.topic())


@pytest.mark.parametrize("client", CLIENTS)
def test_certificate_of_another_authority_is_refused(secured: Secured, client: str) -> None:
    given = secured.with_certificate("stranger", kafka_producer=client)
    assert reason_of(KafkaBroker.from_settings(given), secured.topic())


def test_a_wrong_password_of_the_key_is_refused_at_the_start(secured: Secured) -> None:
    given = secured.with_certificate().model_copy(
        update={"kafka_ssl_key_password": SecretStr("wrong")}
    )
    with pytest.raises(ConfigurationError, match="the password of the key is wrong") as caught:
        KafkaBroker.from_settings(given)
    assert "wrong-" not in str(caught.value)
    unknown = given.model_copy(update={"kafka_ssl_key_password": None})
    with pytest.raises(ConfigurationError, match="the password of the key is wrong"):
        KafkaBroker.from_settings(unknown)


def unsigned(subject: str = "shop", seconds: float = 3600) -> tuple[str, float]:
    """Make a token without a signature, and its expiry."""
    now = time.time()
    parts: tuple[dict[str, Any], ...] = (
        {"alg": "none"},
        {"sub": subject, "iat": now, "exp": now + seconds},
    )
    texts = [base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=").decode() for p in parts]
    return f"{'.'.join(texts)}.", now + seconds


@pytest.mark.parametrize("client", CLIENTS)
def test_tokens_of_the_application_are_accepted(secured: Secured, client: str) -> None:
    made = list[str]()

    def token() -> tuple[str, float]:
        made.append("one")
        return unsigned()

    given = secured.with_tokens(kafka_producer=client)
    publish_and_read(KafkaBroker.from_settings(given, token=token), secured.topic())
    assert made == ["one"], "one token serves all connections"


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ("kafka-python", "the identity service is closed"),
        # librdkafka keeps the error of its callback to itself.
        ("confluent-kafka", "OAuth token not set"),
    ],
)
def test_a_source_without_a_token_is_a_clear_error(
    secured: Secured, client: str, expected: str
) -> None:
    def token() -> tuple[str, float]:
        raise RuntimeError("the identity service is closed")

    given = secured.with_tokens(kafka_producer=client)
    reason = reason_of(KafkaBroker.from_settings(given, token=token), secured.topic())
    assert expected in reason


@dataclass
class Provider:
    """An OpenID Connect provider of unsigned tokens on 127.0.0.1."""

    url: str = ""
    forms: list[dict[str, list[str]]] = field(default_factory=list)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                provider.forms.append(parse_qs(body))
                account = base64.b64encode(b"shop:s%3Acret").decode()
                is_known = self.headers["Authorization"] == f"Basic {account}"
                answer = json.dumps({"access_token": unsigned()[0], "expires_in": 3600}).encode()
                self.send_response(200 if is_known else 401)
                self.end_headers()
                self.wfile.write(answer if is_known else b"{}")

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        return Handler


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    server = HTTPServer(("127.0.0.1", 0), made.handler())
    made.url = f"http://127.0.0.1:{server.server_port}/token"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def with_provider(secured: Secured, provider: Provider) -> Callable[..., Settings]:
    def settings(client: str, secret: str = "s:cret") -> Settings:  # noqa: S107  of this test
        return secured.with_tokens(
            kafka_producer=client,
            kafka_oauth_url=provider.url,
            kafka_oauth_client_id="shop",
            kafka_oauth_client_secret=SecretStr(secret),
            kafka_oauth_scope="kafka",
        )

    return settings


@pytest.mark.parametrize("client", CLIENTS)
def test_tokens_come_from_client_credentials(
    secured: Secured, provider: Provider, with_provider: Callable[..., Settings], client: str
) -> None:
    broker = KafkaBroker.from_settings(with_provider(client))
    publish_and_read(broker, secured.topic())
    assert provider.forms == [{"grant_type": ["client_credentials"], "scope": ["kafka"]}]


def test_a_refused_client_is_a_clear_error_without_its_secret(
    secured: Secured, with_provider: Callable[..., Settings]
) -> None:
    given = with_provider("kafka-python", secret="wrong-secret")
    reason = reason_of(KafkaBroker.from_settings(given), secured.topic())
    assert "responded with status 401" in reason
    assert "wrong-secret" not in reason
